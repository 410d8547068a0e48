// SPDX-License-Identifier: Apache-2.0
//! The log: journald with fields, or standard error as text or JSON.
//!
//! ```text
//!   tracing::info!(…) ──▶ formatted ──▶ LogWriter: bounded queue ──▶ thread "log" ──▶ journald or stderr
//!     the calling thread                  full: counted, logged later                   may be slow
//! ```
//!
//! A thread that logs never waits for the reader of the log. A thousand routers that fail over at once write
//! more than journald accepts at once, and a journald that hangs accepts nothing.

mod instance_fields;
mod journald;
mod writer;

use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, reload};
use vipwatch_core::{escape_untrusted, escape_untrusted_json};

pub(crate) use self::instance_fields::{addresses, netns_name};
use self::journald::JournaldFields;
pub use self::writer::LogQueue;
use self::writer::{LogDestination, LogWriter};
use crate::config::LogFormat;

/// The lowest level that is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogLevel {
    /// Transitions and problems.
    #[default]
    Info,
    /// Also each delivery and each decision.
    Debug,
}

/// The log of this process, for [`flush`].
static CURRENT: OnceLock<LogWriter> = OnceLock::new();

/// The lowest level that is logged, for [`toggle_debug`].
static FILTER: OnceLock<reload::Handle<LevelFilter, Registry>> = OnceLock::new();

fn filter_of(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
    }
}

/// Begins to log debug messages, or ends it (SIGUSR2).
pub fn toggle_debug() {
    let Some(filter) = FILTER.get() else { return };
    let is_debug = filter.with_current(|level| *level == LevelFilter::DEBUG).unwrap_or(false);
    let level = if is_debug { LogLevel::Info } else { LogLevel::Debug };
    if let Err(error) = filter.reload(filter_of(level)) {
        tracing::error!(%error, "cannot change the level of the log");
        return;
    }
    match level {
        LogLevel::Debug => tracing::info!("debug messages are logged until the next SIGUSR2"),
        LogLevel::Info => tracing::info!("debug messages are no longer logged"),
    }
}

/// Waits up to one second until the queue is written; false if it is not, or if no log is open.
pub(crate) fn flush() -> bool {
    CURRENT.get().is_some_and(LogWriter::finish)
}

/// The queue of the log; empty if no log is open.
pub(crate) fn queue() -> LogQueue {
    CURRENT.get().map(LogWriter::queue).unwrap_or_default()
}

/// An open log. Dropping it waits up to one second until the queue is written.
#[derive(Debug)]
pub struct NodeLog(LogWriter);

impl Drop for NodeLog {
    fn drop(&mut self) {
        self.0.finish();
    }
}

/// Opens the log of this process. If journald cannot be reached, the log goes to standard error, with a
/// warning. Call once, after signals are blocked, because it starts a thread.
pub fn open(format: LogFormat, level: LogLevel) -> std::io::Result<NodeLog> {
    let (filter, handle) = reload::Layer::new(filter_of(level));
    let _ = FILTER.set(handle);
    let wants_journald = match format {
        LogFormat::Auto => is_read_by_journald(),
        LogFormat::Journald => true,
        LogFormat::Text | LogFormat::Json => false,
    };
    let journald = wants_journald.then(journald::connect).transpose();
    if let Ok(Some(socket)) = journald {
        let writer = LogWriter::start(LogDestination::Journald(socket))?;
        let _ = CURRENT.set(writer.clone());
        let layer = JournaldFields::new(writer.clone());
        let _ = tracing_subscriber::registry().with(filter).with(layer).try_init();
        return Ok(NodeLog(writer));
    }
    let writer = LogWriter::start(LogDestination::stderr()?)?;
    let _ = CURRENT.set(writer.clone());
    let escape = if format == LogFormat::Json { escape_untrusted_json } else { escape_untrusted };
    let lines = writer.clone();
    let layer = tracing_subscriber::fmt::layer()
        .with_target(false)
        .with_ansi(false)
        .with_writer(move || EscapedLines { writer: lines.clone(), escape });
    // The call fails if a log is already open, which then stays.
    let _ = match format {
        LogFormat::Json => {
            let layer = layer.json().flatten_event(true);
            tracing_subscriber::registry().with(filter).with(layer).try_init()
        }
        _ => tracing_subscriber::registry().with(filter).with(layer).try_init(),
    };
    if let Err(error) = journald {
        tracing::warn!(%error, "cannot reach journald, logging to standard error");
    }
    Ok(NodeLog(writer))
}

/// Opens the log of a process that must not have another thread, because it forks: text to standard error, which may
/// block.
pub fn open_without_thread(level: LogLevel) {
    let filter = match level {
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
    };
    let builder = tracing_subscriber::fmt().with_max_level(filter).with_target(false);
    let builder = builder.with_ansi(false).with_writer(|| EscapedStderr);
    // The journal has a time of its own.
    let _ =
        if is_read_by_journald() { builder.without_time().try_init() } else { builder.try_init() };
}

/// Writes each event to standard error at once.
struct EscapedStderr;

impl Write for EscapedStderr {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let line = format!("{}\n", escape_untrusted(text.trim_end_matches('\n')));
        io::stderr().write_all(line.as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Formats one event as one line: control characters in values from outside are escaped.
struct EscapedLines {
    writer: LogWriter,
    escape: fn(&str) -> String,
}

impl Write for EscapedLines {
    /// `tracing_subscriber::fmt` calls this once for each event.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let line = (self.escape)(text.trim_end_matches('\n'));
        self.writer.put(format!("{line}\n").into_bytes());
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whether standard error leads to journald: systemd sets `JOURNAL_STREAM` to its device and inode.
fn is_read_by_journald() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else { return false };
    let Ok(metadata) = std::fs::metadata("/proc/self/fd/2") else { return false };
    stream == format!("{}:{}", metadata.dev(), metadata.ino())
}
