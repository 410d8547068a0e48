//! `vipwatch node`: follows every instance of this node, and remembers.

use std::os::fd::AsFd;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use vipwatch_core::Chain;
use vipwatch_engine::roster::Change;
use vipwatch_history::{HistoryError, Keep, Opened, Record, Writer};
use vipwatch_linux::signal::{Signal, Signals};

use super::watch::line;
use super::{history::when, troubles_text};
use crate::args::{Format, Node};
use crate::failure::{Code, Failure};
use crate::follow::{Follower, News};
use crate::{service, show};

pub(crate) fn run(options: &Node) -> Result<(), Failure> {
    // ORDER: signals before any thread, so that no thread is killed by them.
    let held = |error: std::io::Error| {
        Failure::new(Code::Missing, format!("cannot receive signals: {error}"))
    };
    let signals = Signals::hold().map_err(held)?;
    let mut follower = Follower::open(options.place.places(), Vec::new())?;
    let _lock = lock(&options.state_dir)?;
    let keep = Keep {
        age: std::time::Duration::from_hours(24) * options.keep_days,
        changes: options.keep_changes,
    };
    let (writer, opened) =
        Writer::open(&options.state_dir, keep).map_err(|error| failure(&error))?;
    greet(&opened);
    let mut news = follower.rediscover();
    service::notify("READY=1");
    loop {
        take(&news, &writer, options.place.format);
        if news.is_called {
            match signals.read() {
                Some(Signal::Stop) => {
                    service::notify("STOPPING=1");
                    return Ok(());
                }
                // Nothing that is followed is dropped by reading the files again.
                Some(Signal::Reopen) => {
                    service::notify("RELOADING=1");
                    let found = follower.rediscover();
                    take(&found, &writer, options.place.format);
                    service::notify("READY=1");
                }
                None => {}
            }
        }
        service::notify_watchdog();
        news = follower.wait(Some(signals.as_fd()))?;
    }
}

/// Shows and keeps.
fn take(news: &News, writer: &Writer, format: Format) {
    if let Some(troubles) = &news.troubles {
        show::print(&troubles_text(troubles));
    }
    for change in &news.changes {
        show::print(&format!("{}\n", line(change, format)));
        writer.record(record(change));
    }
}

fn record(change: &Change) -> Record {
    let Change { found, from, to, cause } = change;
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let reason = to.reason();
    Record {
        at: i64::try_from(since.as_millis()).unwrap_or(i64::MAX),
        instance: found.id.to_string(),
        netns: found.netns.as_ref().map(ToString::to_string),
        from: from.as_ref().map(|from| from.word().to_owned()),
        to: to.word().to_owned(),
        cause: cause.word().to_owned(),
        reason: (!reason.is_empty()).then_some(reason),
    }
}

fn greet(opened: &Opened) {
    if let Some(aside) = &opened.set_aside {
        let text = "the history was not readable any more; it is kept as";
        show::print(&format!("problem: {text} {}\n", aside.display()));
    }
    if let Some(killed) = opened.killed {
        let text = "the recorder before was killed; what happened since is not recorded";
        show::print(&format!("problem: {text}: last seen {}\n", when(killed)));
    }
}

/// One recorder for a directory.
fn lock(directory: &Path) -> Result<std::os::fd::OwnedFd, Failure> {
    let failed = |error: std::io::Error| {
        let code = match error.kind() {
            std::io::ErrorKind::PermissionDenied => Code::NotPermitted,
            _ => Code::Missing,
        };
        Failure::new(code, format!("cannot use the directory {}: {error}", directory.display()))
            .hint("give another one with --state-dir")
    };
    std::fs::create_dir_all(directory).map_err(failed)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened =
        rustix::fs::open(directory, flags, Mode::empty()).map_err(|errno| failed(errno.into()))?;
    match flock(&opened, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(opened),
        Err(rustix::io::Errno::AGAIN) => {
            let message = format!("another vipwatch node records in {}", directory.display());
            Err(Failure::new(Code::No, message))
        }
        Err(errno) => Err(failed(errno.into())),
    }
}

pub(super) fn failure(error: &HistoryError) -> Failure {
    let message = Chain(error);
    match error {
        HistoryError::TooNew { .. } => Failure::new(Code::Missing, message)
            .hint("use the program that wrote it, or another --state-dir"),
        HistoryError::Missing(_) => Failure::new(Code::Missing, message)
            .hint("`vipwatch node` records one; --state-dir says where"),
        HistoryError::Open { .. } | HistoryError::Sql(_) | HistoryError::Io(_) => {
            Failure::new(Code::Missing, message)
        }
    }
}
