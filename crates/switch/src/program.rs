// SPDX-License-Identifier: Apache-2.0
//! The programs that the switch may start: where they are, and which kind and version they have.
//!
//! Root alone can change such a program and every directory on the way to it ([`CheckedProgram`]). The file that a
//! running process has open is compared with them, and never executed.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use rustix::fs::{Mode, OFlags};
use vipwatch_core::ErrorChain;
use vipwatch_linux::process_table;
use vipwatch_linux::program::{CheckedProgram, ProgramError};

use crate::command_line::{PROGRAM, interpreter_family};
use crate::failure::SwitchFailure;
use crate::monitor::{MonitorProgram, RunningMonitor};

/// The name under which the agent starts a monitor.
pub(crate) const AGENT_NAME: &str = "/usr/bin/neutron-keepalived-state-change";
/// Neutron's program while the package vipwatch-neutron is installed.
pub(crate) const DIVERTED_NAME: &str = "/usr/bin/neutron-keepalived-state-change.neutron";
/// The drop-in of the package vipwatch-neutron.
const DROPIN: &str = "/usr/lib/vipwatch/neutron-keepalived-state-change";

/// Where installed programs are. Neutron's own comes first: `to-neutron` changes where the agent's name leads to.
const INSTALLED: [&str; 3] = [DIVERTED_NAME, AGENT_NAME, DROPIN];

/// A program that can be started as a monitor.
#[derive(Debug)]
pub(crate) struct TargetProgram {
    pub(crate) path: PathBuf,
    pub(crate) kind: MonitorProgram,
    /// Only for vipwatch.
    pub(crate) version: Option<String>,
    pub(crate) file: CheckedProgram,
}

/// Why a file cannot be used as the new program.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TargetProgramError {
    #[error("cannot use the program {}", path.display())]
    Unsafe { path: PathBuf, source: ProgramError },
    #[error("cannot read the program {}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("the program {} does not print its version", .0.display())]
    NoVersion(PathBuf),
}

impl TargetProgramError {
    fn is_missing(&self) -> bool {
        matches!(self, Self::Unsafe { source: ProgramError::Open { source, .. }, .. }
            if source.kind() == io::ErrorKind::NotFound)
    }

    fn into_failure(self) -> SwitchFailure {
        SwitchFailure::environment(ErrorChain(&self)).hint(
            "the file and every directory above it must belong to root and be writable for root only",
        )
    }
}

impl TargetProgram {
    /// Examines the program at `path`.
    pub(crate) fn at(path: &Path) -> Result<Self, TargetProgramError> {
        let file = open(path)?;
        let failed = |source| TargetProgramError::Unreadable { path: path.to_owned(), source };
        let kind = kind_of_file(&file).map_err(failed)?;
        let version = if kind == MonitorProgram::Vipwatch {
            Some(version_of(&file).ok_or_else(|| TargetProgramError::NoVersion(path.to_owned()))?)
        } else {
            None
        };
        Ok(Self { path: path.to_owned(), kind, version, file })
    }

    /// Whether both have the same bytes.
    pub(crate) fn is_same_file(&self, other: &Self) -> bool {
        self.has_bytes_of(other.file.read())
    }

    /// Whether `monitor` runs this program already. A monitor of vipwatch must run the same bytes: an older version is
    /// replaced too. The kernel keeps the file of a running program, even if it was replaced.
    pub(crate) fn is_run_by(&self, monitor: &RunningMonitor) -> bool {
        if self.kind != MonitorProgram::Vipwatch {
            return [MonitorProgram::Python, MonitorProgram::Script].contains(&monitor.program);
        }
        monitor.program == MonitorProgram::Vipwatch && self.has_bytes_of(running_file(monitor))
    }

    fn has_bytes_of(&self, other: io::Result<File>) -> bool {
        let same = other.and_then(|other| has_same_bytes(&self.file.read()?, &other));
        same.unwrap_or(false)
    }
}

/// Opens the program at `path`, if root alone can change it.
pub(crate) fn open(path: &Path) -> Result<CheckedProgram, TargetProgramError> {
    CheckedProgram::open(path, &[])
        .map_err(|source| TargetProgramError::Unsafe { path: path.to_owned(), source })
}

/// The programs of `--program` and the installed ones. The command line of a process names no further one: its user may
/// have written anything there.
#[derive(Debug)]
pub(crate) struct KnownPrograms {
    named: Vec<TargetProgram>,
    installed: Vec<TargetProgram>,
    /// Why an installed program is not among them.
    refused: Option<SwitchFailure>,
}

impl KnownPrograms {
    /// Examines the programs that are named, and those of [`INSTALLED`] that exist. A named one must be safe.
    pub(crate) fn find(named: &[PathBuf]) -> Result<Self, SwitchFailure> {
        let examine =
            |path: &PathBuf| TargetProgram::at(path).map_err(TargetProgramError::into_failure);
        let named = named.iter().map(examine).collect::<Result<_, _>>()?;
        let mut programs = Self { named, installed: Vec::new(), refused: None };
        for path in INSTALLED.map(Path::new) {
            match TargetProgram::at(path) {
                Ok(program) => programs.installed.push(program),
                Err(error) if error.is_missing() => {}
                Err(error) => programs.refused = Some(error.into_failure()),
            }
        }
        Ok(programs)
    }

    fn all(&self) -> impl Iterator<Item = &TargetProgram> {
        self.named.iter().chain(&self.installed)
    }

