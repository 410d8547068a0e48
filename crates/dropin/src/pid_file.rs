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

/// The pid in `path`, if it is that of a live monitor of `instance`.
pub(crate) fn running_monitor(path: &Path, instance: &InstanceId) -> Option<u32> {
    let pid = pid_in(path).filter(|pid| *pid != std::process::id())?;
    let command_line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let command_line = String::from_utf8_lossy(&command_line);
    let is_ours = command_line.contains(PROGRAM) && command_line.contains(instance.as_str());
    is_ours.then_some(pid)
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
