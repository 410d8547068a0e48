//! What the commands need and Rust does not bring: Debian packages, a compiler target, and
//! the peers from PyPI. Installed if possible; if not, you are told what to run.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::{Stop, Task, enclosure};

/// A program and the Debian package it comes in.
type Need = (&'static str, &'static str);

/// For every command that makes namespaces.
pub const BASIC: &[Need] = &[("ip", "iproute2"), ("unshare", "util-linux"), ("mount", "mount")];
pub const KEEPALIVED: &[Need] = &[("keepalived", "keepalived")];
/// What records what goes over a link.
pub const TCPDUMP: &[Need] = &[("tcpdump", "tcpdump")];
/// How Neutron announced.
pub const ARPING: &[Need] = &[("arping", "iputils-arping")];
/// What looks at a history from outside, and what a webhook may meet.
pub const STRANGERS: &[Need] = &[("sqlite3", "sqlite3"), ("openssl", "openssl")];
/// What builds the limit of `bench dropin`.
pub const C: &[Need] = &[("cc", "gcc"), ("ld", "binutils")];
/// What builds the fuzzer.
pub const CPLUSPLUS: &[Need] = &[("c++", "g++")];
pub const CONNTRACKD: &[Need] = &[("conntrackd", "conntrackd")];
/// What Neutron's script runs, and what its Python needs.
pub const PEERS: &[Need] = &[
    ("curl", "curl"),
    ("ps", "procps"),
    ("awk", "mawk"),
    ("python3", "python3"),
    ("sudo", "sudo"),
];

/// Sees to it that every program is there.
pub fn programs(needs: &[&[Need]]) -> Task {
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
    let packages: Vec<&str> = missing.iter().map(|(_, package)| *package).collect();
    packages_installed(&packages)?;
    for (program, package) in missing {
        if find(program).is_none() {
            return Err(Stop(format!("{package} is installed, and there is still no {program}")));
        }
    }
    Ok(())
}

fn packages_installed(packages: &[&str]) -> Task {
    let advice = format!("sudo apt-get install {}", packages.join(" "));
    let prefix: &[&str] = if enclosure::is_root() {
        &[]
    } else if Command::new("sudo")
        .args(["-n", "true"])
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|s| s.success())
    {
        &["sudo", "-n"]
    } else {
        return Err(Stop(format!("missing packages\n  hint: {advice}")));
    };
    eprintln!("xtask: installing {}", packages.join(", "));
    let apt = |words: &[&str]| {
        let line: Vec<&str> = prefix.iter().chain(words).copied().collect();
        let mut command = Command::new(line[0]);
        command.args(&line[1..]).env("DEBIAN_FRONTEND", "noninteractive").stdout(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    let install = [&["apt-get", "install", "-y", "--no-install-recommends"], packages].concat();
    if apt(&install) || (apt(&["apt-get", "update"]) && apt(&install)) {
        return Ok(());
    }
    Err(Stop(format!("cannot install {}\n  hint: {advice}", packages.join(", "))))
}

/// Where a program is, as a shell would find it, with the system's own directories added.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from);
    std::env::split_paths(&path)
        .chain(system)
        .map(|directory| directory.join(program))
        .find(|candidate| candidate.is_file())
}

/// Neutron of this version from PyPI, in an environment of its own under `target`; returns
/// that environment's directory.
pub fn neutron(version: &str) -> Result<PathBuf, Stop> {
    programs(&[PEERS])?;
    let home = crate::build::target_directory().join("peers").join(format!("neutron-{version}"));
    let mark = home.join("complete");
    if mark.exists() {
        return Ok(home);
    }
    eprintln!(
        "xtask: installing neutron {version} from PyPI into {} (about a minute)",
        home.display()
    );
    let _ = std::fs::remove_dir_all(&home);
    let python = python()?;
    let made = Command::new(&python).args(["-m", "venv"]).arg(&home).output()?;
    if !made.status.success() {
        let _ = std::fs::remove_dir_all(&home);
        packages_installed(&["python3-venv"])?;
        succeed(Command::new(&python).args(["-m", "venv"]).arg(&home))?;
    }
    let pip = home.join("bin/pip");
    succeed(
        Command::new(pip)
            .args(["install", "--quiet", "--disable-pip-version-check"])
            .arg(format!("neutron=={version}")),
    )?;
    std::fs::File::create(mark)?;
    Ok(home)
}

/// The system's Python: others may be built without what a virtual environment needs.
fn python() -> Result<PathBuf, Stop> {
    let system = Path::new("/usr/bin/python3");
    if system.exists() {
        return Ok(system.to_owned());
    }
    find("python3").ok_or_else(|| Stop("there is no python3".to_owned()))
}

fn succeed(command: &mut Command) -> Task {
    let output = command.output()?;
    if output.status.success() {
        return Ok(());
    }
    let reason = String::from_utf8_lossy(&output.stderr);
    let last: Vec<&str> = reason.lines().rev().take(5).collect();
    Err(Stop(format!(
        "{command:?} failed:\n{}",
        last.into_iter().rev().collect::<Vec<_>>().join("\n")
    )))
}
