// SPDX-License-Identifier: Apache-2.0
//! Writes log lines in oslo.log's format, to a file and to syslog; in the foreground to standard error as well.
//!
//! The lines also go to syslog because the file is in the router's directory, which is deleted with the router
//! (Neutron bug 1635629). This module escapes control characters, so that one message is one line.

mod file;
mod stderr;

use std::fmt;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use vipwatch_core::escape_untrusted_within;
use vipwatch_linux::clock::{LocalTime, local_time, local_time_of};

use self::file::LogFile;
use crate::args::PROGRAM;
use crate::daemon::RunMode;

/// The name of the logger in each line, as in Neutron's Python monitors.
const LOGGER: &str = "neutron.agent.l3.keepalived_state_change";

/// Maximum length of a line in bytes. Appends of up to this size do not mix in a file that several monitors share.
const MAX_LINE_BYTES: usize = 4000;

/// The severity of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "UPPERCASE", const_into_str)]
pub(crate) enum Level {
    Debug,
    Info,
    Warning,
    Error,
}

impl Level {
    /// The `LOG_*` severity of syslog.
    fn severity(self) -> u8 {
        match self {
            Self::Debug => 7,
            Self::Info => 6,
            Self::Warning => 4,
            Self::Error => 3,
        }
    }
}

/// A syslog facility, as its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Facility(u8);

impl Facility {
    pub(crate) const USER: Self = Self(1);

    /// Finds a facility by its name, with or without `LOG_`; `None` if it is unknown.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        let upper = name.to_ascii_uppercase();
        let bare = upper.strip_prefix("LOG_").unwrap_or(&upper);
        if let Some(number) = bare.strip_prefix("LOCAL") {
            return number
                .parse()
                .ok()
                .filter(|local| *local < 8)
                .map(|local: u8| Self(16 + local));
        }
        let known = [
            ("KERN", 0),
            ("USER", 1),
            ("MAIL", 2),
            ("DAEMON", 3),
            ("AUTH", 4),
            ("SYSLOG", 5),
            ("LPR", 6),
            ("NEWS", 7),
            ("UUCP", 8),
            ("CRON", 9),
            ("AUTHPRIV", 10),
            ("FTP", 11),
        ];
        known.iter().find(|(name, _)| *name == bare).map(|(_, number)| Self(*number))
    }
}

/// How many lines are buffered between two flushes. Further lines are dropped and counted.
const MAX_PENDING_LINES: usize = 512;

/// A buffered line.
#[derive(Debug)]
struct Line {
    level: Level,
    /// Time since the Unix epoch.
    at: Duration,
    text: String,
}

/// The log of a monitor: a file, syslog, and standard error in the foreground.
///
/// ORDER: [`MonitorLog::line`] only buffers a line and [`MonitorLog::flush`] writes it, so that the monitor acts on an
/// event before it spends time on the log.
#[derive(Debug)]
pub(crate) struct MonitorLog {
    path: PathBuf,
    /// `None` while the file cannot be opened.
    file: Option<LogFile>,
    syslog: Option<Syslog>,
    /// A monitor in the foreground writes its lines to standard error, too.
    mode: RunMode,
    is_debug: bool,
    pending: Vec<Line>,
    /// How many lines were dropped since the last flush because `pending` was full.
    dropped: u32,
}

impl MonitorLog {
    /// Opens the log. It must be called after the process has become the user that writes the file. If the file cannot
    /// be opened, the error goes to syslog and every flush tries again; the monitor runs without the file.
    pub(crate) fn open(
        path: PathBuf,
        syslog: Option<Facility>,
        mode: RunMode,
        is_debug: bool,
    ) -> Self {
        let syslog = syslog.and_then(Syslog::open);
        let pending = Vec::new();
        let mut log = Self { path, file: None, syslog, mode, is_debug, pending, dropped: 0 };
        log.reopen();
        log
    }

    /// Opens the file again by its name, after log rotation has renamed the old one.
    pub(crate) fn reopen(&mut self) {
        self.flush();
        match LogFile::open(&self.path) {
            Ok(file) => self.file = Some(file),
            Err(error) => {
                self.file = None;
                let message = format!("cannot open log file {}: {error}", self.path.display());
                if let Some(syslog) = &self.syslog {
                    syslog.send(Level::Error, local_time(), &one_line(&message));
                }
                if self.mode == RunMode::Foreground {
                    let text = one_line(&message);
                    let line = file_line(local_time(), std::process::id(), Level::Error, &text);
                    stderr::write_line(&line);
                }
            }
        }
    }

    /// Buffers one line for the next [`Self::flush`].
    // LIMIT: a defect that aborts the program loses the buffered lines.
    pub(crate) fn line(&mut self, level: Level, message: fmt::Arguments<'_>) {
        if level == Level::Debug && !self.is_debug {
            return;
        }
        if self.pending.len() >= MAX_PENDING_LINES {
            self.dropped = self.dropped.saturating_add(1);
            return;
        }
        let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.pending.push(Line { level, at, text: one_line(&message.to_string()) });
    }

