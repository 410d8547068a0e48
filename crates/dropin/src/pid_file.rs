//! The pid file: how the agent finds us.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use vipwatch_core::InstanceId;
use vipwatch_linux::file::read_head;

use crate::args::PROGRAM;
use crate::failure::{Code, Failure};

/// A pid file of ours; removed when dropped, unless it has become somebody else's.
#[derive(Debug)]
pub(crate) struct PidFile {
    path: PathBuf,
    pid: u32,
}

impl PidFile {
    /// Writes our pid to `path`, in one step: whatever was there, a stale pid or a symbolic
    /// link, is replaced and not followed.
    pub(crate) fn write(path: &Path) -> Result<Self, Failure> {
        let pid = std::process::id();
        replace(path, pid.to_string().as_bytes()).map_err(|error| {
            let message = format!("cannot write --pid_file {}: {error}", path.display());
            Failure::new(Code::of(&error), message)
                .hint("its directory must exist and be writable for --user")
        })?;
        Ok(Self { path: path.to_owned(), pid })
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        if pid_in(&self.path) == Some(self.pid) {
            // The agent may have been quicker.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The pid in `path`, if it is that of a live monitor of `instance`. `started_by` are no monitors of their own: a wrapper
/// may have written its pid, or that of this program's foreground process, into the file.
pub(crate) fn running_monitor(
    path: &Path,
    instance: &InstanceId,
    started_by: &[u32],
) -> Option<u32> {
    let pid = pid_in(path).filter(|pid| *pid != std::process::id() && !started_by.contains(pid))?;
    let command_line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    is_monitor(&command_line, instance).then_some(pid)
}

/// This process, its parent, and so on.
pub(crate) fn ancestry() -> Vec<u32> {
    // LIMIT: more ancestors than any process has, whatever `/proc` says.
    const DEEPEST: usize = 64;
    std::iter::successors(Some(std::process::id()), |pid| parent(*pid)).take(DEEPEST).collect()
}

fn parent(pid: u32) -> Option<u32> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    // The name of the program stands in parentheses and may hold any character.
    let fields = stat.rsplit_once(')')?.1;
    fields.split_whitespace().nth(1)?.parse().ok().filter(|parent| *parent != 0)
}

/// Whether this is the command line of a monitor of `instance`: of this program, or of Neutron's own, which an
/// interpreter runs. A program that was asked to start one (`sudo`, `neutron-rootwrap`) has the same words further behind.
fn is_monitor(command_line: &[u8], instance: &InstanceId) -> bool {
    // Names end so: `python3.6`, `platform-python3.6`, `bash`.
    const INTERPRETERS: [&str; 2] = ["python", "sh"];
    let text = String::from_utf8_lossy(command_line);
    let mut words = text.split('\0');
    let program = base_name(words.next().unwrap_or_default());
    let family = program.trim_end_matches(|c| "0123456789.".contains(c));
    let program = if INTERPRETERS.iter().any(|name| family.ends_with(name)) {
        program_of_interpreter(&mut words)
    } else {
        program
    };
    program == PROGRAM && words.any(|word| word.contains(instance.as_str()))
}

/// The program that an interpreter with these arguments runs: the first one that is no option, nor an option's value.
fn program_of_interpreter<'a>(arguments: &mut impl Iterator<Item = &'a str>) -> &'a str {
    while let Some(word) = arguments.next() {
        match word {
            "-W" | "-X" => drop(arguments.next()),
            option if option.starts_with('-') => {}
            program => return base_name(program),
        }
    }
    ""
}

fn base_name(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}

fn pid_in(path: &Path) -> Option<u32> {
    let bytes = read_head(path, 32).ok()?;
    std::str::from_utf8(&bytes).ok()?.trim().parse().ok()
}

fn replace(path: &Path, contents: &[u8]) -> io::Result<()> {
    let mut staged = OsString::from(path);
    staged.push(format!(".{}", std::process::id()));
    let outcome = create(Path::new(&staged))
        .and_then(|mut file| file.write_all(contents))
        .and_then(|()| std::fs::rename(&staged, path));
    if outcome.is_err() {
        let _ = std::fs::remove_file(&staged);
    }
    outcome
}

/// A new file: no symbolic link is followed, because nothing may be there.
fn create(path: &Path) -> io::Result<File> {
    let _ = std::fs::remove_file(path);
    OpenOptions::new().write(true).create_new(true).mode(0o644).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_monitor_is_taken_for_one_and_not_a_program_that_starts_one() {
        let instance: InstanceId = "5c7d".parse().unwrap();
        let monitors = [
            "/usr/bin/neutron-keepalived-state-change --router_id 5c7d",
            "neutron-keepalived-state-change --router_id=5c7d",
            "/usr/bin/python3 -s /usr/bin/neutron-keepalived-state-change --router_id=5c7d",
            "/usr/bin/python3.11 /opt/bin/neutron-keepalived-state-change --router_id=5c7d",
            "/usr/libexec/platform-python3.6 -W ignore /usr/bin/neutron-keepalived-state-change --router_id=5c7d",
            "/bin/sh /usr/bin/neutron-keepalived-state-change --router_id 5c7d",
        ];
        let others = [
            "sudo neutron-keepalived-state-change --router_id 5c7d",
            "/usr/bin/python3 /usr/bin/neutron-rootwrap /etc/rootwrap.conf \
             neutron-keepalived-state-change --router_id=5c7d",
            "/usr/bin/neutron-keepalived-state-change --router_id 0a1b",
            "tail -f neutron-keepalived-state-change.log 5c7d",
            "",
        ];
        let is_monitor =
            |line: &str| super::is_monitor(line.replace(' ', "\0").as_bytes(), &instance);
        for line in monitors {
            assert!(is_monitor(line), "{line}");
        }
        for line in others {
            assert!(!is_monitor(line), "{line}");
        }
    }

    #[test]
    fn the_ancestry_begins_here_and_ends_with_the_first_process() {
        let ancestry = ancestry();
        assert_eq!(ancestry[0], std::process::id());
        assert_eq!(ancestry[1], std::os::unix::process::parent_id());
    }
}
