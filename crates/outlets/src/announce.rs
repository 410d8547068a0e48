//! Announces addresses to their networks, and never makes the spine wait.
//!
//! ```text
//!              due                  survey: is it true, now?              yes
//!   schedule ───────▶ taken ──────────────────────────────────────────────────▶ sent, next round
//!      ▲                │ no, and it will not be            │ not yet
//!      │                ▼                                   ▼
//!      │            refused, said once          waits for its link or for DAD, said once
//!      └────────────────────────────────────────────────────┘ news of it
//! ```
//!
//! Before each round the kernel is asked for everything again. That costs less than following
//! it would, and an address that left a moment ago is not announced.

mod note;
pub mod once;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use ipnet::IpNet;
use vipwatch_core::announce::{
    AnnounceRefusal, AnnounceSource, DueAnnouncement, Schedule, announce_source,
};
use vipwatch_core::snapshot::{Mac, Snapshot};
use vipwatch_core::{
    AnnouncePlan, LinkAddress, LinkIndex, LinkName, Moment, NeutronState, Observation, Usability,
};
use vipwatch_linux::announce::port::{ClaimFilter, ClaimScan, PacketSocket};
use vipwatch_linux::announce::{announcement, question};
use vipwatch_linux::clock;
use vipwatch_linux::monitor::WatchError;
use vipwatch_linux::netns_query::NetnsQuery;

use self::note::is_expected;
pub use self::note::{AnnounceCounts, AnnounceNote};

/// How long to wait before the kernel is asked again.
const RETRY: Duration = Duration::from_secs(1);

/// How long after one batch the next may come, in times of what the survey took, and at most:
/// of many addresses that arrive one by one, as keepalived adds them, most are asked about
/// together; one more in a small namespace hardly waits.
const GATHER: u32 = 4;
const LONGEST_GATHER: Duration = Duration::from_millis(100);

/// How many frames are read in one go, so that a flood of them keeps nobody waiting.
const HEARD_AT_ONCE: usize = 256;

/// How many other holders of one address a check lists, and how many in all. Any station on the link can answer with as
/// many MACs as it likes.
const MAX_HOLDERS_OF_ADDRESS: usize = 4;
const MAX_HOLDERS: usize = 64;

/// After so many answers a check ends: there is nothing more to learn, and reading on would only cost CPU.
const MAX_ANSWERS: u32 = 4096;

/// What makes an address worth announcing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnnounceTrigger {
    /// It is new, whatever the role: as Neutron's monitor did in releases 10 to 17.
    New,
    /// The role became primary, or the address is new while it is.
    Primary,
    /// Somebody said so.
    Asked,
}