    /// Writes the buffered lines.
    pub(crate) fn flush(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        self.follow_rotation();
        if self.dropped > 0 {
            let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let text = format!("{} log lines were dropped: the buffer was full", self.dropped);
            self.pending.push(Line { level: Level::Warning, at, text });
            self.dropped = 0;
        }
        let mut lines = String::new();
        for Line { level, at, text } in self.pending.drain(..) {
            let time = local_time_of(at);
            if let Some(syslog) = &self.syslog {
                syslog.send(level, time, &text);
            }
            let line = file_line(time, std::process::id(), level, &text);
            if self.mode == RunMode::Foreground {
                stderr::write_line(&line);
            }
            lines.push_str(&line);
        }
        if let Some(file) = &mut self.file {
            // A write error, such as a full disk, must not stop the monitor, and there is no other file to log it to.
            let _ = file.write(lines.as_bytes());
        }
    }

    /// Opens a new file if the old one was renamed or removed.
    fn follow_rotation(&mut self) {
        if !self.file.as_ref().is_some_and(|file| file.is_at(&self.path)) {
            self.file = LogFile::open(&self.path).ok();
        }
    }
}

impl Drop for MonitorLog {
    fn drop(&mut self) {
        self.flush();
    }
}

/// Formats a line as `asctime.msecs process levelname name [-] message`, the default of oslo.log.
fn file_line(time: LocalTime, pid: u32, level: Level, text: &str) -> String {
    let LocalTime { year, month, day, hour, minute, second, millisecond } = time;
    let level = level.into_str();
    format!(
        "{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{millisecond:03} \
         {pid} {level} {LOGGER} [-] {text}\n"
    )
}

/// Escapes `message` to one line of at most about [`MAX_LINE_BYTES`] bytes.
pub(crate) fn one_line(message: &str) -> String {
    escape_untrusted_within(message, MAX_LINE_BYTES)
}

/// The connection to the local syslog daemon.
#[derive(Debug)]
struct Syslog {
    socket: UnixDatagram,
    facility: Facility,
}

impl Syslog {
    fn open(facility: Facility) -> Option<Self> {
        let socket = UnixDatagram::unbound().ok()?;
        // If the syslog daemon hangs, lines are lost; the monitor does not block.
        socket.set_nonblocking(true).ok()?;
        Some(Self { socket, facility })
    }

    /// Sends one line in the format of `syslog(3)`: priority, time, program and pid.
    fn send(&self, level: Level, time: LocalTime, text: &str) {
        const MONTHS: [&str; 12] =
            ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
        let priority = self.facility.0 * 8 + level.severity();
        let LocalTime { month, day, hour, minute, second, .. } = time;
        let month = usize::try_from(month - 1).ok().and_then(|at| MONTHS.get(at)).unwrap_or(&"Jan");
        let pid = std::process::id();
        let line = format!(
            "<{priority}>{month} {day:2} {hour:02}:{minute:02}:{second:02} {PROGRAM}[{pid}]: \
             {} {LOGGER} [-] {text}",
            level.into_str()
        );
        // Sent to the path each time, because the daemon may have been restarted. Without a daemon, lines are lost.
        let _ = self.socket.send_to(line.as_bytes(), "/dev/log");
    }
}

/// Sends `message` to syslog, for failures that happen before the log is open.
pub(crate) fn to_syslog_only(message: &str) {
    if let Some(syslog) = Syslog::open(Facility::USER) {
        syslog.send(Level::Error, local_time(), &one_line(message));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_format_of_oslo_log() {
        let time = LocalTime {
            year: 2026,
            month: 1,
            day: 2,
            hour: 3,
            minute: 4,
            second: 5,
            millisecond: 6,
        };
        assert_eq!(
            file_line(time, 42, Level::Warning, "hello"),
            "2026-01-02 03:04:05.006 42 WARNING neutron.agent.l3.keepalived_state_change [-] hello\n"
        );
    }

    #[test]
    fn control_characters_in_a_message_cannot_forge_a_line() {
        let text = one_line("a\nb\r\u{1b}[31mc\u{2028}d\u{202e}e");
        assert_eq!(text, "a\\nb\\r\\u{1b}[31mc\\u{2028}d\\u{202e}e");
        assert!(one_line(&"x".repeat(100_000)).len() < 5_000);
    }

    #[test]
    fn lines_are_written_at_the_flush_and_dropped_lines_are_counted() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let mut log = MonitorLog::open(path.clone(), None, RunMode::Daemon, false);
        for number in 0..MAX_PENDING_LINES + 3 {
            log.line(Level::Info, format_args!("line {number}"));
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "");
        log.flush();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), MAX_PENDING_LINES + 1);
        assert!(text.ends_with("3 log lines were dropped: the buffer was full\n"), "{text}");
    }

    #[test]
    fn a_facility_is_found_by_its_name() {
        assert_eq!(Facility::parse("LOG_USER"), Some(Facility(1)));
        assert_eq!(Facility::parse("local7"), Some(Facility(23)));
        assert_eq!(Facility::parse("LOG_LOCAL8"), None);
        assert_eq!(Facility::parse("nonsense"), None);
    }
}
