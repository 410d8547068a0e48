//! Log lines in oslo.log's format, to a file and to syslog.
//!
//! Syslog because the file lives in the router's directory, and is gone with the router
//! (bug 1635629). Text from outside is escaped here: one message is one line.

mod file;

use std::fmt;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use vipwatch_core::escape_untrusted_within;
use vipwatch_linux::clock::{LocalTime, local_time, local_time_of};

use self::file::LogFile;
use crate::args::PROGRAM;

/// The logger's name that operators know from the Python generations.
const LOGGER: &str = "neutron.agent.l3.keepalived_state_change";

/// The longest line: appends up to this size do not mix in a file that many share.
const LINE: usize = 4000;

/// How much a line matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    Debug,
    Info,
    Warning,
    Error,
}

impl Level {
    fn name(self) -> &'static str {
        match self {
            Self::Debug => "DEBUG",
            Self::Info => "INFO",
            Self::Warning => "WARNING",
            Self::Error => "ERROR",
        }
    }

    /// `LOG_*` severity.
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

    /// By its name, with or without `LOG_`.
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

/// How many lines are kept until they are written; further ones are counted.
const MAX_PENDING: usize = 512;

/// A line that waits to be written.
#[derive(Debug)]
struct Line {
    level: Level,
    /// Since the epoch.
    at: Duration,
    text: String,
}

/// Where lines go.
///
/// [`MonitorLog::line`] keeps a line, [`MonitorLog::flush`] writes: what a line reports about is done before the line is written.
#[derive(Debug)]
pub(crate) struct MonitorLog {
    path: PathBuf,
    /// `None` while it cannot be opened.
    file: Option<LogFile>,
    syslog: Option<Syslog>,
    is_debug: bool,
    pending: Vec<Line>,
    /// Lines that found no room in `pending`.
    left_out: u32,
}

impl MonitorLog {
    /// Opens the log as the user who will write it. A file that cannot be opened is no
    /// reason not to watch: syslog is told, and every line tries again.
    pub(crate) fn open(path: PathBuf, syslog: Option<Facility>, is_debug: bool) -> Self {
        let syslog = syslog.and_then(Syslog::open);
        let mut log = Self { path, file: None, syslog, is_debug, pending: Vec::new(), left_out: 0 };
        log.reopen();
        log
    }

    /// Opens the file again, by its name: it may have been rotated away.
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
            }
        }
    }

    /// Keeps one line for the next [`Self::flush`].
    // LIMIT: a defect that aborts the program loses the lines that are kept.
    pub(crate) fn line(&mut self, level: Level, message: fmt::Arguments<'_>) {
        if level == Level::Debug && !self.is_debug {
            return;
        }
        if self.pending.len() >= MAX_PENDING {
            self.left_out = self.left_out.saturating_add(1);
            return;
        }
        let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.pending.push(Line { level, at, text: one_line(&message.to_string()) });
    }

    /// Writes the lines that wait.
    pub(crate) fn flush(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        self.follow_rotation();
        if self.left_out > 0 {
            let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let text = format!("{} lines were left out: too much happened at once", self.left_out);
            self.pending.push(Line { level: Level::Warning, at, text });
            self.left_out = 0;
        }
        let mut lines = String::new();
        for Line { level, at, text } in self.pending.drain(..) {
            let time = local_time_of(at);
            if let Some(syslog) = &self.syslog {
                syslog.send(level, time, &text);
            }
            lines.push_str(&file_line(time, std::process::id(), level, &text));
        }
        if let Some(file) = &mut self.file {
            // A full disk must not stop the watching, and has nowhere to be written down.
            let _ = file.write(lines.as_bytes());
        }
    }

    /// Goes on in a new file if the old one was renamed or removed.
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

/// `asctime.msecs process levelname name [-] message`, as oslo.log has it by default.
fn file_line(time: LocalTime, pid: u32, level: Level, text: &str) -> String {
    let LocalTime { year, month, day, hour, minute, second, millisecond } = time;
    let level = level.name();
    format!(
        "{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{millisecond:03} \
         {pid} {level} {LOGGER} [-] {text}\n"
    )
}

/// One line of at most about [`LINE`] bytes.
pub(crate) fn one_line(message: &str) -> String {
    escape_untrusted_within(message, LINE)
}

/// The local syslog daemon.
#[derive(Debug)]
struct Syslog {
    socket: UnixDatagram,
    facility: Facility,
}

impl Syslog {
    fn open(facility: Facility) -> Option<Self> {
        let socket = UnixDatagram::unbound().ok()?;
        // A syslog daemon that hangs loses lines; it does not hang us.
        socket.set_nonblocking(true).ok()?;
        Some(Self { socket, facility })
    }

    /// As `syslog(3)` writes it: priority, time, program and pid.
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
            level.name()
        );
        // By name each time: the daemon may have been restarted. Without one, lines are lost.
        let _ = self.socket.send_to(line.as_bytes(), "/dev/log");
    }
}

/// Says `message` to syslog, for failures that come before there is a log.
pub(crate) fn to_syslog_only(message: &str) {
    if let Some(syslog) = Syslog::open(Facility::USER) {
        syslog.send(Level::Error, local_time(), &one_line(message));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_looks_as_oslo_writes_it() {
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
    fn what_comes_from_outside_cannot_forge_a_line() {
        let text = one_line("a\nb\r\u{1b}[31mc\u{2028}d\u{202e}e");
        assert_eq!(text, "a\\nb\\r\\u{1b}[31mc\\u{2028}d\\u{202e}e");
        assert!(one_line(&"x".repeat(100_000)).len() < 5_000);
    }

    #[test]
    fn nothing_is_written_before_the_flush_and_lines_without_room_are_counted() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let mut log = MonitorLog::open(path.clone(), None, false);
        for number in 0..MAX_PENDING + 3 {
            log.line(Level::Info, format_args!("line {number}"));
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "");
        log.flush();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), MAX_PENDING + 1);
        assert!(text.ends_with("3 lines were left out: too much happened at once\n"), "{text}");
    }

    #[test]
    fn facilities_have_names() {
        assert_eq!(Facility::parse("LOG_USER"), Some(Facility(1)));
        assert_eq!(Facility::parse("local7"), Some(Facility(23)));
        assert_eq!(Facility::parse("LOG_LOCAL8"), None);
        assert_eq!(Facility::parse("nonsense"), None);
    }
}
