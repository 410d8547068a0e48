// SPDX-License-Identifier: Apache-2.0
//! Runs a command in its own namespaces for network, mounts, host name and processes. The kernel ends all processes and
//! removes all namespaces when the first process ends; the rest of the system is not changed.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::{TaskError, TaskResult, process};

/// A directory for temporary files in the sandbox, which disappears with it, also after a kill.
pub const TEMPORARY: &str = "/run/tmp";

/// The internal command of `xtask` for the process in the sandbox.
pub const INSIDE: &str = "inside";

/// The internal command of `xtask` for the process of [`enter_as_root`].
pub const INSIDE_AS_ROOT: &str = "inside-as-root";

/// Runs a command in a process namespace of its own, and thaws each file system on a loop device in this mount namespace when
/// the command ends, or when standard input is closed because `xtask` was killed. The kernel ends no process that writes to a
/// frozen file system, and `unshare` waits for all of them.
///
/// LIMIT: if only the first process in the namespace is killed, the file systems are thawed when `xtask` ends.
const THAWING: &str = r#"
# Not ignored: the command would inherit that.
trap : INT TERM HUP
directory=$PWD
# ORDER: before the command hides this /proc with its own one.
cd "/proc/$$" || exit
thaw() {
    while read -r device mounted type _; do
        case $device:$type in
            /dev/loop*:ext4) fsfreeze --unfreeze "$(printf %b "$mounted")" ;;
        esac
    done < mounts
}
exec 3<&0
(
    trap "" INT TERM HUP
    read -r _
    while :; do thaw; sleep 1; done
) <&3 > /dev/null 2>&1 &
thawing=$!
unshare --wd "$directory" --pid --fork --kill-child -- \
    sh -c 'mount -t proc proc /proc && exec "$@"' sh "$@" <&3 3<&-
status=$?
kill -KILL "$thawing"
thaw 2> /dev/null
exit "$status"
"#;

/// Runs this program again in new namespaces, with the internal command and `args`.
pub fn enter(args: &[&str], environment: &[(&str, String)]) -> TaskResult {
    let mut command = bound_command();
    append(&mut command, &unshare());
    command.arg(std::env::current_exe()?).arg(INSIDE).args(args);
    command.env(vipwatch_testkit::lab::LAB_VARIABLE, "1");
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    let status = command.status().map_err(|error| TaskError(format!("unshare: {error}")))?;
    if status.success() {
        return Ok(());
    }
    let command = args.first().copied().unwrap_or_default();
    Err(TaskError(format!("`{command}` failed in the sandbox; see above")))
}

/// Runs this program again as root, in new namespaces for mounts and processes only: the tests of the packages boot
/// systems with a systemd, and use the network for the packages of Debian.
pub fn enter_as_root(args: &[&str], environment: &[(&str, String)]) -> TaskResult {
    let mut command = Command::new(if is_root() { "env" } else { "sudo" });
    if !is_root() {
        command.args(["-n", "env"]);
    }
    // The process in the namespaces ends when this pipe is closed. The kernel does not bind a process to its parent that
    // sudo has started.
    command.stdin(Stdio::piped());
    let path = std::env::var("PATH").unwrap_or_default();
    command.arg(format!("PATH={path}:/usr/sbin:/sbin"));
    command.args(environment.iter().map(|(name, value)| format!("{name}={value}")));
    command.args(["unshare", "--mount", "--propagation", "private", "--"]);
    command.args(["sh", "-c", THAWING, "sh"]);
    command.arg(std::env::current_exe()?).arg(INSIDE_AS_ROOT).args(args);
    let mut child = command.spawn()?;
    // `wait` would close the pipe.
    let pipe = child.stdin.take();
    let status = child.wait()?;
    drop(pipe);
    if status.success() {
        return Ok(());
    }
    Err(TaskError("the tests of the packages failed; see above".to_owned()))
}

/// The beginning of a command that ends together with this process. A namespace's first process and `unshare` ignore
/// Ctrl-C: without this, the tests would run on.
pub fn bound_command() -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]);
    command
}

/// Appends the program and the arguments of another command.
fn append(command: &mut Command, other: &Command) {
    command.arg(other.get_program()).args(other.get_args());
}

/// Ends this process, and so its process namespace, when standard input is closed; see [`enter_as_root`].
pub fn end_with_standard_input() {
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(1);
    });
}

