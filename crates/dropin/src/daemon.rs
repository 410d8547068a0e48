//! Leaving the caller, without leaving it in the dark.
//!
//! ```text
//!   foreground ──fork──▶ intermediate ──fork──▶ daemon
//!       │                 setsid, exits           │ takes the lock, writes the pid file
//!       │ ◀──────────── ready, or why not ────────┤
//!    exits 0, or says why not                     └─ watches
//! ```
//!
//! Agents up to 28 wait until the foreground process has ended and every copy of their
//! pipes is closed, and take its exit code for ours; agents from 29 look at the pid file.
//! Both are served by a foreground process that ends when the daemon is ready.

use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::time::Duration;

use vipwatch_linux::process::{self, ForkSide};

use crate::failure::{Code, Failure};

/// How to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunMode {
    /// Fork twice; the caller's process ends when the daemon is ready.
    Daemon,
    /// Stay.
    Foreground,
}

/// Prepares and lives as `mode` says. Returns in the foreground only; a daemon ends here.
///
/// The caller of the program learns how `prepare` went; `live` is on its own.
pub(crate) fn launch<T>(
    mode: RunMode,
    prepare: impl FnOnce() -> Result<T, Failure>,
    live: impl FnOnce(T) -> Result<(), Failure>,
) -> Result<(), Failure> {
    if mode == RunMode::Foreground {
        return live(prepare()?);
    }
    let failed = |error: io::Error| {
        Failure::new(Code::Environment, format!("cannot start a daemon: {error}"))
    };
    let (reader, writer) = io::pipe().map_err(failed)?;
    match process::fork().map_err(failed)? {
        ForkSide::Parent(mut intermediate) => {
            drop(writer);
            let verdict = verdict(reader);
            intermediate.wait(Duration::from_secs(1));
            verdict
        }
        ForkSide::Child => {
            drop(reader);
            match process::detach().and_then(|()| process::fork()) {
                // It is meant to outlive us.
                Ok(ForkSide::Parent(daemon)) => std::mem::forget(daemon),
                Ok(ForkSide::Child) => process::exit_now(daemon(writer, prepare, live)),
                Err(error) => refuse(writer, &failed(error)),
            }
            process::exit_now(0)
        }
    }
}

/// The daemon's life, to its exit code.
fn daemon<T>(
    mut caller: PipeWriter,
    prepare: impl FnOnce() -> Result<T, Failure>,
    live: impl FnOnce(T) -> Result<(), Failure>,
) -> u8 {
    let silenced = process::silence_standard_files()
        .map_err(|error| Failure::new(Code::of(&error), format!("/dev/null: {error}")));
    match silenced.and_then(|()| prepare()) {
        Ok(prepared) => {
            // It was killed meanwhile? Then nobody waits.
            let _ = caller.write_all(&[0]);
            drop(caller);
            live(prepared).map_or_else(|failure| failure.code as u8, |()| 0)
        }
        Err(failure) => {
            let code = failure.code as u8;
            refuse(caller, &failure);
            code
        }
    }
}

fn refuse(mut caller: PipeWriter, failure: &Failure) {
    let hint = failure.hint.as_deref().unwrap_or_default();
    let text = format!("{}\0{hint}", failure.message);
    let _ = caller.write_all(&[&[failure.code as u8], text.as_bytes()].concat());
}

/// What the daemon said.
fn verdict(mut daemon: PipeReader) -> Result<(), Failure> {
    let mut said = Vec::new();
    let _ = daemon.read_to_end(&mut said);
    let Some((code, text)) = said.split_first() else {
        return Err(Failure::new(Code::Defect, "the daemon ended before it was ready"));
    };
    if *code == 0 {
        return Ok(());
    }
    let text = String::from_utf8_lossy(text);
    let (message, hint) = text.split_once('\0').unwrap_or((&text, ""));
    let failure = Failure::new(Code::from_number(*code), message);
    Err(if hint.is_empty() { failure } else { failure.hint(hint) })
}
