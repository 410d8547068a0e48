// SPDX-License-Identifier: Apache-2.0
//! A booted root: systemd-nspawn, and commands in its namespaces.

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use vipwatch_testkit::wait::wait_within_showing;

use crate::cgroup::Cgroup;
use crate::{CommandOutcome, MachineProcess, PACKAGES, Root};

/// Maximum time until systemd has started all services. Several machines may boot at the same time.
const BOOT_LIMIT: Duration = Duration::from_mins(2);

/// A machine with its own systemd and an empty network. It is switched off when it is dropped.
pub struct Machine {
    nspawn: Child,
    /// The process id of its first process, as seen from outside.
    init: u32,
    root: Root,
    _cgroup: Cgroup,
}

impl Machine {
    pub(crate) fn boot(root: Root) -> Self {
        let name = root.path().parent().and_then(|path| path.file_name()).unwrap();
        let cgroup =
            Cgroup::new(&format!("vipwatch-{}-{}", name.display(), boot_id(std::process::id())));
        let console = fs::File::create(root.path().with_file_name("console")).unwrap();
        // The shell moves itself into the control group before it becomes systemd-nspawn.
        let join = |path: &PathBuf| format!("echo 0 > {}/cgroup.procs; ", path.display());
        let mut line: String = cgroup.paths.iter().map(join).collect();
        line.push_str("exec systemd-nspawn --quiet --register=no --keep-unit --private-network ");
        line.push_str("--capability=all --console=pipe --boot --directory \"$0\"");
        let mut nspawn = Command::new("sh")
            .args(["-ec", &line])
            .arg(root.path())
            .stdin(Stdio::null())
            .stdout(console.try_clone().unwrap())
            .stderr(console)
            .spawn()
            .unwrap();
        let log = root.path().with_file_name("console");
        let diagnostics = || fs::read_to_string(&log).unwrap_or_default();
        let init = wait_within_showing(BOOT_LIMIT, "the first process", diagnostics, || {
            assert!(nspawn.try_wait().unwrap().is_none(), "no boot: {}", diagnostics());
            child_of(nspawn.id())
        });
        let machine = Self { nspawn, init, root, _cgroup: cgroup };
        wait_within_showing(BOOT_LIMIT, "the end of the boot", diagnostics, || {
            let state = machine.run("systemctl is-system-running");
            matches!(state.stdout.trim(), "running" | "degraded").then_some(())
        });
        machine
    }

    /// Runs a shell command as root of the machine.
    pub fn run(&self, script: &str) -> CommandOutcome {
        CommandOutcome::new(script, &self.command(script).output().unwrap())
    }

    /// Runs a shell command that must succeed; returns its standard output without the spaces around it.
    #[track_caller]
    pub fn succeed(&self, script: &str) -> String {
        self.run(script).expect()
    }

    /// Starts a shell command and does not wait for its end.
    pub fn spawn(&self, script: &str) -> MachineProcess {
        MachineProcess::new(self.command(script).spawn().unwrap())
    }

    fn command(&self, script: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.init.to_string(), "--all", "--"]);
        command.args(["/bin/sh", "-ec", &format!("cd /\n{script}")]).stdin(Stdio::null());
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("HOME", "/");
        command.env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C.UTF-8");
        command
    }

    /// Writes a file of the machine, and its directories.
    #[track_caller]
    pub fn write(&self, path: &str, content: &str) {
        // From inside: the machine has mounts of its own, for example at /run.
        let script = format!("mkdir -p \"$(dirname {path})\"; cat > {path}");
        let mut writer = self.command(&script).stdin(Stdio::piped()).spawn().unwrap();
        writer.stdin.take().unwrap().write_all(content.as_bytes()).unwrap();
        assert!(writer.wait().unwrap().success(), "cannot write {path}");
    }

    /// Installs packages of the project by name, with dpkg.
    #[track_caller]
    pub fn install(&self, packages: &[&str]) -> String {
        self.install_from(PACKAGES, packages)
    }

    /// Installs packages from [`PACKAGES`] or [`crate::PREVIOUS`]; returns what dpkg has printed.
    #[track_caller]
    pub fn install_from(&self, directory: &str, packages: &[&str]) -> String {
        let files: Vec<String> =
            packages.iter().map(|name| format!("{directory}/{name}_*.deb")).collect();
        self.succeed(&format!("dpkg --install {} 2>&1", files.join(" ")))
    }

    /// Waits until a shell command succeeds; returns its standard output. A failure shows the last answer and the
    /// newest lines of the machine's log.
    #[track_caller]
    pub fn wait_until(&self, what: &str, script: &str) -> String {
        let diagnostics = || {
            let answer = self.run(script);
            let log = self.run("journalctl --no-pager --lines 40").text();
            format!("{script}: {:?}\n{}\n{log}", answer.code, answer.text())
        };
        vipwatch_testkit::wait::wait_showing(what, diagnostics, || {
            let outcome = self.run(script);
            outcome.is_ok().then(|| outcome.expect())
        })
    }

    /// The root directory of the machine.
    pub fn root(&self) -> &Root {
        &self.root
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // The kernel ends all processes of a process namespace with the first one.
        let _ = Command::new("kill").args(["-KILL", &self.init.to_string()]).status();
        let _ = self.nspawn.wait();
    }
}

/// A number that differs between test programs that run at the same time on one machine: process ids repeat in process
/// namespaces.
fn boot_id(process: u32) -> String {
    let namespace = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    let digits: String = namespace.to_string_lossy().chars().filter(char::is_ascii_digit).collect();
    format!("{digits}-{process}")
}

/// The only child of systemd-nspawn: the machine's first process.
fn child_of(process: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{process}/task/{process}/children")).ok()?;
    let child: u32 = children.split_whitespace().next()?.parse().ok()?;
    // systemd-nspawn has helper processes before the first process executes systemd.
    let name = fs::read_to_string(format!("/proc/{child}/comm")).ok()?;
    (name.trim() == "systemd").then_some(child)
}
