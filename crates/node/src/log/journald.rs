// SPDX-License-Identifier: Apache-2.0
//! Log entries in journald's native protocol (`systemd.io/JOURNAL_NATIVE_PROTOCOL`).
//!
//! The `tracing-journald` crate is not used, because it sends from the thread that logs and waits for journald.

use std::fmt::{Debug, Write};
use std::io;
use std::os::unix::net::UnixDatagram;
use std::time::SystemTime;

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use vipwatch_core::escape_untrusted;

use super::writer::LogWriter;
use crate::event::time;

/// The socket of journald.
const SOCKET: &str = "/run/systemd/journal/socket";

/// Maximum length of a value in bytes; longer ones are cut, so that an entry fits into a datagram.
const MAX_VALUE_LENGTH: usize = 32 << 10;

/// Checks that journald's socket accepts a connection, and returns a socket for [`send`].
pub(super) fn connect() -> io::Result<UnixDatagram> {
    UnixDatagram::unbound()?.connect(SOCKET)?;
    UnixDatagram::unbound()
}

/// Sends one entry. The name is resolved each time, because journald may have been restarted.
pub(super) fn send(socket: &UnixDatagram, entry: &[u8]) -> io::Result<usize> {
    socket.send_to(entry, SOCKET)
}

/// Converts events to entries and queues them.
pub(super) struct JournaldFields(LogWriter);

impl JournaldFields {
    pub(super) fn new(writer: LogWriter) -> Self {
        Self(writer)
    }
}

impl<S: Subscriber> Layer<S> for JournaldFields {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let metadata = event.metadata();
        let mut entry = JournaldEntry::default();
        entry.add("PRIORITY", priority(*metadata.level()));
        entry.add("SYSLOG_IDENTIFIER", "vipwatch");
        entry.add("TARGET", metadata.target());
        // The time of journald is that of its receipt, which may be later.
        entry.add("SYSLOG_TIMESTAMP", &time(SystemTime::now()).to_string());
        let mut fields = EventFields { entry, message: String::new(), suffix: String::new() };
        event.record(&mut fields);
        self.0.put(fields.finish());
    }
}

/// The priority number of `syslog(3)`.
fn priority(level: Level) -> &'static str {
    match level {
        Level::ERROR => "3",
        Level::WARN => "4",
        Level::INFO => "6",
        _ => "7",
    }
}

/// The fields of one entry, as bytes of the protocol.
#[derive(Default)]
struct JournaldEntry(Vec<u8>);

impl JournaldEntry {
    fn add(&mut self, name: &str, value: &str) {
        // Line breaks stay: journald accepts a value of several lines.
        let lines: Vec<String> = value.split('\n').map(escape_untrusted).collect();
        let value = lines.join("\n");
        let value = &value.as_bytes()[..value.floor_char_boundary(MAX_VALUE_LENGTH)];
        self.0.extend(name.bytes().map(|byte| byte.to_ascii_uppercase()));
        if value.contains(&b'\n') {
            self.0.push(b'\n');
            self.0.extend((value.len() as u64).to_le_bytes());
        } else {
            self.0.push(b'=');
        }
        self.0.extend(value);
        self.0.push(b'\n');
    }
}

/// Collects the fields of one event. The message gets them too, as in the text log, because `journalctl` shows only the
/// message.
struct EventFields {
    entry: JournaldEntry,
    message: String,
    /// ` name=value` for each field.
    suffix: String,
}

impl EventFields {
    /// Adds `value` as a field, and `shown` to the message.
    fn add(&mut self, field: &Field, value: &str, shown: &str) {
        if field.name() == "message" {
            value.clone_into(&mut self.message);
            return;
        }
        self.entry.add(field.name(), value);
        // A line break stays in the field. In the message it would begin a line of its own.
        let _ = write!(self.suffix, " {}={}", field.name(), escape_untrusted(shown));
    }

    /// The bytes of the entry.
    fn finish(mut self) -> Vec<u8> {
        self.message.push_str(&self.suffix);
        self.entry.add("MESSAGE", &self.message);
        self.entry.0
    }
}

impl Visit for EventFields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value, &format!("{value:?}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let value = format!("{value:?}");
        self.add(field, &value, &value);
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::Registry;
    use tracing_subscriber::layer::SubscriberExt;

    use super::super::writer::LogDestination;
    use super::*;

    #[test]
    fn a_value_of_several_lines_is_written_with_its_length() {
        let mut entry = JournaldEntry::default();
        entry.add("instance", "VI_1");
        entry.add("MESSAGE", "two\nlines");
        assert_eq!(entry.0, b"INSTANCE=VI_1\nMESSAGE\n\x09\0\0\0\0\0\0\0two\nlines\n");
    }

    #[test]
    fn a_bidi_override_in_a_value_is_escaped() {
        let mut entry = JournaldEntry::default();
        entry.add("REASON", "e\u{202e}th0");
        assert_eq!(entry.0, b"REASON=e\\u{202e}th0\n");
    }

    #[test]
    fn a_long_value_is_cut_between_characters() {
        let mut entry = JournaldEntry::default();
        entry.add("message", &"ä".repeat(MAX_VALUE_LENGTH));
        let text = String::from_utf8(entry.0).unwrap();
        assert_eq!(text.len(), "MESSAGE=\n".len() + MAX_VALUE_LENGTH);
    }

    /// The entries that `log` queues for journald.
    fn entries(log: impl FnOnce()) -> String {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("entries");
        let destination = LogDestination::Stderr(std::fs::File::create(&file).unwrap());
        let writer = LogWriter::start(destination).unwrap();
        let subscriber = Registry::default().with(JournaldFields::new(writer.clone()));
        tracing::subscriber::with_default(subscriber, log);
        assert!(writer.finish());
        std::fs::read_to_string(&file).unwrap()
    }

    #[test]
    fn the_message_has_the_fields_as_the_text_log_has_them() {
        let text = entries(|| {
            let (instance, error) = ("web", "cannot connect\nhint: start it");
            tracing::info!(seq = 7, %instance, to = "primary", error, "instance became primary");
        });
        assert!(text.contains("\nINSTANCE=web\n") && text.contains("\nTO=primary\n"), "{text}");
        assert!(
            text.contains("\nSEQ=7\n") && text.contains("cannot connect\nhint: start it\n"),
            "{text}"
        );
        let message = r#"instance became primary seq=7 instance=web to="primary" error="cannot connect\nhint: start it""#;
        assert!(text.ends_with(&format!("\nMESSAGE={message}\n")), "{text}");
    }

    #[test]
    fn the_message_of_an_event_without_fields_is_unchanged() {
        let text = entries(|| tracing::warn!("cannot reach journald"));
        assert!(text.ends_with("\nMESSAGE=cannot reach journald\n"), "{text}");
        assert_eq!(text.matches("MESSAGE=").count(), 1);
    }
}
