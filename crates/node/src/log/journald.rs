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
        event.record(&mut entry);
        self.0.put(entry.0);
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

impl Visit for JournaldEntry {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field.name(), value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let mut text = String::new();
        let _ = write!(text, "{value:?}");
        self.add(field.name(), &text);
    }
}

#[cfg(test)]
mod tests {
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
}
