// SPDX-License-Identifier: Apache-2.0
//! The announcement of one instance: its rounds, the check for other holders, and the repeated checks while another
//! station claims an address.
//!
//! ```text
//!   rounds ──▶ check ──no claim──▶ end
//!                │ claim
//!                ▼
//!             doubt ──checked again, no claim──▶ rounds of this address, if another station held it
//!              ▲ │
//!              └─┘ claim
//! ```

use std::sync::Arc;
use std::time::Duration;

use vipwatch_core::announce::{DuplicateHolder, HolderDoubts};
use vipwatch_core::snapshot::AddressFacts;
use vipwatch_core::{
    AnnouncePlan, ErrorChain, Moment, NeutronState, Observation, Snapshot, SnapshotReason,
};
use vipwatch_linux::clock;
use vipwatch_linux::netns::visit;
use vipwatch_linux::netns_query::NetnsQuery;
use vipwatch_outlets::announce::{AnnounceNote, AnnounceTrigger, Announcer, ProbeOutcome};

use crate::transition::Transition;

/// When further snapshots of the namespace are taken, counted from the start of the announcement.
pub(super) const SNAPSHOT_TIMES: [Duration; 6] = [
    Duration::from_millis(50),
    Duration::from_millis(200),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(5),
    Duration::from_secs(10),
];

/// An instance that is being announced.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) transition: Arc<Transition>,
    pub(super) announcer: Announcer,
    query: NetnsQuery,
    /// When the announcement began.
    began: Moment,
    /// The number of [`SNAPSHOT_TIMES`] that have passed.
    snapshots_taken: usize,
    /// The addresses that other stations have claimed; `None` if the rule has no check.
    doubts: Option<HolderDoubts>,
    /// Whether the first result was reported; later results are only logged.
    pub(super) is_reported: bool,
    /// Whether at least one packet was sent.
    pub(super) has_sent: bool,
}

impl Running {
    /// Opens the sockets in the namespace of the instance, and starts with its first round.
    pub(super) fn begin(transition: Arc<Transition>, plan: AnnouncePlan) -> Result<Self, String> {
        let instance = &transition.instance;
        let opened = visit(instance.netns.as_ref(), || {
            let query = NetnsQuery::open_own().map_err(|error| ErrorChain(&error).to_string())?;
            let announcer = Announcer::open_deferred(plan, AnnounceTrigger::Primary)
                .map_err(|error| ErrorChain(&error).to_string())?;
            Ok::<_, String>((query, announcer))
        });
        let (query, announcer) = opened.map_err(|error| ErrorChain(&error).to_string())??;
        let mut running = Self {
            transition,
            announcer,
            query,
            began: clock::now(),
            snapshots_taken: 0,
            doubts: plan.check.map(HolderDoubts::new),
            is_reported: false,
            has_sent: false,
        };
        running.take_snapshot()?;
        running.announcer.set_state(NeutronState::Primary, clock::now());
        Ok(running)
    }

    /// Continues with the doubts of an earlier announcement of the same instance, if both have a check.
    pub(super) fn keep_doubts(&mut self, earlier: &mut Self) {
        if let (Some(doubts), Some(earlier)) = (&mut self.doubts, &mut earlier.doubts) {
            std::mem::swap(doubts, earlier);
        }
    }

    fn next_snapshot(&self) -> Option<Moment> {
        SNAPSHOT_TIMES.get(self.snapshots_taken).map(|wait| self.began + *wait)
    }

    /// When the next packet, check or snapshot is due; `None` if the announcement has ended.
    pub(super) fn due(&self) -> Option<Moment> {
        let doubts = self.doubts.as_ref().and_then(HolderDoubts::due);
        [self.announcer.due(), self.next_snapshot(), doubts].into_iter().flatten().min()
    }

    /// The other stations that hold addresses of the instance.
    pub(super) fn duplicates(&self) -> Vec<DuplicateHolder> {
        self.doubts.as_ref().map(HolderDoubts::confirmed).unwrap_or_default()
    }

    /// Whether a station has claimed an address, and the repeated check has not ended.
    pub(super) fn has_doubts(&self) -> bool {
        self.doubts.as_ref().is_some_and(|doubts| !doubts.is_empty())
    }

    /// Announces all addresses again, from the first round.
    pub(super) fn announce_again(&mut self) {
        self.announcer.set_state(NeutronState::Primary, clock::now());
    }

    /// Performs the actions that are due; returns their results.
    pub(super) fn advance(&mut self) -> Vec<AnnounceNote> {
        if self.next_snapshot().is_some_and(|at| at <= clock::now()) {
            self.snapshots_taken += 1;
            // A failed snapshot is ignored: the announcer queries the kernel before each round, and further
            // snapshots follow.
            let _ = self.take_snapshot();
        }
        let mut notes = self.announcer.read_answers();
        notes.extend(self.announcer.tick(clock::now()));
        self.advance_doubts(&mut notes);
        notes
    }

    fn advance_doubts(&mut self, notes: &mut Vec<AnnounceNote>) {
        let Some(doubts) = &mut self.doubts else { return };
        let now = clock::now();
        for note in &*notes {
            if let AnnounceNote::Duplicate { target, link, mac } = note {
                let holder = DuplicateHolder { ip: target.ip, link: *link, mac: *mac };
                doubts.record(*target, holder, now);
            }
        }
        for ended in doubts.take_ended(now).into_iter().filter(|ended| ended.was_confirmed) {
            let (instance, ip) = (&self.transition.instance.id, ended.target.ip);
            tracing::info!(%instance, %ip, "announcing address again: no other station holds it any more");
            self.announcer.start(ended.target, now);
        }
        if !self.announcer.is_checking() {
            doubts.interrupted(now);
        }
        let due = doubts.take_due(now);
        if due.is_empty() {
            return;
        }
        for (target, outcome) in self.announcer.probe_again(&due, now, notes) {
            match outcome {
                ProbeOutcome::Sent => doubts.probed(target, now),
                ProbeOutcome::NotYet => doubts.put_off(target, now),
                ProbeOutcome::Dropped => doubts.remove(target),
            }
        }
    }

    /// Takes a snapshot of the namespace, and gives the instance's addresses in it to the announcer.
    fn take_snapshot(&mut self) -> Result<(), String> {
        let snapshot = self.query.own_snapshot().map_err(|error| ErrorChain(&error).to_string())?;
        let wanted = &self.transition.instance.vrrp.addresses;
        let is_of_instance = |facts: &&AddressFacts| {
            let name = snapshot.link(facts.target.link).map(|link| link.name);
            wanted
                .iter()
                .any(|address| Some(address.link) == name && address.cidr.addr() == facts.target.ip)
        };
        let addresses = snapshot.addresses.iter().filter(is_of_instance).copied().collect();
        let snapshot = Snapshot { addresses, links: snapshot.links };
        let observation = Observation::Snapshot { reason: SnapshotReason::Resync, snapshot };
        self.announcer.observe(&observation, clock::now());
        Ok(())
    }
}
