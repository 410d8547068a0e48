//! Log lines in oslo.log's format, to a file and to syslog.
//!
//! Syslog because the file lives in the router's directory, and is gone with the router
//! (bug 1635629). Whatever comes from outside is made harmless here: one message, one line.

use std::fmt::{self, Write as _};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use vipwatch_linux::clock::{LocalTime, local_time};

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

/// Where lines go.
#[derive(Debug)]
pub(crate) struct Log {
    path: PathBuf,
    /// The open file, and which one it is; `None` while it cannot be opened.
    file: Option<(File, (u64, u64))>,
    syslog: Option<Syslog>,
    is_debug: bool,
}

impl Log {
    /// Opens the log as the user who will write it. A file that cannot be opened is no
    /// reason not to watch: syslog is told, and every line tries again.
    pub(crate) fn open(path: PathBuf, syslog: Option<Facility>, is_debug: bool) -> Self {
        let syslog = syslog.and_then(Syslog::open);
        let mut log = Self { path, file: None, syslog, is_debug };
        log.reopen();
        log
    }

    /// Opens the file again, by its name: it may have been rotated away.
    pub(crate) fn reopen(&mut self) {
        match open(&self.path) {
            Ok(file) => self.file = Some(file),
            Err(error) => {
                self.file = None;
                let message = format!("cannot open log file {}: {error}", self.path.display());
                self.send_to_syslog(Level::Error, &harmless(&message));
            }
        }
    }

    /// Writes one line.
    pub(crate) fn line(&mut self, level: Level, message: fmt::Arguments<'_>) {
        if level == Level::Debug && !self.is_debug {
            return;
        }
        let text = harmless(&message.to_string());
        self.send_to_syslog(level, &text);
        self.follow_rotation();
        if let Some((file, _)) = &mut self.file {
            let line = file_line(local_time(), std::process::id(), level, &text);
            // A full disk must not stop the watching, and has nowhere to be written down.
            let _ = file.write_all(line.as_bytes());
        }
    }

    fn send_to_syslog(&self, level: Level, text: &str) {
        if let Some(syslog) = &self.syslog {
            syslog.send(level, text);
        }
    }

    /// Somebody renamed or removed the file: go on in a new one.
    fn follow_rotation(&mut self) {
        let current = std::fs::symlink_metadata(&self.path).ok().as_ref().map(identity);
        if current.is_none() || current != self.file.as_ref().map(|(_, identity)| *identity) {
            self.file = open(&self.path).ok();
        }
    }
}

fn open(path: &Path) -> io::Result<(File, (u64, u64))> {
    // No symbolic link is followed, and nothing but a file is waited for.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let flags = i32::try_from(flags.bits()).unwrap_or(0);
    let open =
        || OpenOptions::new().append(true).create(true).mode(0o644).custom_flags(flags).open(path);
    let file = match open() {
        // Left by a monitor that stayed root: the directory is ours, so it is set aside.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let mut aside = path.as_os_str().to_owned();
            aside.push(".old");
            std::fs::rename(path, aside).map_err(|_second| error)?;
            open()?
        }
        other => other?,
    };
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    Ok((file, identity(&metadata)))
}

fn identity(metadata: &std::fs::Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
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

/// Takes away what could pass for a second line, or speak to a terminal.
pub(crate) fn harmless(message: &str) -> String {
    let mut text = String::with_capacity(message.len());
    for c in message.chars() {
        if text.len() > LINE {
            text.push('…');
            break;
        }
        // Besides control characters: line and paragraph separators, and the marks that
        // reorder what follows.
        let is_harmful = c.is_control()
            || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        if is_harmful {
            let _ = write!(text, "{}", c.escape_default());
        } else {
            text.push(c);
        }
    }
    text
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
    fn send(&self, level: Level, text: &str) {
        const MONTHS: [&str; 12] =
            ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
        let priority = self.facility.0 * 8 + level.severity();
        let LocalTime { month, day, hour, minute, second, .. } = local_time();
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
        syslog.send(Level::Error, &harmless(message));
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
        let text = harmless("a\nb\r\u{1b}[31mc\u{2028}d\u{202e}e");
        assert_eq!(text, "a\\nb\\r\\u{1b}[31mc\\u{2028}d\\u{202e}e");
        assert!(harmless(&"x".repeat(100_000)).len() < 5_000);
    }

    #[test]
    fn facilities_have_names() {
        assert_eq!(Facility::parse("LOG_USER"), Some(Facility(1)));
        assert_eq!(Facility::parse("local7"), Some(Facility(23)));
        assert_eq!(Facility::parse("LOG_LOCAL8"), None);
        assert_eq!(Facility::parse("nonsense"), None);
    }
}