/// Fails if this program can neither be root nor become root without a password.
pub fn check_root() -> TaskResult {
    let can_sudo = || {
        let mut command = Command::new("sudo");
        command.args(["-n", "true"]).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    if is_root() || can_sudo() {
        return Ok(());
    }
    Err(TaskError(
        "the tests of the packages boot systems, and need root\n  hint: sudo -E env PATH=\"$PATH\" cargo xtask test packages"
            .to_owned(),
    ))
}

/// `unshare` with the options for new namespaces.
fn unshare() -> Command {
    let mut command = Command::new("unshare");
    if !is_root() {
        // The user is root in the sandbox. Further users exist there if /etc/subuid and /etc/subgid have ids for
        // this user.
        command.args(["--user", "--map-root-user"]);
        if has_other_users() {
            command.arg("--map-auto");
        }
    }
    command.args(["--net", "--mount", "--uts", "--pid", "--fork"]);
    command.args(["--kill-child", "--mount-proc", "--"]);
    command
}

/// Fails if namespaces cannot be created.
pub fn check_namespaces() -> TaskResult {
    let output = unshare().arg("true").stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    let reason = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(TaskError(format!(
        "cannot create namespaces ({reason})\n  hint: run it as root (`sudo -E env PATH=\"$PATH\" cargo xtask …`), or allow \
         user namespaces:\n        sudo sysctl -w kernel.unprivileged_userns_clone=1  # Debian\n        \
         sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0  # Ubuntu 24.04 and later"
    )))
}

/// Whether the sandbox can have more than one user.
fn has_other_users() -> bool {
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--map-auto", "true"]);
    command.stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// Fails if the sandbox cannot have a second user, which tests need that drop privileges.
pub fn check_users() -> TaskResult {
    if is_root() || has_other_users() {
        return Ok(());
    }
    Err(TaskError(
        "tests that connect as another user or drop privileges need a second user id\n  hint: sudo apt-get install uidmap, and add a line for \
         your user to /etc/subuid and /etc/subgid (`sudo usermod --add-subuids 100000-165535 --add-subgids \
         100000-165535 $USER`); or run it as root"
            .to_owned(),
    ))
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Prepares the sandbox: an empty /run for the names of namespaces, and a /dev with the sandbox's own `log` and
/// pseudo-terminals.
pub fn set_up() -> TaskResult {
    mount(&["--make-rprivate", "/"])?;
    mount(&["-t", "tmpfs", "tmpfs", "/run"])?;
    for directory in ["netns", "lock", "dev", "devices", "tmp"] {
        fs::create_dir_all(Path::new("/run").join(directory))?;
    }
    fs::set_permissions("/run/tmp", fs::Permissions::from_mode(0o1777))?;
    mount(&["--rbind", "/dev", "/run/devices"])?;
    for name in ["null", "zero", "full", "random", "urandom", "tty"] {
        let (from, to) = (format!("/run/devices/{name}"), format!("/run/dev/{name}"));
        if Path::new(&from).exists() {
            fs::File::create(&to)?;
            mount(&["--bind", &from, &to])?;
        }
    }
    if Path::new("/run/devices/shm").is_dir() {
        fs::create_dir("/run/dev/shm")?;
        mount(&["--rbind", "/run/devices/shm", "/run/dev/shm"])?;
    }
    // Pseudo-terminals of the sandbox's own: `ptmx` works only beside the directory that it belongs to.
    fs::create_dir("/run/dev/pts")?;
    let options = "newinstance,ptmxmode=0666,mode=0620";
    mount(&["-t", "devpts", "-o", options, "devpts", "/run/dev/pts"])?;
    symlink("pts/ptmx", "/run/dev/ptmx")?;
    symlink("/proc/self/fd", "/run/dev/fd")?;
    for (number, name) in ["stdin", "stdout", "stderr"].iter().enumerate() {
        symlink(format!("/proc/self/fd/{number}"), format!("/run/dev/{name}"))?;
    }
    symlink("/run/log", "/run/dev/log")?;
    mount(&["--rbind", "/run/dev", "/dev"])?;
    process::output(Command::new("ip").args(["link", "set", "lo", "up"])).map(drop)
}

fn mount(args: &[&str]) -> TaskResult {
    process::output(Command::new("mount").args(args)).map(drop)
}
