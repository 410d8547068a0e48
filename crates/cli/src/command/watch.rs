//! `vipwatch watch`: every change as it happens, one line each.

use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde_json::json;
use vipwatch_engine::discovery::{Found, discover};
use vipwatch_engine::roster::{Change, Roster};
use vipwatch_linux::clock::{LocalTime, local_time};
use vipwatch_linux::directory::{Directories, Interest};
use vipwatch_linux::netns::DIRECTORY;

use super::node;
use crate::args::{Format, Watch};
use crate::failure::{Code, Failure};
use crate::show;

/// How often the configuration is read again, besides when namespaces come or go.
const REDISCOVER: Duration = Duration::from_secs(10);

pub(crate) fn run(options: &Watch) -> Result<(), Failure> {
    let failed = |error: std::io::Error| {
        Failure::new(Code::Missing, format!("cannot wait for events: {error}"))
    };
    // ORDER: before any thread, because it holds signals back.
    let directories = Directories::new().map_err(failed)?;
    let mut roster = Roster::open().map_err(|error| {
        let message = format!("cannot listen to all namespaces: {error}");
        Failure::new(Code::NotPermitted, message).hint("run it as root")
    })?;
    let mut left = options.changes;
    let mut watched = None;
    let mut changes = roster.follow(wanted(options));
    loop {
        for change in changes.drain(..) {
            // What was so before is a picture, not a change.
            let is_change = change.from.is_some();
            print(&change, options);
            if let Some(left) = left.as_mut().filter(|_| is_change) {
                *left -= 1;
                if *left == 0 {
                    return Ok(());
                }
            }
        }
        if watched.is_none() {
            // A node may have no such directory yet.
            let both = [Interest::Arrivals, Interest::Departures]
                .map(|interest| directories.watch(Path::new(DIRECTORY), interest).ok());
            watched = both[0].is_some().then_some(both);
        }
        let mut polled = [
            PollFd::from_borrowed_fd(roster.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(directories.as_fd(), PollFlags::IN),
        ];
        let limit = Timespec::try_from(REDISCOVER).ok();
        let count = match poll(&mut polled, limit.as_ref()) {
            Ok(count) => count,
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(failed(errno.into())),
        };
        changes = roster.read().map_err(failed)?;
        if count == 0 || directories.have_news() {
            changes.extend(roster.follow(wanted(options)));
        }
    }
}

/// Those that were asked for, as far as there are any now.
fn wanted(options: &Watch) -> Vec<Found> {
    let mut instances = discover(&options.place.places()).instances;
    let is_wanted = |found: &Found| {
        let id = found.id.as_str();
        options.ids.is_empty() || options.ids.iter().any(|wanted| id.starts_with(wanted.as_str()))
    };
    instances.retain(is_wanted);
    instances
}

fn print(change: &Change, options: &Watch) {
    let Change { found, from, to, cause } = change;
    let LocalTime { year, month, day, hour, minute, second, millisecond } = local_time();
    let time = format!("{hour:02}:{minute:02}:{second:02}.{millisecond:03}");
    let before = from.as_ref().map(vipwatch_core::Standing::word);
    let reason = to.reason();
    let line = match options.place.format {
        Format::Json => json!({
            "schema": "vipwatch.change/1", "node": node(),
            "time": format!("{year:04}-{month:02}-{day:02}T{time}"),
            "id": found.id.to_string(), "netns": found.netns.as_ref().map(ToString::to_string),
            "from": before, "to": to.word(), "cause": cause.word(),
            "reason": (!reason.is_empty()).then_some(reason),
        })
        .to_string(),
        Format::Table => {
            let why = if reason.is_empty() {
                cause.word().to_owned()
            } else {
                format!("{}: {reason}", cause.word())
            };
            let from = before.map(|before| format!("{before} → ")).unwrap_or_default();
            format!("{time}  {}  {from}{}  ({why})", found.id, to.word())
        }
    };
    show::print(&format!("{line}\n"));
}
