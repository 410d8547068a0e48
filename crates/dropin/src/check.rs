// SPDX-License-Identifier: Apache-2.0
//! `--check`: prints the settings and the problems that a start would have, without starting.

use std::fmt::Write;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use ipnet::IpNet;
use rustix::fs::Access;
use vipwatch_core::snapshot::{AddressFacts, Snapshot};
use vipwatch_core::tracker::Tracker;
use vipwatch_core::{ErrorChain, Observation, SnapshotReason, WatchedAddress};
use vipwatch_linux::monitor::{Monitor, MonitorEvent, Scope};
use vipwatch_linux::privilege::Identity;
use vipwatch_outlets::advert_interval::advert_interval;

use crate::args::{Args, PROGRAM};
use crate::failure::{Code, Failure, print};
use crate::pid_file;
use crate::setup::{EnteredNetns, Setup};

/// Prints the settings and the problems; fails if there is a problem.
pub(crate) fn report(args: Args) -> Result<(), Failure> {
    let mut setup = Setup::resolve(args)?;
    let entered = setup.enter()?;
    let snapshot = setup.watch.and_then(|watch| read_snapshot(watch.vip));
    let problems = problems(&setup, &entered, snapshot.as_ref());
    let mut text = describe(&setup, snapshot.as_ref());
    for problem in &problems {
        let _ = writeln!(text, "problem: {problem}");
    }
    let _ = writeln!(text, "{}", if problems.is_empty() { "ok" } else { "not ok" });
    print(&text);
    if problems.is_empty() {
        return Ok(());
    }
    let count = problems.len();
    let plural = if count == 1 { "" } else { "s" };
    Err(Failure::new(Code::No, format!("--check found {count} problem{plural}")))
}

fn describe(setup: &Setup, snapshot: Option<&Snapshot>) -> String {
    let words = setup.word.words();
    let primary = words(vipwatch_core::NeutronState::Primary);
    let window = advert_interval(&setup.conf_dir.join("keepalived.conf"));
    let rows = [
        ("program", format!("{PROGRAM} {}", env!("CARGO_PKG_VERSION"))),
        ("router", setup.instance.to_string()),
        ("namespace", setup.netns.to_string()),
        ("watches", format!("{} on {}", setup.cidr, setup.link)),
        ("state now", describe_state(setup, snapshot)),
        ("writes", setup.conf_dir.join("state").display().to_string()),
        ("tells", setup.socket.display().to_string()),
        ("word", format!("{primary} ({})", setup.word_source)),
        ("pid file", setup.pid_file.display().to_string()),
        ("log file", setup.log_file.display().to_string()),
        ("runs as", format!("user {}, group {}", setup.identity.user, setup.identity.group)),
        ("conntrackd", if setup.has_conntrackd { "yes" } else { "no" }.to_owned()),
        (
            "window",
            window.map_or_else(
                || "unknown, 2s assumed".to_owned(),
                |w| format!("{w:?} (advert_int)"),
            ),
        ),
        ("announces", describe_announcements(setup)),
        ("audit", format!("every {:?}", setup.audit_interval)),
    ];
    let mut text = String::new();
    for (name, value) in rows {
        let _ = writeln!(text, "{name:<11} {}", value.escape_debug());
    }
    text
}

/// The state that a monitor would report now, in the word that the agent gets.
fn describe_state(setup: &Setup, snapshot: Option<&Snapshot>) -> String {
    match (setup.watch, snapshot) {
        (None, _) => "backup (there is no valid address to watch)".to_owned(),
        (Some(_), None) => "unknown: the kernel did not answer".to_owned(),
        (Some(watch), Some(snapshot)) => {
            setup.word.words()(Tracker::new(watch).state_in(snapshot)).to_owned()
        }
    }
}

fn describe_announcements(setup: &Setup) -> String {
    let Some((_, plan)) = setup.announce_plan else {
        return format!("nothing ({})", setup.announce);
    };
    let mut text = format!("{}, {} times, {:?} apart", setup.announce, plan.count, plan.gap);
    if let Some(pause) = plan.second_burst {
        let _ = write!(text, ", again after {pause:?}");
    }
    if let Some(refresh) = plan.refresh {
        let _ = write!(text, ", then every {refresh:?}");
    }
    let _ = write!(text, ", at most {} addresses/s", plan.rate.per_second);
    if let Some(check) = plan.check {
        let _ = write!(text, ", listening {check:?} for other holders");
    }
    text
}