/// Why there is no announcer.
#[derive(Debug, thiserror::Error)]
pub enum AnnouncerError {
    /// A packet socket takes `CAP_NET_RAW`.
    #[error("cannot open a packet socket")]
    PacketSocket(#[source] io::Error),
    /// No survey, no announcement.
    #[error(transparent)]
    Snapshot(#[from] WatchError),
}

/// A question that was asked, and who may still answer.
#[derive(Debug)]
struct Listening {
    until: Moment,
    asked: Vec<(LinkAddress, LinkName)>,
    /// Our own stations, by link.
    own: Vec<(LinkIndex, Mac)>,
    /// Holders listed so far.
    found: Vec<(LinkAddress, Mac)>,
    /// Answers about our addresses, listed or not.
    answers: u32,
}

/// Announces the addresses of one namespace.
#[derive(Debug)]
pub struct Announcer {
    plan: AnnouncePlan,
    when: AnnounceTrigger,
    /// The link that keepalived speaks for.
    watched: Option<LinkName>,
    port: PacketSocket,
    query: NetnsQuery,
    schedule: Schedule,
    role: Option<NeutronState>,
    /// Every address of the namespace; sorted. Nobody needs it for [`AnnounceTrigger::Asked`].
    known: Vec<(LinkIndex, IpNet)>,
    is_informed: bool,
    /// What was said and still is so; sorted by target.
    refused: Vec<(LinkAddress, AnnounceRefusal)>,
    /// The kind of failure that was said last, while it lasts.
    failing: Option<i32>,
    is_blind: bool,
    /// No batch before this.
    gathering_until: Option<Moment>,
    listening: Option<Listening>,
    tally: AnnounceCounts,
}

impl Announcer {
    /// Opens what is needed in the namespace of the calling thread, while it may.
    pub fn open(
        plan: AnnouncePlan,
        when: AnnounceTrigger,
        watched: Option<LinkName>,
    ) -> Result<Self, AnnouncerError> {
        let hearing =
            if plan.check.is_some() { ClaimFilter::WhenAsked } else { ClaimFilter::Never };
        Ok(Self {
            plan,
            when,
            watched,
            port: PacketSocket::open(hearing).map_err(AnnouncerError::PacketSocket)?,
            query: NetnsQuery::open_own()?,
            schedule: Schedule::new(plan),
            role: None,
            known: Vec::new(),
            is_informed: false,
            refused: Vec::new(),
            failing: None,
            is_blind: false,
            gathering_until: None,
            listening: None,
            tally: AnnounceCounts::default(),
        })
    }

    /// The socket to wait on, while answers are awaited.
    pub fn waiting_on(&self) -> Option<BorrowedFd<'_>> {
        self.listening.as_ref().map(|_| self.port.as_fd())
    }

    /// When [`Self::tick`] has something to do.
    pub fn due(&self) -> Option<Moment> {
        let listening = self.listening.as_ref().map(|listening| listening.until);
        let due = self.schedule.due();
        let due = due.map(|due| self.gathering_until.map_or(due, |until| until.max(due)));
        [due, listening].into_iter().flatten().min()
    }

    /// Begins to announce `target`.
    pub fn start(&mut self, target: LinkAddress, now: Moment) {
        self.schedule.start(target, now);
    }

    /// What was done since it was last told.
    pub fn tally(&mut self) -> Option<AnnounceCounts> {
        let tally = std::mem::take(&mut self.tally);
        tally.is_worth_telling().then_some(tally)
    }

    /// The role has changed. Whoever is not primary any more has nothing to announce.
    pub fn follow(&mut self, role: NeutronState, now: Moment) {
        let before = self.role.replace(role);
        self.schedule.set_refreshing(role == NeutronState::Primary);
        match role {
            NeutronState::Primary if self.when == AnnounceTrigger::Primary => {
                for at in 0..self.known.len() {
                    self.start(place(&self.known[at]), now);
                }
            }
            NeutronState::Primary => {}
            // A first word is no demotion: what is new by then stays to be announced.
            NeutronState::Backup if before != Some(NeutronState::Primary) => {}
            NeutronState::Backup => {
                self.schedule.clear();
                self.refused.retain(|(_, reason)| !reason.is_temporary());
                self.stop_listening();
            }
        }
    }

    /// Takes in what the kernel told.
    pub fn observe(&mut self, seen: &Observation, now: Moment) {
        match seen {
            Observation::AddressSeen { link, cidr, usability } => {
                let target = LinkAddress { link: *link, ip: cidr.addr() };
                match self.known.binary_search(&(*link, *cidr)) {
                    Ok(_) => self.see_again(target, *usability, now),
                    Err(at) => {
                        self.known.insert(at, (*link, *cidr));
                        self.appear(target, now);
                    }
                }
            }
            Observation::AddressRemoved { link, cidr } => {
                self.known.retain(|known| *known != (*link, *cidr));
                self.forget_lost();
            }
            Observation::LinkRemoved { link } => {
                self.known.retain(|(known, _)| known != link);
                self.forget_lost();
            }
            // It may have got a carrier.
            Observation::LinkSeen { link, .. } => self.schedule.wake_link(*link, now),
            Observation::Snapshot { snapshot, .. } => self.take_stock(snapshot, now),
            Observation::FirstSnapshotOverdue | Observation::NamespaceRemoved => {}
        }
    }

    /// Replaces what is known, and finds what no event told.
    fn take_stock(&mut self, snapshot: &Snapshot, now: Moment) {
        let present = snapshot
            .addresses
            .iter()
            .filter_map(|address| Some((address.target.link, address.cidr()?)));
        let mut present: Vec<_> = present.collect();
        present.sort_unstable();
        let before = std::mem::replace(&mut self.known, present);
        self.forget_lost();
        // What was there before we looked for the first time is not new.
        if std::mem::replace(&mut self.is_informed, true) {
            for at in 0..self.known.len() {
                if before.binary_search(&self.known[at]).is_err() {
                    self.appear(place(&self.known[at]), now);
                }
            }
        }
        self.schedule.wake(now);
    }

    /// A new address.
    fn appear(&mut self, target: LinkAddress, now: Moment) {
        let is_wanted = match self.when {
            AnnounceTrigger::New => true,
            AnnounceTrigger::Primary => self.role == Some(NeutronState::Primary),
            AnnounceTrigger::Asked => false,
        };
        if is_wanted {
            self.start(target, now);
        }
    }

    /// Duplicate address detection may have ended, for the first time or once more.
    fn see_again(&mut self, target: LinkAddress, usability: Usability, now: Moment) {
        self.schedule.wake_target(target, now);
        let was_duplicate = self.refused_for(target) == Some(AnnounceRefusal::Duplicate);
        if was_duplicate && usability == Usability::Usable {
            self.forget_refusal(target);
            self.appear(target, now);
        }
    }

    /// Drops everything about addresses that are not there any more. One that stays with
    /// another prefix length has not gone.
    fn forget_lost(&mut self) {
        let known = &self.known;
        let is_held = |target: LinkAddress| {
            let first =
                known.partition_point(|entry| (entry.0, entry.1.addr()) < (target.link, target.ip));
            known.get(first).is_some_and(|entry| place(entry) == target)
        };
        self.schedule.retain(is_held);
        self.refused.retain(|(target, _)| is_held(*target));
        if let Some(listening) = &mut self.listening {
            listening.asked.retain(|(target, _)| is_held(*target));
        }
    }

    fn refused_for(&self, target: LinkAddress) -> Option<AnnounceRefusal> {
        let found = self.refused.binary_search_by_key(&target, |(target, _)| *target);
        found.ok().map(|at| self.refused[at].1)
    }

    fn forget_refusal(&mut self, target: LinkAddress) {
        if let Ok(at) = self.refused.binary_search_by_key(&target, |(target, _)| *target) {
            self.refused.remove(at);
        }
    }

    /// Sends what is due, and ends a check that has listened for long enough.
    pub fn tick(&mut self, now: Moment) -> Vec<AnnounceNote> {
        let mut notes = Vec::new();
        if self.listening.as_ref().is_some_and(|listening| listening.until <= now) {
            self.stop_listening();
        }
        if self.gathering_until.is_none_or(|until| until <= now) {
            let due = self.schedule.take_due(now);
            if !due.is_empty() {
                self.send(&due, now, &mut notes);
            }
        }
        if self.schedule.is_empty() && self.listening.is_none() {
            notes.extend(self.tally().map(AnnounceNote::Ended));
        }
        notes
    }

    fn send(&mut self, due: &[DueAnnouncement], now: Moment, notes: &mut Vec<AnnounceNote>) {
        let Some(snapshot) = self.snapshot(now, notes) else { return };
        let mut speakers = Vec::with_capacity(due.len());
        let mut frames = Vec::with_capacity(due.len() * 2);
        for (at, taken) in due.iter().enumerate() {
            let target = taken.target;
            match announce_source(&snapshot, target, self.watched) {
                Err(reason) => notes.extend(self.refuse(target, reason, &snapshot)),
                Ok(_) if !self.schedule.allow(now) => {
                    due[at..].iter().for_each(|rest| self.schedule.put_back(*rest));
                    break;
                }
                Ok(speaker) => {
                    let first = frames.len();
                    let said = announcement(target.ip, &speaker);
                    frames.extend(said.map(|frame| (target.link, frame)));
                    speakers.push((*taken, speaker, first..frames.len()));
                }
            }
        }
        let mut results = self.port.send(&frames).into_iter();
        let mut checked = Vec::new();
        for (taken, AnnounceSource { name: link, mac, .. }, range) in speakers {
            let target = taken.target;
            let results: Vec<_> = results.by_ref().take(range.len()).collect();
            // The link's queue is full: the rest is as due as before, a little later.
            if results.len() < range.len() {
                self.schedule.put_back(taken);
                continue;
            }
            if let Some(error) = results.into_iter().find_map(Result::err) {
                notes.extend(self.fail(target, link, error, now));
                continue;
            }
            self.failing = None;
            self.forget_refusal(target);
            self.tally.announcements += 1;
            self.tally.frames += range.len() as u64;
            let round = self.schedule.sent(target, now);
            if self.plan.ends_first_burst(round.number) {
                checked.push((target, link));
            }
            notes.push(AnnounceNote::Sent { target, link, mac, round });
        }
        notes.extend(self.ask(checked, &snapshot, now));
    }

    /// The namespace as it is now; the next one is not taken at once.
    fn snapshot(&mut self, now: Moment, notes: &mut Vec<AnnounceNote>) -> Option<Snapshot> {
        let began = clock::now();
        let snapshot = self.query.own_snapshot();
        let ended = clock::now();
        let gather = (ended.since(began) * GATHER).min(LONGEST_GATHER);
        self.gathering_until = Some(ended + gather);
        match snapshot {
            Ok(snapshot) => {
                self.is_blind = false;
                Some(snapshot)
            }
            Err(error) => {
                self.schedule.wake(now + RETRY);
                if !std::mem::replace(&mut self.is_blind, true) {
                    notes.push(AnnounceNote::Blind(error));
                }
                None
            }
        }
    }

    fn fail(
        &mut self,
        target: LinkAddress,
        link: LinkName,
        error: io::Error,
        now: Moment,
    ) -> Option<AnnounceNote> {
        self.tally.failed += 1;
        self.schedule.failed(target, now);
        let kind = error.raw_os_error().unwrap_or(0);
        let is_news = self.failing.replace(kind) != Some(kind);
        is_news.then_some(AnnounceNote::Failed { target, link, error })
    }

    /// Says so, once: until it is announced, or gone. One wait that gives way to another is
    /// still the same wait.
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
        self.tally.refused[reason as usize] += 1;
        if is_expected(reason) && self.when != AnnounceTrigger::Asked {
            return None;
        }
        let link = snapshot.link(target.link).map(|facts| facts.name);
        Some(AnnounceNote::Refused { target, link, reason })
    }

