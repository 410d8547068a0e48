// SPDX-License-Identifier: Apache-2.0
//! Turns the process into a daemon, and reports to its caller whether the start succeeded.
//!
//! ```text
//!   foreground ──fork──▶ intermediate ──fork──▶ daemon
//!       │                 setsid, exits           │ takes the lock, writes the pid file
//!       │ ◀─────────── ready, or the failure ─────┤
//!    exits 0, or prints the failure               └─ runs the event loop
//! ```
//!
//! Agents up to 28 wait until the foreground process has ended and every copy of their
//! pipes is closed, and use its exit code; agents from 29 read the pid file.
//! A foreground process that ends when the daemon is ready serves both.

use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::time::Duration;

use vipwatch_linux::process::{self, ForkSide};

use crate::failure::{Code, Failure};

/// Whether the monitor becomes a daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunMode {
    /// Fork twice; the caller's process ends when the daemon is ready.
    Daemon,
    /// Do not fork.
    Foreground,
}

/// Calls `prepare`, then `run`, in the process that `mode` asks for. The daemon process exits inside this function; only
/// the foreground process returns.
///
/// The foreground process returns the result of `prepare`. The result of `run` becomes the exit code of the daemon.
pub(crate) fn launch<T>(
    mode: RunMode,
    prepare: impl FnOnce() -> Result<T, Failure>,
    run: impl FnOnce(T) -> Result<(), Failure>,
) -> Result<(), Failure> {
    if mode == RunMode::Foreground {
        return run(prepare()?);
    }
    let failed = |error: io::Error| {
        Failure::new(Code::Environment, format!("cannot start a daemon: {error}"))
    };
    let (reader, writer) = io::pipe().map_err(failed)?;
    match process::fork().map_err(failed)? {
        ForkSide::Parent(mut intermediate) => {
            drop(writer);
            let result = read_start_result(reader);
            intermediate.wait(Duration::from_secs(1));
            result
        }
        ForkSide::Child => {
            drop(reader);
            match process::detach().and_then(|()| process::fork()) {
                // Dropping the handle would end the daemon, which must outlive this process.
                Ok(ForkSide::Parent(daemon)) => std::mem::forget(daemon),
                Ok(ForkSide::Child) => process::exit_now(daemon(writer, prepare, run)),
                Err(error) => send_failure(writer, &failed(error)),
            }
            process::exit_now(0)
        }
    }
}

/// Prepares and runs the daemon. Returns its exit code.
fn daemon<T>(
    mut caller: PipeWriter,
    prepare: impl FnOnce() -> Result<T, Failure>,
    run: impl FnOnce(T) -> Result<(), Failure>,
) -> u8 {
    let silenced = process::silence_standard_files()
        .map_err(|error| Failure::new(Code::of(&error), format!("/dev/null: {error}")));
    match silenced.and_then(|()| prepare()) {
        Ok(prepared) => {
            // If the foreground process was killed meanwhile, the write fails and no process waits for it.
            let _ = caller.write_all(&[0]);
            drop(caller);
            run(prepared).map_or_else(|failure| failure.code as u8, |()| 0)
        }
        Err(failure) => {
            let code = failure.code as u8;
            send_failure(caller, &failure);
            code
        }
    }
}

/// Sends the exit code, the message and the hint to the foreground process.
fn send_failure(mut caller: PipeWriter, failure: &Failure) {
    let hint = failure.hint.as_deref().unwrap_or_default();
    let text = format!("{}\0{hint}", failure.message);
    let _ = caller.write_all(&[&[failure.code as u8], text.as_bytes()].concat());
}

/// Reads the result of the start from the daemon: a zero byte, or a failure.
fn read_start_result(mut daemon: PipeReader) -> Result<(), Failure> {
    let mut bytes = Vec::new();
    let _ = daemon.read_to_end(&mut bytes);
    let Some((code, text)) = bytes.split_first() else {
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
