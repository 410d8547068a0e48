//! Namespaces of our own: network, mounts and processes. Whatever happens in there ends
//! with the first process in it, and nobody outside notices.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::{Stop, Task};

/// The hidden command that runs in there.
pub const INSIDE: &str = "inside";

/// Runs this program again, enclosed, with `words`.
pub fn enter(words: &[&str], environment: &[(&str, String)]) -> Task {
    let mut command = unshare();
    command.arg(std::env::current_exe()?).arg(INSIDE).args(words);
    command.env(vipwatch_testkit::lab::MARK, "1");
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    let status = command.status().map_err(|error| Stop(format!("unshare: {error}")))?;
    if status.success() { Ok(()) } else { Err(Stop(format!("{} failed", words.join(" ")))) }
}

fn unshare() -> Command {
    let mut command = Command::new("unshare");
    if !is_root() {
        // Root in there, nobody special out here; with further users where the system has
        // set some aside for us.
        command.args(["--user", "--map-root-user"]);
        if has_other_users() {
            command.arg("--map-auto");
        }
    }
    command.args(["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--"]);
    command
}

/// Whether namespaces can be made at all; the reason if not.
pub fn probe() -> Task {
    let output = unshare().arg("true").stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    let reason = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(Stop(format!(
        "cannot make namespaces ({reason})\n  hint: run it as root (`sudo -E env PATH=\"$PATH\" cargo xtask …`), or allow \
         user namespaces:\n        sudo sysctl -w kernel.unprivileged_userns_clone=1  # Debian\n        \
         sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0  # Ubuntu 24.04 and later"
    )))
}

/// Whether there can be more than one user in there.
fn has_other_users() -> bool {
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--map-auto", "true"]);
    command.stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// Whether privileges can be given up in there; what to do if not.
pub fn probe_users() -> Task {
    if is_root() || has_other_users() {
        return Ok(());
    }
    Err(Stop(
        "tests that connect as another user, or give up privileges, need a second user\n  hint: sudo apt-get install uidmap, and a line for \
         you in /etc/subuid and /etc/subgid (`sudo usermod --add-subuids 100000-165535 --add-subgids \
         100000-165535 $USER`); or run it as root"
            .to_owned(),
    ))
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Makes the inside fit to live in: a /run of our own for the names of namespaces, and a
/// /dev whose `log` is ours.
pub fn furnish() -> Task {
    mount(&["--make-rprivate", "/"])?;
    mount(&["-t", "tmpfs", "tmpfs", "/run"])?;
    for directory in ["netns", "lock", "dev", "devices"] {
        fs::create_dir_all(Path::new("/run").join(directory))?;
    }
    mount(&["--rbind", "/dev", "/run/devices"])?;
    for name in ["null", "zero", "full", "random", "urandom", "tty", "ptmx"] {
        let (from, to) = (format!("/run/devices/{name}"), format!("/run/dev/{name}"));
        if Path::new(&from).exists() {
            fs::File::create(&to)?;
            mount(&["--bind", &from, &to])?;
        }
    }
    for name in ["pts", "shm"] {
        let (from, to) = (format!("/run/devices/{name}"), format!("/run/dev/{name}"));
        if Path::new(&from).is_dir() {
            fs::create_dir(&to)?;
            mount(&["--rbind", &from, &to])?;
        }
    }
    symlink("/proc/self/fd", "/run/dev/fd")?;
    for (number, name) in ["stdin", "stdout", "stderr"].iter().enumerate() {
        symlink(format!("/proc/self/fd/{number}"), format!("/run/dev/{name}"))?;
    }
    symlink("/run/log", "/run/dev/log")?;
    mount(&["--rbind", "/run/dev", "/dev"])?;
    run("ip", &["link", "set", "lo", "up"])
}

fn mount(words: &[&str]) -> Task {
    run("mount", words)
}

fn run(program: &str, words: &[&str]) -> Task {
    let output = Command::new(program).args(words).output()?;
    if output.status.success() {
        return Ok(());
    }
    let reason = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(Stop(format!("{program} {}: {reason}", words.join(" "))))
}
