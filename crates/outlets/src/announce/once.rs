// SPDX-License-Identifier: Apache-2.0
//! Announces addresses of a namespace once, from the first round to the last, and returns a report.
//!
//! `vipwatch announce` uses it. Unlike an [`Announcer`], it blocks, and its caller can be in another namespace.

use std::io;
use std::net::IpAddr;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use vipwatch_core::announce::{AnnounceRefusal, announce_source};
use vipwatch_core::snapshot::Mac;
use vipwatch_core::{AnnouncePlan, LinkAddress, LinkName, NetnsName};
use vipwatch_linux::clock;
use vipwatch_linux::monitor::WatchError;
use vipwatch_linux::netns::{NetnsError, visit};
use vipwatch_linux::netns_query::NetnsQuery;

use super::{AnnounceCounts, AnnounceNote, AnnounceTrigger, Announcer, AnnouncerError};

/// Which addresses are announced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AddressSelection {
    /// Every address that may be announced.
    All,
    /// These addresses, on every link that holds them.
    These(Vec<IpAddr>),
}

/// What is announced, and how.
#[derive(Debug, Clone)]
pub struct AnnounceRequest {
    /// The namespace; `None` for that of the caller.
    pub netns: Option<NetnsName>,
    /// The addresses.
    pub which: AddressSelection,
    /// Announces on this link only; `None` for all links.
    pub link: Option<LinkName>,
    /// Leaves out this link, on which keepalived itself announces.
    pub watched: Option<LinkName>,
    /// Number and timing of the rounds. A refresh is ignored: it would never end.
    pub plan: AnnouncePlan,
}

