//! Where the log goes: journald with fields, or standard error as text or JSON.
//!
//! ```text
//!   tracing::info!(…) ── put into words ──▶ Scribe: a bounded queue ──▶ a thread ──▶ journald, or stderr
//!     whoever says it                         full: counted, and said later            who may be slow
//! ```
//!
//! Whoever says something never waits for whoever reads it. A thousand routers that fail over at once say
//! more than journald takes at once, and a journald that is stuck takes nothing.

mod journald;
mod writer;

use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use vipwatch_core::{escape_untrusted, escape_untrusted_json};

use self::journald::JournaldFields;
use self::writer::{LogDestination, LogWriter};
use crate::config::LogFormat;

/// How much is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogLevel {
    /// Changes and problems.
    #[default]
    Info,
    /// Everything.
    Debug,
}

/// The log of this process, for [`flush`].
static OPEN: OnceLock<LogWriter> = OnceLock::new();

/// Waits a moment until what was said is written; false if it is not, or if no log is open.
pub(crate) fn flush() -> bool {
    OPEN.get().is_some_and(LogWriter::finish)
}

/// An open log. What was said is written when this is dropped, if somebody takes it.
#[derive(Debug)]
pub struct NodeLog(LogWriter);

impl Drop for NodeLog {
    fn drop(&mut self) {
        self.0.finish();
    }
}

/// Opens the log, once, after signals are held: it has a thread. Without journald it is standard error
/// after all, and said.
pub fn open(format: LogFormat, level: LogLevel) -> std::io::Result<NodeLog> {
    let filter = match level {
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
    };
    let wants_journald = match format {
        LogFormat::Auto => is_read_by_journald(),
        LogFormat::Journald => true,
        LogFormat::Text | LogFormat::Json => false,
    };
    let journald = wants_journald.then(journald::connect).transpose();
    if let Ok(Some(socket)) = journald {
        let scribe = LogWriter::start(LogDestination::Journald(socket))?;
        let _ = OPEN.set(scribe.clone());
        let layer = JournaldFields::new(scribe.clone());
        let _ = tracing_subscriber::registry().with(filter).with(layer).try_init();
        return Ok(NodeLog(scribe));
    }
    let scribe = LogWriter::start(LogDestination::stderr()?)?;
    let _ = OPEN.set(scribe.clone());
    let escape = if format == LogFormat::Json { escape_untrusted_json } else { escape_untrusted };
    let lines = scribe.clone();
    let builder = tracing_subscriber::fmt()
        .with_max_level(filter)
        .with_target(false)
        .with_ansi(false)
        .with_writer(move || EscapedLines { scribe: lines.clone(), escape });
    // A log that is open already stays.
    let _ = match format {
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
        _ => builder.try_init(),
    };
    if let Err(error) = journald {
        tracing::warn!(%error, "journald cannot be reached: the log goes to standard error");
    }
    Ok(NodeLog(scribe))
}

/// Writes lines in which values from outside are escaped: one event is one line.
struct EscapedLines {
    scribe: LogWriter,
    escape: fn(&str) -> String,
}

impl Write for EscapedLines {
    /// Each call is one event, as `tracing_subscriber::fmt` writes them.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let line = (self.escape)(text.trim_end_matches('\n'));
        self.scribe.put(format!("{line}\n").into_bytes());
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whether standard error leads to journald, by its own mark (`JOURNAL_STREAM`).
fn is_read_by_journald() -> bool {
    let Ok(mark) = std::env::var("JOURNAL_STREAM") else { return false };
    let Ok(metadata) = std::fs::metadata("/proc/self/fd/2") else { return false };
    mark == format!("{}:{}", metadata.dev(), metadata.ino())
}
