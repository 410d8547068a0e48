//! Announces some addresses of a namespace once, from first round to last, and reports.
//!
//! For whoever asks by hand, or from a program that is not in the namespace.

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

/// Which addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AddressSelection {
    /// Every one that may be announced.
    All,
    /// These, on whichever links hold them.
    These(Vec<IpAddr>),
}

/// What is to be announced, and how.
#[derive(Debug, Clone)]
pub struct AnnounceRequest {
    /// Where; `None` for the namespace of the caller.
    pub netns: Option<NetnsName>,
    /// What.
    pub which: AddressSelection,
    /// On this link only.
    pub link: Option<LinkName>,
    /// Not on this one, for which keepalived speaks.
    pub watched: Option<LinkName>,
    /// How. A refresh makes no sense here, and is left out.
    pub plan: AnnouncePlan,
}

/// Why nothing was announced.
#[derive(Debug, thiserror::Error)]
pub enum AnnounceError {
    /// The namespace cannot be had.
    #[error(transparent)]
    Netns(#[from] NetnsError),
    /// The sockets cannot be had.
    #[error(transparent)]
    Open(#[from] AnnouncerError),
    /// The kernel cannot be asked.
    #[error(transparent)]
    Snapshot(#[from] WatchError),
    /// Waiting or listening failed.
    #[error("cannot work in the namespace")]
    Work(#[source] io::Error),
}

/// An address that was announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnnouncedAddress {
    /// The address.
    pub ip: IpAddr,
    /// Its link.
    pub link: LinkName,
    /// Where it was said to be.
    pub mac: Mac,
    /// How many rounds went out.
    pub rounds: u16,
}

/// What became of a request.
#[derive(Debug, Default)]
pub struct AnnounceReport {
    /// What was sent, by address.
    pub announced: Vec<AnnouncedAddress>,
    /// What was not, and why; the link, if there is one.
    pub refused: Vec<(IpAddr, Option<LinkName>, AnnounceRefusal)>,
    /// What the kernel did not take at first.
    pub failed: Vec<(IpAddr, LinkName, io::Error)>,
    /// Who else has one of the addresses.
    pub duplicates: Vec<(IpAddr, LinkName, Mac)>,
    /// What was tried, in numbers.
    pub tally: AnnounceCounts,
}

/// Announces what `request` asks for. Takes as long as its plan does.
pub fn announce(request: &AnnounceRequest) -> Result<AnnounceReport, AnnounceError> {
    visit(request.netns.as_ref(), || run(request))?
}

fn run(request: &AnnounceRequest) -> Result<AnnounceReport, AnnounceError> {
    let plan = AnnouncePlan { refresh: None, ..request.plan };
    let mut announcer = Announcer::open(plan, AnnounceTrigger::Asked, request.watched)?;
    let mut report = AnnounceReport::default();
    for target in targets(request, &mut report)? {
        announcer.start(target, clock::now());
    }
    while let Some(due) = announcer.due() {
        wait(&announcer, due.since(clock::now())).map_err(AnnounceError::Work)?;
        let mut notes = announcer.answered();
        notes.extend(announcer.tick(clock::now()));
        for note in notes {
            match note {
                AnnounceNote::Blind(error) => return Err(error.into()),
                AnnounceNote::Deaf(error) => return Err(AnnounceError::Work(error)),
                note => report.take(note),
            }
        }
    }
    // What still waits for a link was refused for good: nobody is left to see it come up.
    if let Some(tally) = announcer.tally() {
        report.tally = tally;
    }
    Ok(report)
}

/// The addresses that were asked for, where they are. Those that are nowhere are refused.
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
        // Nobody has asked for what can never be announced.
        let may_be = |target: &LinkAddress| {
            let refusal = announce_source(&snapshot, *target, request.watched).err();
            refusal.is_none_or(AnnounceRefusal::is_temporary)
        };
        return Ok(held.into_iter().filter(may_be).collect());
    };
    for ip in wanted {
        if !held.iter().any(|target| target.ip == *ip) {
            report.refused.push((*ip, request.link, AnnounceRefusal::NotHeld));
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
    fn take(&mut self, note: AnnounceNote) {
        match note {
            AnnounceNote::Sent { target, link, mac, .. } => {
                let ip = target.ip;
                match self.announced.iter_mut().find(|seen| (seen.ip, seen.link) == (ip, link)) {
                    Some(seen) => seen.rounds += 1,
                    None => self.announced.push(AnnouncedAddress { ip, link, mac, rounds: 1 }),
                }
            }
            AnnounceNote::Refused { target, link, reason } => {
                self.refused.push((target.ip, link, reason));
            }
            AnnounceNote::Failed { target, link, error } => {
                self.failed.push((target.ip, link, error));
            }
            AnnounceNote::Duplicate { target, link, mac } => {
                self.duplicates.push((target.ip, link, mac));
            }
            AnnounceNote::Ended(tally) => self.tally = tally,
            // The caller has dealt with these.
            AnnounceNote::Blind(_) | AnnounceNote::Deaf(_) => {}
        }
    }
}