fn problems(setup: &Setup, entered: &EnteredNetns, snapshot: Option<&Snapshot>) -> Vec<String> {
    let mut problems = Vec::new();
    match (setup.watch, snapshot) {
        (None, _) => problems.push(format!(
            "--monitor_cidr {:?} is not an address with a prefix length; the state would always be backup",
            setup.cidr
        )),
        (Some(watch), Some(snapshot)) => problems.extend(address_problem(setup, watch, snapshot)),
        (Some(_), None) => problems.push("the kernel did not list the addresses".to_owned()),
    }
    if let Err(error) = &entered.announcer {
        problems.push(format!("nothing would be announced: {}", ErrorChain(error)));
    }
    let running = pid_file::running_monitor(&setup.pid_file, &setup.instance, &setup.started_by);
    if let Some(pid) = running {
        problems.push(format!("a monitor of this router already runs, pid {pid}"));
    }
    for directory in
        [Some(setup.conf_dir.as_path()), setup.pid_file.parent(), setup.log_file.parent()]
    {
        problems.extend(directory.and_then(|directory| unwritable(directory, setup.identity)));
    }
    match std::fs::symlink_metadata(&setup.socket) {
        Ok(metadata) if metadata.file_type().is_socket() => {}
        Ok(_) => problems.push(format!("{} is not a socket", setup.socket.display())),
        Err(error) => {
            problems.push(format!("the agent's socket {}: {error}", setup.socket.display()));
        }
    }
    problems.dedup();
    problems
}

/// Why the watched link cannot hold the watched address as it is now; `None` if it holds it, or has no such address.
fn address_problem(setup: &Setup, watch: WatchedAddress, snapshot: &Snapshot) -> Option<String> {
    let Setup { link: name, netns, .. } = setup;
    let Some(link) = snapshot.links.iter().find(|link| link.name == watch.link) else {
        return Some(format!(
            "there is no link {name} in {netns} yet; the monitor would wait for it"
        ));
    };
    let is_same_ip = |address: &&AddressFacts| {
        address.target.link == link.link && address.target.ip == watch.vip.addr()
    };
    let mut held = snapshot.addresses.iter().filter(is_same_ip).map(|address| address.prefix);
    let other = held.clone().next()?;
    let is_held = held.any(|prefix| prefix == watch.vip.prefix_len());
    (!is_held).then(|| {
        format!(
            "{name} holds {}/{other}, and --monitor_cidr is {}: with another prefix length the state is backup",
            watch.vip.addr(), watch.vip
        )
    })
}

/// Reads all links and addresses of the namespace; `None` if the kernel did not answer.
fn read_snapshot(vip: IpNet) -> Option<Snapshot> {
    let mut monitor = Monitor::open(vip, Scope::All).ok()?;
    let mut events = Vec::new();
    monitor.request_snapshot(SnapshotReason::First).ok()?;
    // The kernel produces a dump while it is read. 64 reads are enough for a large namespace.
    for _ in 0..64 {
        monitor.read(&mut events).ok()?;
        if !monitor.is_snapshot_pending() {
            break;
        }
    }
    events.into_iter().find_map(|event| match event {
        MonitorEvent::Observed(Observation::Snapshot { snapshot, .. }) => Some(snapshot),
        _ => None,
    })
}

/// Returns why `identity` cannot write to `directory`; `None` if it can. The check runs as root on behalf of another
/// user, so it compares the permission bits as the kernel does.
fn unwritable(directory: &Path, identity: Identity) -> Option<String> {
    let metadata = match std::fs::metadata(directory) {
        Ok(metadata) if metadata.is_dir() => metadata,
        Ok(_) => return Some(format!("{} is not a directory", directory.display())),
        Err(error) => return Some(format!("{}: {error}", directory.display())),
    };
    let shift = match identity {
        Identity { user, .. } if user == metadata.uid() => 6,
        Identity { group, .. } if group == metadata.gid() => 3,
        Identity { .. } => 0,
    };
    // A monitor that stays root keeps `CAP_DAC_OVERRIDE`.
    if identity.user != 0 && metadata.mode() >> shift & 0o3 != 0o3 {
        let user = identity.user;
        return Some(format!("user {user} may not write to {}", directory.display()));
    }
    rustix::fs::access(directory, Access::WRITE_OK)
        .err()
        .map(|errno| format!("{}: {errno}", directory.display()))
}