    // The check.

    /// Asks who else has these addresses, and listens for a while.
    fn ask(
        &mut self,
        asked: Vec<(LinkAddress, LinkName)>,
        snapshot: &Snapshot,
        now: Moment,
    ) -> Option<AnnounceNote> {
        let patience = self.plan.check.filter(|_| !asked.is_empty())?;
        if let Err(error) = self.port.listen() {
            return Some(AnnounceNote::Deaf(error));
        }
        let mac_of = |link| snapshot.link(link).and_then(|facts| facts.mac);
        let questions: Vec<_> = asked
            .iter()
            .filter_map(|(target, _)| {
                Some((target.link, question(target.ip, mac_of(target.link)?)))
            })
            .collect();
        // A question that was not sent has no answer, which is what we want to hear anyway:
        // the check finds what it can, and proves nothing.
        let _ = self.port.send(&questions);
        let listening = self.listening.get_or_insert_with(|| Listening {
            until: now,
            asked: Vec::new(),
            own: Vec::new(),
            found: Vec::new(),
            answers: 0,
        });
        listening.until = now + patience;
        listening.own =
            snapshot.links.iter().filter_map(|facts| Some((facts.link, facts.mac?))).collect();
        listening.asked.extend(asked);
        listening.asked.sort_unstable_by_key(|(target, _)| *target);
        listening.asked.dedup_by_key(|(target, _)| *target);
        None
    }