    /// vipwatch's program.
    pub(crate) fn vipwatch(&self) -> Option<&TargetProgram> {
        self.all().find(|program| program.kind == MonitorProgram::Vipwatch)
    }

    /// Neutron's own program.
    pub(crate) fn neutron(&self) -> Option<&TargetProgram> {
        self.all().find(|program| is_neutrons(program))
    }

    /// vipwatch's program to start: the first one of `--program`, or the installed one under the name that the agent uses
    /// if that name leads to it.
    pub(crate) fn into_vipwatch(self) -> Result<TargetProgram, SwitchFailure> {
        let missing = || {
            SwitchFailure::environment(format!("vipwatch's {PROGRAM} is not installed"))
                .hint("install the package vipwatch-neutron, or name the program with --program")
        };
        self.into_first(|program| program.kind == MonitorProgram::Vipwatch, missing)
    }

    /// Neutron's program to start.
    pub(crate) fn into_neutron(self) -> Result<TargetProgram, SwitchFailure> {
        let missing = || {
            SwitchFailure::environment(format!("Neutron's {PROGRAM} is not in /usr/bin")).hint(
                "if Neutron is installed in a virtual environment, name its program with --program",
            )
        };
        self.into_first(is_neutrons, missing)
    }

    fn into_first(
        self,
        is_wanted: impl Fn(&TargetProgram) -> bool,
        missing: impl FnOnce() -> SwitchFailure,
    ) -> Result<TargetProgram, SwitchFailure> {
        let failure = self.named.first().map(|other| {
            let (path, kind) = (other.path.display(), other.kind.word());
            SwitchFailure::environment(format!("{path} is not the wanted program: it is {kind}"))
        });
        let candidates = if self.named.is_empty() { self.installed } else { self.named };
        let found = candidates.into_iter().find(|program| is_wanted(program));
        found.ok_or_else(|| failure.or(self.refused).unwrap_or_else(missing))
    }

    /// The program of a monitor, to start it again: the same bytes, or else the same kind.
    pub(crate) fn into_way_back(self, monitor: &RunningMonitor) -> Option<TargetProgram> {
        let mut same: Vec<_> = self.named.into_iter().chain(self.installed).collect();
        same.retain(|program| program.kind == monitor.program);
        let exact = same.iter().position(|program| program.is_run_by(monitor)).unwrap_or(0);
        (exact < same.len()).then(|| same.swap_remove(exact))
    }

    /// The version of a running drop-in; `None` for other programs, and if it is none of the known versions.
    pub(crate) fn running_version(&self, monitor: &RunningMonitor) -> Option<&str> {
        let is_run = |program: &&TargetProgram| {
            program.kind == MonitorProgram::Vipwatch && program.is_run_by(monitor)
        };
        self.all().find(is_run)?.version.as_deref()
    }
}

fn is_neutrons(program: &TargetProgram) -> bool {
    [MonitorProgram::Python, MonitorProgram::Script].contains(&program.kind)
}

/// The file that a monitor executes, to compare it.
fn running_file(monitor: &RunningMonitor) -> io::Result<File> {
    let path = format!("/proc/{}/exe", monitor.id.pid);
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    // ORDER: after the file is open: the pid may belong to another process by now.
    if process_table::is_alive(monitor.id) { Ok(file) } else { Err(io::ErrorKind::NotFound.into()) }
}

/// The kind of a program by its first bytes: `#!` names an interpreter, everything else is a binary.
fn kind_of_file(program: &CheckedProgram) -> io::Result<MonitorProgram> {
    let mut head = Vec::new();
    program.read()?.take(256).read_to_end(&mut head)?;
    let head = String::from_utf8_lossy(&head);
    let Some(line) = head.strip_prefix("#!") else { return Ok(MonitorProgram::Vipwatch) };
    let line = line.lines().next().unwrap_or_default();
    let mut words = line.split_whitespace();
    let mut interpreter = words.next().unwrap_or_default();
    if interpreter.ends_with("/env") {
        interpreter = words.next().unwrap_or_default();
    }
    Ok(match interpreter_family(interpreter) {
        Some("python") => MonitorProgram::Python,
        Some(_) => MonitorProgram::Script,
        None => MonitorProgram::Unknown,
    })
}

/// The version that a binary prints: `neutron-keepalived-state-change 1.2.3`.
fn version_of(program: &CheckedProgram) -> Option<String> {
    let mut command = program.command();
    command.arg("--version").stdin(Stdio::null()).stderr(Stdio::null()).env_clear();
    let output = command.output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?;
    let version = text.strip_prefix(PROGRAM)?.trim();
    (!version.is_empty() && !version.contains(char::is_whitespace)).then(|| version.to_owned())
}

/// Whether both are the same file, or regular files with the same bytes. The size of both limits the work.
fn has_same_bytes(mut a: &File, mut b: &File) -> io::Result<bool> {
    let [first, second] = [a.metadata()?, b.metadata()?];
    if (first.dev(), first.ino()) == (second.dev(), second.ino()) {
        return Ok(true);
    }
    if !first.is_file() || !second.is_file() || first.len() != second.len() {
        return Ok(false);
    }
    let [mut left, mut right] = [(); 2].map(|()| vec![0; 64 << 10]);
    let mut rest = first.len();
    while rest > 0 {
        let count = usize::try_from(rest).unwrap_or(usize::MAX).min(left.len());
        a.read_exact(&mut left[..count])?;
        b.read_exact(&mut right[..count])?;
        if left[..count] != right[..count] {
            return Ok(false);
        }
        rest -= count as u64;
    }
    Ok(true)
}
