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

pub mod once;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use vipwatch_core::announce::{Mac, Refusal, Schedule, Survey};
use vipwatch_core::{
    AnnouncePlan, Inventory, LinkIndex, LinkName, Moment, Observation, Role, Target,
};
use vipwatch_linux::announce::port::Port;
use vipwatch_linux::announce::{announcement, question};
use vipwatch_linux::clock;
use vipwatch_linux::monitor::WatchError;
use vipwatch_linux::survey::Surveyor;

/// How long to wait before the kernel is asked again.
const RETRY: Duration = Duration::from_secs(1);

/// How long after one batch the next may come, in times of what the survey took, and at most:
/// of many addresses that arrive one by one, as keepalived adds them, most are asked about
/// together; one more in a small namespace hardly waits.
const GATHER: u32 = 4;
const LONGEST_GATHER: Duration = Duration::from_millis(10);

/// What makes an address worth announcing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// It is new, whatever the role: as Neutron's monitor did in releases 10 to 17.
    New,
    /// The role became primary, or the address is new while it is.
    Primary,
    /// Somebody said so.
    Asked,
}

/// Why there is no announcer.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A packet socket takes `CAP_NET_RAW`.
    #[error("cannot open a packet socket")]
    Port(#[source] io::Error),
    /// No survey, no announcement.
    #[error(transparent)]
    Survey(#[from] WatchError),
}

/// Something worth telling about an announcement.
#[derive(Debug)]
pub enum Note {
    /// A round has gone out.
    Sent {
        /// The address.
        target: Target,
        /// Its link.
        link: LinkName,
        /// Who it is said to be at.
        mac: Mac,
        /// Which round; 1 is the first.
        round: u16,
    },
    /// It is not announced, or not yet; said once per reason.
    Refused {
        /// The address.
        target: Target,
        /// Its link, if there is one.
        link: Option<LinkName>,
        /// Why.
        reason: Refusal,
    },
    /// The kernel did not take it; tried again.
    Failed {
        /// The address.
        target: Target,
        /// Its link.
        link: LinkName,
        /// What the kernel said.
        error: io::Error,
    },
    /// Another station says that it has the address too.
    Duplicate {
        /// The address.
        target: Target,
        /// Its link.
        link: LinkName,
        /// The other station.
        mac: Mac,
    },
    /// The kernel could not be asked; tried again.
    Blind(WatchError),
    /// Nothing is left to be announced; what was done since the last time.
    Ended(Tally),
}

/// What was done, in numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Rounds of all addresses that went out whole.
    pub announcements: u64,
    /// Frames of those.
    pub frames: u64,
    /// Rounds that the kernel did not take.
    pub failed: u64,
    /// Stations found that hold an address of ours.
    pub duplicates: u64,
    refused: [u64; Refusal::ALL.len()],
}

impl Tally {
    /// How many were refused for `reason`.
    pub fn refused(&self, reason: Refusal) -> u64 {
        self.refused[reason as usize]
    }

    /// How many were refused for any reason but the usual one.
    pub fn refused_in_all(&self) -> u64 {
        self.refused.iter().sum::<u64>() - self.refused(Refusal::WatchedLink)
    }
}

/// A question that was asked, and who may still answer.
#[derive(Debug)]
struct Listening {
    until: Moment,
    asked: Vec<(Target, LinkName)>,
    /// Our own stations, who do not count.
    own: Vec<Mac>,
    found: Vec<(Target, Mac)>,
}

/// Announces the addresses of one namespace.
#[derive(Debug)]
pub struct Announcer {
    plan: AnnouncePlan,
    when: When,
    /// The link that keepalived speaks for.
    watched: Option<LinkName>,
    port: Port,
    surveyor: Surveyor,
    schedule: Schedule,
    role: Option<Role>,
    /// Every address of the namespace; sorted. Nobody needs it for [`When::Asked`].
    known: Vec<Target>,
    is_informed: bool,
    /// What was said and still is so.
    refused: Vec<(Target, Refusal)>,
    is_blind: bool,
    /// No batch before this.
    gathering_until: Option<Moment>,
    listening: Option<Listening>,
    tally: Tally,
}

