// SPDX-License-Identifier: Apache-2.0
//! The programs that monitors can be switched to, as files: where they are, which kind and version they have, and whether
//! root may run them.

use std::fs::Metadata;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::command_line::{PROGRAM, interpreter_family};
use crate::failure::SwitchFailure;
use crate::monitor::{MonitorProgram, RunningMonitor};

/// The name under which the agent starts a monitor.
pub(crate) const AGENT_NAME: &str = "/usr/bin/neutron-keepalived-state-change";
/// Neutron's program while the package vipwatch-neutron is installed.
pub(crate) const DIVERTED_NAME: &str = "/usr/bin/neutron-keepalived-state-change.neutron";
/// The drop-in of the package vipwatch-neutron.
const DROPIN: &str = "/usr/lib/vipwatch/neutron-keepalived-state-change";

/// A program that can be started as a monitor.
#[derive(Debug, Clone)]
pub(crate) struct TargetProgram {
    pub(crate) path: PathBuf,
    pub(crate) kind: MonitorProgram,
    /// Only for vipwatch.
    pub(crate) version: Option<String>,
}

/// Why a file cannot be used as the new program.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TargetProgramError {
    #[error("cannot examine the program {}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("the program {} is not a regular file that can be executed", .0.display())]
    NotExecutable(PathBuf),
    #[error("the program {} can be changed by other users than root", .0.display())]
    Writable(PathBuf),
    #[error("the program {} does not print its version", .0.display())]
    NoVersion(PathBuf),
}

impl TargetProgram {
    /// The installed vipwatch, under the name that the agent uses if that name leads to it.
    pub(crate) fn vipwatch(chosen: Option<&Path>) -> Result<Self, SwitchFailure> {
        if let Some(path) = chosen {
            return Self::of_kind(path, &[MonitorProgram::Vipwatch]);
        }
        for path in [AGENT_NAME, DROPIN].map(Path::new) {
            if let Ok(program) = Self::at(path)
                && program.kind == MonitorProgram::Vipwatch
            {
                return Ok(program);
            }
        }
        Err(SwitchFailure::environment(format!("vipwatch's {PROGRAM} is not installed"))
            .hint("install the package vipwatch-neutron, or name the program with --program"))
    }

    /// Neutron's own program.
    pub(crate) fn neutron(chosen: Option<&Path>) -> Result<Self, SwitchFailure> {
        let wanted = [MonitorProgram::Python, MonitorProgram::Script];
        if let Some(path) = chosen {
            return Self::of_kind(path, &wanted);
        }
        for path in [DIVERTED_NAME, AGENT_NAME].map(Path::new) {
            if let Ok(program) = Self::at(path)
                && wanted.contains(&program.kind)
            {
                return Ok(program);
            }
        }
        Err(SwitchFailure::environment(format!("Neutron's {PROGRAM} is not in /usr/bin")).hint(
            "if Neutron is installed in a virtual environment, name its program with --program",
        ))
    }

    fn of_kind(path: &Path, wanted: &[MonitorProgram]) -> Result<Self, SwitchFailure> {
        let program = Self::at(path).map_err(|error| {
            let chain = vipwatch_core::ErrorChain(&error);
            SwitchFailure::environment(chain.to_string())
                .hint("the file must belong to root and be writable for root only")
        })?;
        if wanted.contains(&program.kind) {
            return Ok(program);
        }
        let (path, kind) = (path.display(), program.kind.word());
        Err(SwitchFailure::environment(format!("{path} is not the wanted program: it is {kind}")))
    }

    /// Examines the program at `path`.
    pub(crate) fn at(path: &Path) -> Result<Self, TargetProgramError> {
        let failed = |source| TargetProgramError::Unreadable { path: path.to_owned(), source };
        let metadata = std::fs::metadata(path).map_err(failed)?;
        if !metadata.is_file() || metadata.mode() & 0o111 == 0 {
            return Err(TargetProgramError::NotExecutable(path.to_owned()));
        }
        if !is_trusted(&metadata) {
            return Err(TargetProgramError::Writable(path.to_owned()));
        }
        let kind = kind_of_file(path).map_err(failed)?;
        let version = if kind == MonitorProgram::Vipwatch {
            Some(version_of(path).ok_or_else(|| TargetProgramError::NoVersion(path.to_owned()))?)
        } else {
            None
        };
        Ok(Self { path: path.to_owned(), kind, version })
    }

    /// Whether both have the same bytes.
    pub(crate) fn is_same_file(&self, other: &Self) -> bool {
        is_same_content(&self.path, &other.path)
    }

    /// Whether `monitor` runs this program already. A monitor of vipwatch must run the same bytes: an older version is
    /// replaced too. The kernel keeps the file of a running program, even if it was replaced.
    pub(crate) fn is_run_by(&self, monitor: &RunningMonitor) -> bool {
        if self.kind != MonitorProgram::Vipwatch {
            return [MonitorProgram::Python, MonitorProgram::Script].contains(&monitor.program);
        }
        monitor.program == MonitorProgram::Vipwatch
            && is_same_content(&running_file(monitor), &self.path)
    }
}

/// The version of a running drop-in; `None` for other programs, or if its file is not trusted.
pub(crate) fn running_version(monitor: &RunningMonitor) -> Option<String> {
    let path = running_file(monitor);
    let metadata = std::fs::metadata(&path).ok()?;
    if monitor.program != MonitorProgram::Vipwatch || !is_trusted(&metadata) {
        return None;
    }
    version_of(&path)
}

fn running_file(monitor: &RunningMonitor) -> PathBuf {
    format!("/proc/{}/exe", monitor.id.pid).into()
}

/// Whether only root can change the file.
fn is_trusted(metadata: &Metadata) -> bool {
    metadata.uid() == 0 && metadata.mode() & 0o022 == 0
}

/// The kind of a program by its first bytes: `#!` names an interpreter, everything else is a binary.
fn kind_of_file(path: &Path) -> io::Result<MonitorProgram> {
    let mut head = Vec::new();
    std::fs::File::open(path)?.take(256).read_to_end(&mut head)?;
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
fn version_of(path: &Path) -> Option<String> {
    let mut command = Command::new(path);
    command.arg("--version").stdin(Stdio::null()).stderr(Stdio::null()).env_clear();
    let output = command.output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?;
    let version = text.strip_prefix(PROGRAM)?.trim();
    (!version.is_empty() && !version.contains(char::is_whitespace)).then(|| version.to_owned())
}

fn is_same_content(a: &Path, b: &Path) -> bool {
    use vipwatch_linux::process_table::file_identity;
    let is_same_file = match (file_identity(a), file_identity(b)) {
        (Ok(a), Ok(b)) => a == b,
        _ => false,
    };
    is_same_file || matches!((std::fs::read(a), std::fs::read(b)), (Ok(a), Ok(b)) if a == b)
}
