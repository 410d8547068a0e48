// SPDX-License-Identifier: Apache-2.0
//! The pid file, by which the agent finds the monitor, and the search for a monitor that already runs.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use vipwatch_core::InstanceId;
use vipwatch_linux::file::read_head;

use crate::args::PROGRAM;
use crate::failure::{Code, Failure};

/// The pid file of this process. It is removed when dropped, unless it holds the pid of another process by then.
#[derive(Debug)]
pub(crate) struct PidFile {
    path: PathBuf,
    pid: u32,
}

impl PidFile {
    /// Writes the pid of this process to `path` in one step. An existing file or symbolic link is replaced; no link is
    /// followed.
    pub(crate) fn write(path: &Path) -> Result<Self, Failure> {
        let pid = std::process::id();
        replace(path, pid.to_string().as_bytes()).map_err(|error| {
            let message = format!("cannot write --pid_file {}: {error}", path.display());
            Failure::new(Code::of(&error), message)
                .hint("the directory must exist, and --user must be able to write to it")
        })?;
        Ok(Self { path: path.to_owned(), pid })
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        if pid_in(&self.path) == Some(self.pid) {
            // The agent may have removed it first.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The pid in `path`, if it belongs to a running monitor of `instance`. The processes in `started_by` do not count as
/// monitors: a wrapper may have written its own pid, or the pid of this program's foreground process, into the file.
pub(crate) fn running_monitor(
    path: &Path,
    instance: &InstanceId,
    started_by: &[u32],
) -> Option<u32> {
    let pid = pid_in(path).filter(|pid| *pid != std::process::id() && !started_by.contains(pid))?;
    let command_line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    is_monitor(&command_line, instance).then_some(pid)
}

/// The pids of this process, its parent, and its further ancestors.
pub(crate) fn ancestry() -> Vec<u32> {
    // LIMIT: more ancestors than a process really has; it ends the search if `/proc` shows a loop.
    const MAX_ANCESTORS: usize = 64;
    std::iter::successors(Some(std::process::id()), |pid| parent(*pid))
        .take(MAX_ANCESTORS)
        .collect()
}

fn parent(pid: u32) -> Option<u32> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    // The name of the program is in parentheses and may contain any character.
    let fields = stat.rsplit_once(')')?.1;
    fields.split_whitespace().nth(1)?.parse().ok().filter(|parent| *parent != 0)
}

/// Whether this is the command line of a monitor of `instance`: of this program, or of Neutron's own monitor, which an
/// interpreter runs. A program that starts a monitor (`sudo`, `neutron-rootwrap`) has the same words as later arguments.
fn is_monitor(command_line: &[u8], instance: &InstanceId) -> bool {
    // Endings of interpreter names without their version: `python3.6`, `platform-python3.6`, `bash`.
    const INTERPRETERS: [&str; 2] = ["python", "sh"];
    let text = String::from_utf8_lossy(command_line);
    // Neutron's Python daemon loads a library that joins its command line to one word with spaces.
    let is_joined = !text.trim_end_matches('\0').contains('\0');
    let separator = if is_joined { ' ' } else { '\0' };
    let mut words = text.split(separator);
    let program = base_name(words.next().unwrap_or_default());
    let family = program.trim_end_matches(|c| "0123456789.".contains(c));
    let program = if INTERPRETERS.iter().any(|name| family.ends_with(name)) {
        program_of_interpreter(&mut words)
    } else {
        program
    };
    program == PROGRAM && words.any(|word| word.contains(instance.as_str()))
}

/// The program that an interpreter with these arguments runs: the first argument that is neither an option nor the
/// value of an option.
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

/// Creates a new file. It fails if the name exists, so no symbolic link is followed.
fn create(path: &Path) -> io::Result<File> {
    let _ = std::fs::remove_file(path);
    OpenOptions::new().write(true).create_new(true).mode(0o644).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_starts_a_monitor_is_not_taken_for_a_monitor() {
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
        let joined =
            "/usr/bin/python3 /usr/bin/neutron-keepalived-state-change --router_id=5c7d\0\0";
        assert!(super::is_monitor(joined.as_bytes(), &instance), "{joined}");
    }

    #[test]
    fn the_ancestry_starts_with_this_process_and_its_parent() {
        let ancestry = ancestry();
        assert_eq!(ancestry[0], std::process::id());
        assert_eq!(ancestry[1], std::os::unix::process::parent_id());
    }
}
