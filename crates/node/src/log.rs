//! Where the log goes: journald with fields, or standard error as text or JSON.

use std::os::unix::fs::MetadataExt;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::LogFormat;

/// How much is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Level {
    /// Changes and problems.
    #[default]
    Info,
    /// Everything.
    Debug,
}

/// Opens the log, once. Without journald it is standard error after all, and said.
pub fn open(format: LogFormat, level: Level) {
    let filter = match level {
        Level::Info => LevelFilter::INFO,
        Level::Debug => LevelFilter::DEBUG,
    };
    let wants_journald = match format {
        LogFormat::Auto => is_read_by_journald(),
        LogFormat::Journald => true,
        LogFormat::Text | LogFormat::Json => false,
    };
    let journald = wants_journald.then(tracing_journald::layer).transpose();
    if let Ok(Some(layer)) = journald {
        let layer = layer.with_syslog_identifier("vipwatch".to_owned()).with_field_prefix(None);
        let _ = tracing_subscriber::registry().with(filter).with(layer).try_init();
        return;
    }
    let lines = tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_max_level(filter)
        .with_target(false)
        .with_ansi(false);
    // A log that is open already stays.
    let _ = match format {
        LogFormat::Json => lines.json().flatten_event(true).try_init(),
        _ => lines.try_init(),
    };
    if let Err(error) = journald {
        tracing::warn!(%error, "journald cannot be reached: the log goes to standard error");
    }
}

/// Whether standard error leads to journald, by its own mark (`JOURNAL_STREAM`).
fn is_read_by_journald() -> bool {
    let Ok(mark) = std::env::var("JOURNAL_STREAM") else { return false };
    let Ok(metadata) = std::fs::metadata("/proc/self/fd/2") else { return false };
    mark == format!("{}:{}", metadata.dev(), metadata.ino())
}