impl Announcer {
    /// Opens what is needed in the namespace of the calling thread, while it may.
    pub fn open(
        plan: AnnouncePlan,
        when: When,
        watched: Option<LinkName>,
    ) -> Result<Self, OpenError> {
        Ok(Self {
            plan,
            when,
            watched,
            port: Port::open().map_err(OpenError::Port)?,
            surveyor: Surveyor::open()?,
            schedule: Schedule::new(plan),
            role: None,
            known: Vec::new(),
            is_informed: false,
            refused: Vec::new(),
            is_blind: false,
            gathering_until: None,
            listening: None,
            tally: Tally::default(),
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
    pub fn start(&mut self, target: Target, now: Moment) {
        self.forget_refusals(|refused| refused == target);
        self.schedule.start(target, now);
    }

    /// The role has changed. Whoever is not primary any more has nothing to announce.
    pub fn follow(&mut self, role: Role, now: Moment) {
        self.role = Some(role);
        match role {
            Role::Primary if self.when == When::Primary => {
                for target in self.known.clone() {
                    self.start(target, now);
                }
            }
            Role::Primary => {}
            Role::Backup => {
                self.schedule.clear();
                self.refused.clear();
            }
        }
    }

    /// Takes in what the kernel told.
    pub fn observe(&mut self, seen: &Observation, now: Moment) {
        match seen {
            Observation::AddressSeen { link, cidr, .. } => {
                let target = Target { link: *link, ip: cidr.addr() };
                match self.known.binary_search(&target) {
                    // Duplicate address detection may have ended.
                    Ok(_) => self.schedule.wake_target(target, now),
                    Err(at) => {
                        self.known.insert(at, target);
                        self.appear(target, now);
                    }
                }
            }
            Observation::AddressRemoved { link, cidr } => {
                let gone = Target { link: *link, ip: cidr.addr() };
                self.forget(|target| target == gone);
            }
            Observation::LinkRemoved { link } => self.forget(|target| target.link == *link),
            // It may have got a carrier.
            Observation::LinkSeen { .. } => self.schedule.wake(now),
            Observation::Inventory(inventory) => self.take_stock(inventory, now),
            Observation::FirstLookOverdue | Observation::NamespaceRemoved => {}
        }
    }

    /// Replaces what is known, and finds what no event told.
    fn take_stock(&mut self, inventory: &Inventory, now: Moment) {
        let place = |(link, cidr, _): &(LinkIndex, ipnet::IpNet, _)| Target {
            link: *link,
            ip: cidr.addr(),
        };
        let mut present: Vec<Target> = inventory.addresses.iter().map(place).collect();
        present.sort_unstable();
        let before = std::mem::replace(&mut self.known, present.clone());
        self.forget(|target| present.binary_search(&target).is_err());
        // What was there before we looked for the first time is not new.
        if std::mem::replace(&mut self.is_informed, true) {
            for target in present {
                if before.binary_search(&target).is_err() {
                    self.appear(target, now);
                }
            }
        }
        self.schedule.wake(now);
    }

    /// A new address.
    fn appear(&mut self, target: Target, now: Moment) {
        let is_wanted = match self.when {
            When::New => true,
            When::Primary => self.role == Some(Role::Primary),
            When::Asked => false,
        };
        if is_wanted {
            self.start(target, now);
        }
    }

    fn forget(&mut self, is_gone: impl Fn(Target) -> bool) {
        self.known.retain(|target| !is_gone(*target));
        self.schedule.retain(|target| !is_gone(target));
        self.forget_refusals(is_gone);
    }

    fn forget_refusals(&mut self, is_gone: impl Fn(Target) -> bool) {
        self.refused.retain(|(target, _)| !is_gone(*target));
    }

    /// Sends what is due, and ends a check that has listened for long enough.
    pub fn tick(&mut self, now: Moment) -> Vec<Note> {
        let mut notes = Vec::new();
        if self.listening.as_ref().is_some_and(|listening| listening.until <= now) {
            self.listening = None;
            // If it cannot be silenced, nobody reads it any more.
            let _ = self.port.hush();
        }
        if self.gathering_until.is_none_or(|until| until <= now) {
            let due = self.schedule.take_due(now);
            if !due.is_empty() {
                self.send(&due, now, &mut notes);
            }
        }
        let is_over = self.schedule.is_empty() && self.listening.is_none();
        if is_over && self.tally != Tally::default() {
            notes.push(Note::Ended(std::mem::take(&mut self.tally)));
        }
        notes
    }

    fn send(&mut self, due: &[Target], now: Moment, notes: &mut Vec<Note>) {
        let began = clock::now();
        let survey = self.surveyor.survey();
        let ended = clock::now();
        let gather = (ended.since(began) * GATHER).min(LONGEST_GATHER);
        self.gathering_until = Some(ended + gather);
        let survey = match survey {
            Ok(survey) => survey,
            Err(error) => {
                self.schedule.wake(now + RETRY);
                if !std::mem::replace(&mut self.is_blind, true) {
                    notes.push(Note::Blind(error));
                }
                return;
            }
        };
        self.is_blind = false;
        let mut speakers = Vec::with_capacity(due.len());
        let mut frames = Vec::with_capacity(due.len() * 2);
        for target in due {
            match survey.speaker(*target, self.watched) {
                Ok(speaker) => {
                    let first = frames.len();
                    let said = announcement(target.ip, &speaker);
                    frames.extend(said.map(|frame| (target.link, frame)));
                    speakers.push((*target, speaker, first..frames.len()));
                }
                Err(reason) => notes.extend(self.refuse(*target, reason, &survey)),
            }
        }
        let mut results = self.port.send(&frames);
        let mut checked = Vec::new();
        for (target, speaker, range) in speakers {
            let count = range.len() as u64;
            let failure = results[range]
                .iter_mut()
                .find_map(|result| std::mem::replace(result, Ok(())).err());
            let link = speaker.name;
            if let Some(error) = failure {
                self.tally.failed += 1;
                self.schedule.failed(target, now);
                notes.push(Note::Failed { target, link, error });
                continue;
            }
            self.forget_refusals(|refused| refused == target);
            self.tally.announcements += 1;
            self.tally.frames += count;
            let round = self.schedule.sent(target, now);
            if self.plan.ends_first_burst(round) {
                checked.push((target, link));
            }
            notes.push(Note::Sent { target, link, mac: speaker.mac, round });
        }
        self.ask(checked, &survey, now);
    }

    fn refuse(&mut self, target: Target, reason: Refusal, survey: &Survey) -> Option<Note> {
        if !reason.is_passing() {
            self.schedule.cancel(target);
        }
        if self.refused.contains(&(target, reason)) {
            return None;
        }
        self.forget_refusals(|refused| refused == target);
        if reason.is_passing() {
            self.refused.push((target, reason));
        }
        self.tally.refused[reason as usize] += 1;
        // That one is left out on purpose, and expected.
        if reason == Refusal::WatchedLink {
            return None;
        }
        let link = survey.link(target.link).map(|facts| facts.name);
        Some(Note::Refused { target, link, reason })
    }

    // The check.

    /// Asks who else has these addresses, and listens for a while.
    fn ask(&mut self, asked: Vec<(Target, LinkName)>, survey: &Survey, now: Moment) {
        let Some(patience) = self.plan.check.filter(|_| !asked.is_empty()) else { return };
        if self.port.listen().is_err() {
            return;
        }
        let mac_of = |link| survey.link(link).and_then(|facts| facts.mac);
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
            own: survey.links.iter().filter_map(|facts| facts.mac).collect(),
            found: Vec::new(),
        });
        listening.until = now + patience;
        listening.asked.extend(asked);
    }

    /// Reads the answers, as far as they are there.
    pub fn answered(&mut self) -> Vec<Note> {
        let mut notes = Vec::new();
        let Some(listening) = &mut self.listening else { return notes };
        while let Ok(Some((link, claim))) = self.port.claim() {
            let target = Target { link, ip: claim.ip };
            let asked = listening.asked.iter().find(|(asked, _)| *asked == target);
            let Some((_, name)) = asked else { continue };
            let found = (target, claim.mac);
            if listening.own.contains(&claim.mac) || listening.found.contains(&found) {
                continue;
            }
            listening.found.push(found);
            self.tally.duplicates += 1;
            notes.push(Note::Duplicate { target, link: *name, mac: claim.mac });
        }
        notes
    }
}
