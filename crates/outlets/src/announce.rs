// SPDX-License-Identifier: Apache-2.0
//! Announces addresses to their networks, without blocking its caller.
//!
//! ```text
//!              due                 snapshot: is it still true?                yes
//!   schedule ───────▶ taken ──────────────────────────────────────────────────────▶ sent, next round
//!      ▲                │ no, and waiting does not help    │ not yet
//!      │                ▼                                  ▼
//!      │            refused, reported once       waits for its link or for DAD, reported once
//!      └───────────────────────────────────────────────────┘ an event of the link or address
//! ```
//!
//! Before each round the announcer reads all links and addresses from the kernel again. That costs less than following
//! their changes, and an address that was removed a moment ago is not announced.

mod duplicate_check;
mod note;
pub mod once;
mod repeat;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use ipnet::IpNet;
use vipwatch_core::announce::{
    AnnounceRefusal, AnnounceSource, DueAnnouncement, Schedule, announce_source,
};
use vipwatch_core::snapshot::Snapshot;
use vipwatch_core::{
    AnnouncePlan, LinkAddress, LinkIndex, LinkName, Moment, NeutronState, Observation, Usability,
};
use vipwatch_linux::announce::packet_socket::{
    ClaimFamily, PacketSocket, ReceiveMode, ReceivedFrame,
};
use vipwatch_linux::announce::{announcement, probe};
use vipwatch_linux::clock;
use vipwatch_linux::monitor::WatchError;
use vipwatch_linux::netns_query::NetnsQuery;

use self::duplicate_check::{DuplicateCheck, Listing};
use self::note::is_expected;
pub use self::note::{AnnounceCounts, AnnounceNote};
pub use self::repeat::ProbeOutcome;

/// Delay after a failed query of the kernel.
const QUERY_RETRY_DELAY: Duration = Duration::from_secs(1);

/// Pause between two batches, as a multiple of the time that the query of the kernel took, and its maximum. When
/// keepalived adds many addresses one by one, most of them then share one query; in a small namespace the pause is very
/// short.
const PAUSE_PER_QUERY_TIME: u32 = 4;
const MAX_PAUSE: Duration = Duration::from_millis(100);

/// Maximum number of frames in one read, so that a flood of frames does not delay other work.
const MAX_FRAMES_PER_READ: usize = 256;

/// When an address is announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnnounceTrigger {
    /// When it is new, in either state: as Neutron's monitor did in releases 10 to 17.
    New,
    /// When the state becomes primary, and when it is new while the state is primary.
    Primary,
    /// Only after [`Announcer::start`].
    OnRequest,
}