    fn stop_listening(&mut self) {
        if self.listening.take().is_some() {
            // If it cannot be silenced, nobody reads it any more.
            let _ = self.port.hush();
        }
    }

    /// Reads the answers, as far as they are there.
    pub fn answered(&mut self) -> Vec<AnnounceNote> {
        let mut notes = Vec::new();
        let Some(listening) = &mut self.listening else { return notes };
        for _ in 0..HEARD_AT_ONCE {
            let (link, claim) = match self.port.claim() {
                Ok(ClaimScan::AddressClaim(link, claim)) => (link, claim),
                Ok(ClaimScan::Other) => continue,
                Ok(ClaimScan::Silence) | Err(_) => break,
            };
            let target = LinkAddress { link, ip: claim.ip };
            let asked = listening.asked.binary_search_by_key(&target, |(asked, _)| *asked);
            let Ok(asked) = asked else { continue };
            if listening.is_ours(link, claim.mac) {
                continue;
            }
            listening.answers += 1;
            match listening.list(target, claim.mac) {
                Listed::New => {
                    self.tally.duplicates += 1;
                    let link = listening.asked[asked].1;
                    notes.push(AnnounceNote::Duplicate { target, link, mac: claim.mac });
                }
                Listed::Before => {}
                Listed::NoRoom => self.tally.unlisted_answers += 1,
            }
            if listening.answers >= MAX_ANSWERS {
                self.stop_listening();
                break;
            }
        }
        notes
    }
}

/// Whether a check lists the holder that an answer names.
enum Listed {
    New,
    Before,
    NoRoom,
}

impl Listening {
    /// Whether `mac` is another link of ours, in the same network: there the kernel answers for
    /// every address it has. The same MAC on the same link comes from outside, and is the
    /// worst of all duplicates: in Neutron, the port of a router has one MAC on every node.
    fn is_ours(&self, link: LinkIndex, mac: Mac) -> bool {
        self.own.iter().any(|(own, own_mac)| *own != link && *own_mac == mac)
    }

    /// Lists `mac` as a holder of `target`, if it is new and there is room.
    fn list(&mut self, target: LinkAddress, mac: Mac) -> Listed {
        if self.found.contains(&(target, mac)) {
            return Listed::Before;
        }
        let of_address = self.found.iter().filter(|(found, _)| *found == target).count();
        if of_address >= MAX_HOLDERS_OF_ADDRESS || self.found.len() >= MAX_HOLDERS {
            return Listed::NoRoom;
        }
        self.found.push((target, mac));
        Listed::New
    }
}

fn place((link, cidr): &(LinkIndex, IpNet)) -> LinkAddress {
    LinkAddress { link: *link, ip: cidr.addr() }
}