/// Why nothing was announced.
#[derive(Debug, thiserror::Error)]
pub enum AnnounceError {
    /// The namespace cannot be opened or entered.
    #[error(transparent)]
    Netns(#[from] NetnsError),
    /// The sockets cannot be opened.
    #[error(transparent)]
    Open(#[from] AnnouncerError),
    /// The links and addresses cannot be read.
    #[error(transparent)]
    Snapshot(#[from] WatchError),
    /// A call to `poll` failed, or the check for duplicates could not start.
    #[error("cannot wait for answers from the network")]
    Work(#[source] io::Error),
}

/// An address that was announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnnouncedAddress {
    /// The address.
    pub ip: IpAddr,
    /// The name of its link.
    pub link: LinkName,
    /// The MAC that was announced for it.
    pub mac: Mac,
    /// How many rounds were sent.
    pub rounds: u16,
}

/// An address that was not announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RefusedAddress {
    /// The address.
    pub ip: IpAddr,
    /// The name of its link; `None` if there is no such link.
    pub link: Option<LinkName>,
    /// Why it was not announced.
    pub reason: AnnounceRefusal,
}

/// An address for which the kernel did not send a frame at first.
#[derive(Debug)]
pub struct FailedAddress {
    /// The address.
    pub ip: IpAddr,
    /// The name of its link.
    pub link: LinkName,
    /// The error of the kernel.
    pub error: io::Error,
}

/// Another station that claims one of the addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OtherHolder {
    /// The address.
    pub ip: IpAddr,
    /// The name of the link on which the claim was received.
    pub link: LinkName,
    /// The MAC of the other station.
    pub mac: Mac,
}

/// The result of a request.
#[derive(Debug, Default)]
pub struct AnnounceReport {
    /// The announced addresses.
    pub announced: Vec<AnnouncedAddress>,
    /// The addresses that were not announced.
    pub refused: Vec<RefusedAddress>,
    /// The failures to send; each was retried.
    pub failed: Vec<FailedAddress>,
    /// The other stations that hold one of the addresses.
    pub duplicates: Vec<OtherHolder>,
    /// Counters of all rounds.
    pub counts: AnnounceCounts,
}

/// Announces the addresses of `request`. The call takes as long as its plan.
pub fn announce(request: &AnnounceRequest) -> Result<AnnounceReport, AnnounceError> {
    visit(request.netns.as_ref(), || run(request))?
}

fn run(request: &AnnounceRequest) -> Result<AnnounceReport, AnnounceError> {
    let plan = AnnouncePlan { refresh: None, ..request.plan };
    let mut announcer = Announcer::open(plan, AnnounceTrigger::OnRequest, request.watched)?;
    let mut report = AnnounceReport::default();
    for target in targets(request, &mut report)? {
        announcer.start(target, clock::now());
    }
    while let Some(due) = announcer.due() {
        wait(&announcer, due.since(clock::now())).map_err(AnnounceError::Work)?;
        let mut notes = announcer.read_answers();
        notes.extend(announcer.tick(clock::now()));
        for note in notes {
            match note {
                AnnounceNote::QueryFailed(error) => return Err(error.into()),
                AnnounceNote::ListenFailed(error) => return Err(AnnounceError::Work(error)),
                note => report.add(note),
            }
        }
    }
    // An address that still waits for its link stays refused: the announcer ends here and will not see the link come
    // up.
    if let Some(counts) = announcer.take_counts() {
        report.counts = counts;
    }
    Ok(report)
}

/// The requested addresses with their links. Addresses that no link holds are refused in `report`.
fn targets(
    request: &AnnounceRequest,
    report: &mut AnnounceReport,
) -> Result<Vec<LinkAddress>, AnnounceError> {
    let snapshot = NetnsQuery::open_own()?.own_snapshot()?;
    let is_on_link = |target: &LinkAddress| {
        let name = snapshot.link(target.link).map(|facts| facts.name);
        request.link.is_none_or(|wanted| name == Some(wanted))
    };
    let held: Vec<LinkAddress> =
        snapshot.addresses.iter().map(|facts| facts.target).filter(is_on_link).collect();
    let AddressSelection::These(wanted) = &request.which else {
        // Addresses that can never be announced were not requested by name: they are left out without a refusal.
        let may_be = |target: &LinkAddress| {
            let refusal = announce_source(&snapshot, *target, request.watched).err();
            refusal.is_none_or(AnnounceRefusal::is_temporary)
        };
        return Ok(held.into_iter().filter(may_be).collect());
    };
    for ip in wanted {
        if !held.iter().any(|target| target.ip == *ip) {
            let reason = AnnounceRefusal::NotHeld;
            report.refused.push(RefusedAddress { ip: *ip, link: request.link, reason });
        }
    }
    Ok(held.into_iter().filter(|target| wanted.contains(&target.ip)).collect())
}

fn wait(announcer: &Announcer, limit: std::time::Duration) -> io::Result<()> {
    let socket = announcer.waiting_on();
    let mut polled: Vec<PollFd<'_>> =
        socket.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).into_iter().collect();
    let limit = Timespec::try_from(limit).ok();
    match poll(&mut polled, limit.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

impl AnnounceReport {
    fn add(&mut self, note: AnnounceNote) {
        match note {
            AnnounceNote::Sent { target, link, mac, .. } => {
                let ip = target.ip;
                match self.announced.iter_mut().find(|seen| (seen.ip, seen.link) == (ip, link)) {
                    Some(seen) => seen.rounds += 1,
                    None => self.announced.push(AnnouncedAddress { ip, link, mac, rounds: 1 }),
                }
            }
            AnnounceNote::Refused { target, link, reason } => {
                self.refused.push(RefusedAddress { ip: target.ip, link, reason });
            }
            AnnounceNote::Failed { target, link, error } => {
                self.failed.push(FailedAddress { ip: target.ip, link, error });
            }
            AnnounceNote::Duplicate { target, link, mac } => {
                self.duplicates.push(OtherHolder { ip: target.ip, link, mac });
            }
            AnnounceNote::Ended(counts) => self.counts = counts,
            // `run` returns these as errors.
            AnnounceNote::QueryFailed(_) | AnnounceNote::ListenFailed(_) => {}
        }
    }
}