/// Why an announcer cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum AnnouncerError {
    /// A packet socket needs `CAP_NET_RAW`.
    #[error("cannot open a packet socket")]
    PacketSocket(#[source] io::Error),
    /// The kernel cannot be queried.
    #[error(transparent)]
    Snapshot(#[from] WatchError),
}

/// Announces the addresses of one namespace.
#[derive(Debug)]
pub struct Announcer {
    plan: AnnouncePlan,
    trigger: AnnounceTrigger,
    /// The link on which keepalived itself announces; its addresses are left out.
    watched_link: Option<LinkName>,
    socket: PacketSocket,
    query: NetnsQuery,
    schedule: Schedule,
    /// `None` until [`Self::set_state`] was called.
    state: Option<NeutronState>,
    /// Every address of the namespace; sorted. Empty with [`AnnounceTrigger::OnRequest`], which does not need it.
    known: Vec<(LinkIndex, IpNet)>,
    /// Whether a snapshot was observed. Addresses of the first one are not new.
    is_informed: bool,
    /// Refusals that were reported and still apply; sorted by target.
    refused: Vec<(LinkAddress, AnnounceRefusal)>,
    /// The errno of the last reported send failure; `None` after a success.
    failing_errno: Option<i32>,
    /// Whether a failed query was reported, and none has succeeded since.
    is_query_failing: bool,
    /// The next batch is not sent before this time.
    paused_until: Option<Moment>,
    /// The check for duplicates that is under way.
    check: Option<DuplicateCheck>,
    counts: AnnounceCounts,
}

impl Announcer {
    /// Opens the sockets in the namespace of the calling thread. Later calls need no privilege.
    pub fn open(
        plan: AnnouncePlan,
        trigger: AnnounceTrigger,
        watched_link: Option<LinkName>,
    ) -> Result<Self, AnnouncerError> {
        Self::open_receiving(plan, trigger, watched_link, ReceiveMode::OnDemand)
    }

    /// As [`Self::open`], for all links. Until the first check for duplicates, packets that enter the namespace cost
    /// nothing.
    pub fn open_deferred(
        plan: AnnouncePlan,
        trigger: AnnounceTrigger,
    ) -> Result<Self, AnnouncerError> {
        Self::open_receiving(plan, trigger, None, ReceiveMode::Deferred)
    }

    fn open_receiving(
        plan: AnnouncePlan,
        trigger: AnnounceTrigger,
        watched_link: Option<LinkName>,
        mode: ReceiveMode,
    ) -> Result<Self, AnnouncerError> {
        let mode = if plan.check.is_some() { mode } else { ReceiveMode::SendOnly };
        Ok(Self {
            plan,
            trigger,
            watched_link,
            socket: PacketSocket::open(mode).map_err(AnnouncerError::PacketSocket)?,
            query: NetnsQuery::open_own()?,
            schedule: Schedule::new(plan),
            state: None,
            known: Vec::new(),
            is_informed: false,
            refused: Vec::new(),
            failing_errno: None,
            is_query_failing: false,
            paused_until: None,
            check: None,
            counts: AnnounceCounts::default(),
        })
    }

    /// The socket to poll while a check for duplicates is under way; when it is readable, call
    /// [`Self::read_answers`].
    pub fn waiting_on(&self) -> Option<BorrowedFd<'_>> {
        self.check.as_ref().map(|_| self.socket.as_fd())
    }

    /// The time of the next work for [`Self::tick`]; `None` if there is none.
    pub fn due(&self) -> Option<Moment> {
        let check = self.check.as_ref().map(|check| check.ends_at);
        let due = self.schedule.due();
        let due = due.map(|due| self.paused_until.map_or(due, |until| until.max(due)));
        [due, check].into_iter().flatten().min()
    }

    /// Starts to announce `target`.
    pub fn start(&mut self, target: LinkAddress, now: Moment) {
        self.schedule.start(target, now);
    }

    /// Returns the counts since the last call and resets them; `None` if there is nothing to report.
    pub fn take_counts(&mut self) -> Option<AnnounceCounts> {
        let counts = std::mem::take(&mut self.counts);
        counts.is_worth_reporting().then_some(counts)
    }

    /// Sets the state of the instance. When it was primary and becomes backup, all announcements end.
    pub fn set_state(&mut self, state: NeutronState, now: Moment) {
        let before = self.state.replace(state);
        self.schedule.set_refreshing(state == NeutronState::Primary);
        match state {
            NeutronState::Primary if self.trigger == AnnounceTrigger::Primary => {
                for at in 0..self.known.len() {
                    self.start(link_address(&self.known[at]), now);
                }
            }
            NeutronState::Primary => {}
            // The first known state is no demotion: addresses that are new by then are still announced.
            NeutronState::Backup if before != Some(NeutronState::Primary) => {}
            NeutronState::Backup => {
                self.schedule.clear();
                self.refused.retain(|(_, reason)| !reason.is_temporary());
                self.end_check();
            }
        }
    }

    /// Applies one observation of the kernel.
    pub fn observe(&mut self, seen: &Observation, now: Moment) {
        match seen {
            Observation::AddressSeen { link, cidr, usability } => {
                let target = LinkAddress { link: *link, ip: cidr.addr() };
                match self.known.binary_search(&(*link, *cidr)) {
                    Ok(_) => self.address_changed(target, *usability, now),
                    Err(at) => {
                        self.known.insert(at, (*link, *cidr));
                        self.address_added(target, now);
                    }
                }
            }
            Observation::AddressRemoved { link, cidr } => {
                self.known.retain(|known| *known != (*link, *cidr));
                self.drop_unknown();
            }
            Observation::LinkRemoved { link } => {
                self.known.retain(|(known, _)| known != link);
                self.drop_unknown();
            }
            // The link may have a carrier now.
            Observation::LinkSeen { link, .. } => self.schedule.wake_link(*link, now),
            Observation::Snapshot { snapshot, .. } => self.apply_snapshot(snapshot, now),
            Observation::FirstSnapshotOverdue | Observation::NamespaceRemoved => {}
        }
    }

    /// Replaces the known addresses, and starts those that are new although no event reported them.
    fn apply_snapshot(&mut self, snapshot: &Snapshot, now: Moment) {
        let present = snapshot
            .addresses
            .iter()
            .filter_map(|address| Some((address.target.link, address.cidr()?)));
        let mut present: Vec<_> = present.collect();
        present.sort_unstable();
        let before = std::mem::replace(&mut self.known, present);
        self.drop_unknown();
        // The addresses of the first snapshot are not new.
        if std::mem::replace(&mut self.is_informed, true) {
            for at in 0..self.known.len() {
                if before.binary_search(&self.known[at]).is_err() {
                    self.address_added(link_address(&self.known[at]), now);
                }
            }
        }
        self.schedule.wake(now);
    }

    fn address_added(&mut self, target: LinkAddress, now: Moment) {
        let is_wanted = match self.trigger {
            AnnounceTrigger::New => true,
            AnnounceTrigger::Primary => self.state == Some(NeutronState::Primary),
            AnnounceTrigger::OnRequest => false,
        };
        if is_wanted {
            self.start(target, now);
        }
    }

    /// Duplicate address detection may have ended, for the first time or again.
    fn address_changed(&mut self, target: LinkAddress, usability: Usability, now: Moment) {
        self.schedule.wake_target(target, now);
        let was_duplicate = self.refusal_of(target) == Some(AnnounceRefusal::Duplicate);
        if was_duplicate && usability == Usability::Usable {
            self.remove_refusal(target);
            self.address_added(target, now);
        }
    }

    /// Drops everything about addresses that are not known any more. An address that is still there with another prefix
    /// length is known.
    fn drop_unknown(&mut self) {
        let known = &self.known;
        let is_known = |target: LinkAddress| {
            let first =
                known.partition_point(|entry| (entry.0, entry.1.addr()) < (target.link, target.ip));
            known.get(first).is_some_and(|entry| link_address(entry) == target)
        };
        self.schedule.retain(is_known);
        self.refused.retain(|(target, _)| is_known(*target));
        if let Some(check) = &mut self.check {
            check.probed.retain(|(target, _)| is_known(*target));
        }
    }

    fn refusal_of(&self, target: LinkAddress) -> Option<AnnounceRefusal> {
        let found = self.refused.binary_search_by_key(&target, |(target, _)| *target);
        found.ok().map(|at| self.refused[at].1)
    }

    fn remove_refusal(&mut self, target: LinkAddress) {
        if let Ok(at) = self.refused.binary_search_by_key(&target, |(target, _)| *target) {
            self.refused.remove(at);
        }
    }

    /// Sends the announcements that are due, and ends the check for duplicates when its time is over.
    pub fn tick(&mut self, now: Moment) -> Vec<AnnounceNote> {
        let mut notes = Vec::new();
        if self.check.as_ref().is_some_and(|check| check.ends_at <= now) {
            self.end_check();
        }
        if self.paused_until.is_none_or(|until| until <= now) {
            let due = self.schedule.take_due(now);
            if !due.is_empty() {
                self.send(&due, now, &mut notes);
            }
        }
        if self.schedule.is_empty() && self.check.is_none() {
            notes.extend(self.take_counts().map(AnnounceNote::Ended));
        }
        notes
    }

    fn send(&mut self, due: &[DueAnnouncement], now: Moment, notes: &mut Vec<AnnounceNote>) {
        let Some(snapshot) = self.snapshot(now, notes) else { return };
        let mut batch = Vec::with_capacity(due.len());
        let mut frames = Vec::with_capacity(due.len() * 2);
        for (at, taken) in due.iter().enumerate() {
            let target = taken.target;
            match announce_source(&snapshot, target, self.watched_link) {
                Err(reason) => notes.extend(self.refuse(target, reason, &snapshot)),
                Ok(_) if !self.schedule.allow(now) => {
                    due[at..].iter().for_each(|rest| self.schedule.put_back(*rest));
                    break;
                }
                Ok(source) => {
                    let first = frames.len();
                    let built = announcement(target.ip, &source);
                    frames.extend(built.map(|frame| (target.link, frame)));
                    batch.push((*taken, source, first..frames.len()));
                }
            }
        }
        let mut results = self.socket.send(&frames).into_iter();
        let mut checked = Vec::new();
        for (taken, AnnounceSource { name: link, mac, .. }, range) in batch {
            let target = taken.target;
            let results: Vec<_> = results.by_ref().take(range.len()).collect();
            // The send queue of the link is full: the rest stays due and is sent a little later.
            if results.len() < range.len() {
                self.schedule.put_back(taken);
                continue;
            }
            if let Some(error) = results.into_iter().find_map(Result::err) {
                notes.extend(self.send_failed(target, link, error, now));
                continue;
            }
            self.failing_errno = None;
            self.remove_refusal(target);
            self.counts.announcements += 1;
            self.counts.frames += range.len() as u64;
            let round = self.schedule.sent(target, now);
            if self.plan.ends_first_burst(round.number) {
                checked.push((target, link));
            }
            notes.push(AnnounceNote::Sent { target, link, mac, round });
        }
        notes.extend(self.start_check(checked, &snapshot, now));
    }

    /// Reads the namespace, and pauses before the next batch. On failure returns `None` and tries again later.
    fn snapshot(&mut self, now: Moment, notes: &mut Vec<AnnounceNote>) -> Option<Snapshot> {
        let began = clock::now();
        let snapshot = self.query.own_snapshot();
        let ended = clock::now();
        let pause = (ended.since(began) * PAUSE_PER_QUERY_TIME).min(MAX_PAUSE);
        self.paused_until = Some(ended + pause);
        match snapshot {
            Ok(snapshot) => {
                self.is_query_failing = false;
                Some(snapshot)
            }
            Err(error) => {
                self.schedule.wake(now + QUERY_RETRY_DELAY);
                if !std::mem::replace(&mut self.is_query_failing, true) {
                    notes.push(AnnounceNote::QueryFailed(error));
                }
                None
            }
        }
    }

    fn send_failed(
        &mut self,
        target: LinkAddress,
        link: LinkName,
        error: io::Error,
        now: Moment,
    ) -> Option<AnnounceNote> {
        self.counts.failed += 1;
        self.schedule.failed(target, now);
        let errno = error.raw_os_error().unwrap_or(0);
        let is_new = self.failing_errno.replace(errno) != Some(errno);
        is_new.then_some(AnnounceNote::Failed { target, link, error })
    }

    /// Records a refusal and reports it once, until the address is announced or removed. If one reason to wait replaces
    /// another, it is not reported again.
    fn refuse(
        &mut self,
        target: LinkAddress,
        reason: AnnounceRefusal,
        snapshot: &Snapshot,
    ) -> Option<AnnounceNote> {
        if !reason.is_temporary() {
            self.schedule.cancel(target);
        }
        match self.refused.binary_search_by_key(&target, |(target, _)| *target) {
            Ok(at) => {
                let before = std::mem::replace(&mut self.refused[at].1, reason);
                if before == reason || before.is_temporary() && reason.is_temporary() {
                    return None;
                }
            }
            Err(at) => self.refused.insert(at, (target, reason)),
        }
        self.counts.refused[reason as usize] += 1;
        if is_expected(reason) && self.trigger != AnnounceTrigger::OnRequest {
            return None;
        }
        let link = snapshot.link(target.link).map(|facts| facts.name);
        Some(AnnounceNote::Refused { target, link, reason })
    }

    /// Asks whether other stations hold these addresses, and receives answers for the time in the plan.
    fn start_check(
        &mut self,
        probed: Vec<(LinkAddress, LinkName)>,
        snapshot: &Snapshot,
        now: Moment,
    ) -> Option<AnnounceNote> {
        let duration = self.plan.check.filter(|_| !probed.is_empty())?;
        if let Err(error) = self.socket.start_listening(family_of(&probed)) {
            return Some(AnnounceNote::ListenFailed(error));
        }
        let mac_of = |link| snapshot.link(link).and_then(|facts| facts.mac);
        let frames: Vec<_> = probed
            .iter()
            .filter_map(|(target, _)| Some((target.link, probe(target.ip, mac_of(target.link)?))))
            .collect();
        // A probe that could not be sent gets no answer, as if there were no other holder: the check reports the
        // holders that it finds and does not prove that there are none.
        let _ = self.socket.send(&frames);
        self.extend_check(probed, snapshot, now + duration);
        None
    }

    /// Lets the check include `probed`, and last until `ends_at`.
    fn extend_check(
        &mut self,
        probed: Vec<(LinkAddress, LinkName)>,
        snapshot: &Snapshot,
        ends_at: Moment,
    ) {
        let check = self.check.get_or_insert_with(|| DuplicateCheck::new(ends_at));
        check.ends_at = ends_at;
        check.own_macs =
            snapshot.links.iter().filter_map(|facts| Some((facts.link, facts.mac?))).collect();
        check.add(probed);
    }

    fn end_check(&mut self) {
        if self.check.take().is_some() {
            // If this fails, frames are still queued, but the socket is not polled or read any more.
            let _ = self.socket.stop_listening();
        }
    }

    /// Reads the queued answers of other stations, without waiting.
    pub fn read_answers(&mut self) -> Vec<AnnounceNote> {
        let mut notes = Vec::new();
        let Some(check) = &mut self.check else { return notes };
        for _ in 0..MAX_FRAMES_PER_READ {
            let (link, claim) = match self.socket.read_claim() {
                Ok(ReceivedFrame::Claim(link, claim)) => (link, claim),
                Ok(ReceivedFrame::Other) => continue,
                Ok(ReceivedFrame::QueueEmpty) | Err(_) => break,
            };
            let target = LinkAddress { link, ip: claim.ip };
            match check.record(target, claim.mac) {
                Listing::New(link) => {
                    self.counts.duplicates += 1;
                    notes.push(AnnounceNote::Duplicate { target, link, mac: claim.mac });
                }
                Listing::Ignored => {}
                Listing::Full => self.counts.unlisted_answers += 1,
            }
            if check.is_complete() {
                self.end_check();
                break;
            }
        }
        notes
    }
}

/// The family of these addresses.
fn family_of(probed: &[(LinkAddress, LinkName)]) -> ClaimFamily {
    match probed.split_first() {
        Some(((first, _), rest))
            if rest.iter().any(|(one, _)| one.ip.is_ipv4() != first.ip.is_ipv4()) =>
        {
            ClaimFamily::Both
        }
        Some(((first, _), _)) if first.ip.is_ipv6() => ClaimFamily::Ipv6,
        _ => ClaimFamily::Ipv4,
    }
}

fn link_address((link, cidr): &(LinkIndex, IpNet)) -> LinkAddress {
    LinkAddress { link: *link, ip: cidr.addr() }
}
