//! Entries in journald's own words (`systemd.io/JOURNAL_NATIVE_PROTOCOL`).
//!
//! By hand, because the `tracing-journald` crate sends from whoever logs, and waits for journald.

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
use crate::transition::{millis, time_text};

const SOCKET: &str = "/run/systemd/journal/socket";

/// What is longer than that is cut: an entry fits into a datagram.
const LONGEST: usize = 32 << 10;

/// Reaches for journald, without waiting for it.
pub(super) fn connect() -> io::Result<UnixDatagram> {
    UnixDatagram::unbound()?.connect(SOCKET)?;
    UnixDatagram::unbound()
}

/// Sends one entry. By name each time: journald may be another one by now.
pub(super) fn send(socket: &UnixDatagram, entry: &[u8]) -> io::Result<usize> {
    socket.send_to(entry, SOCKET)
}

/// Puts what is said into entries.
pub(super) struct JournaldFields(LogWriter);

impl JournaldFields {
    pub(super) fn new(scribe: LogWriter) -> Self {
        Self(scribe)
    }
}

impl<S: Subscriber> Layer<S> for JournaldFields {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let metadata = event.metadata();
        let mut entry = InstanceEntry::default();
        entry.add("PRIORITY", priority(*metadata.level()));
        entry.add("SYSLOG_IDENTIFIER", "vipwatch");
        entry.add("TARGET", metadata.target());
        // journald's own time is when it took the entry.
        entry.add("SYSLOG_TIMESTAMP", &time_text(millis(SystemTime::now())));
        event.record(&mut entry);
        self.0.put(entry.0);
    }
}

/// As `syslog(3)` has it.
fn priority(level: Level) -> &'static str {
    match level {
        Level::ERROR => "3",
        Level::WARN => "4",
        Level::INFO => "6",
        _ => "7",
    }
}

/// The fields of one entry.
#[derive(Default)]
struct InstanceEntry(Vec<u8>);

impl InstanceEntry {
    fn add(&mut self, name: &str, value: &str) {
        // journald keeps a value of several lines whole.
        let lines: Vec<String> = value.split('\n').map(escape_untrusted).collect();
        let value = lines.join("\n");
        let value = &value.as_bytes()[..value.floor_char_boundary(LONGEST)];
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

impl Visit for InstanceEntry {
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
    fn a_value_of_one_line_is_written_as_it_is_and_others_with_their_length() {
        let mut entry = InstanceEntry::default();
        entry.add("instance", "VI_1");
        entry.add("MESSAGE", "two\nlines");
        assert_eq!(entry.0, b"INSTANCE=VI_1\nMESSAGE\n\x09\0\0\0\0\0\0\0two\nlines\n");
    }

    #[test]
    fn a_bidi_override_in_a_value_is_escaped() {
        let mut entry = InstanceEntry::default();
        entry.add("REASON", "e\u{202e}th0");
        assert_eq!(entry.0, b"REASON=e\\u{202e}th0\n");
    }

    #[test]
    fn what_is_too_long_is_cut_between_letters() {
        let mut entry = InstanceEntry::default();
        entry.add("message", &"ä".repeat(LONGEST));
        let text = String::from_utf8(entry.0).unwrap();
        assert_eq!(text.len(), "MESSAGE=\n".len() + LONGEST);
    }
}
