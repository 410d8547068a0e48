// SPDX-License-Identifier: Apache-2.0
//! The reported state of every instance: debounce, settled state, and what to do with each report. Pure rules,
//! without socket, disk or clock.
//!
//! The server passes each decision to the sink and records it in the journal. The process may be killed between
//! these steps. The next process restores the states from the journal ([`StoredReport`]) and delivers a settled state
//! again rather than never.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use vipwatch_core::debounce::{Debounce, DebounceDecision, ReportedState};
use vipwatch_core::{InstanceId, Moment};

use crate::journal::StoredReport;
use crate::report_sink::SettledReport;

/// The reported state of one router, for status queries and the audit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouterReport {
    /// The last reported state, settled or not.
    pub state: ReportedState,
    /// When the last report arrived.
    pub at: SystemTime,
    /// The same on the monotonic clock, for decisions.
    pub moment: Moment,
    /// The settled state; `None` while the first report is held back.
    pub settled: Option<ReportedState>,
    /// Whether a reported primary is held back.
    pub is_held: bool,
    /// Number of reports since the receiver started.
    pub reports: u64,
    /// Sequence number of the last report that was delivered to the sink; 0 if none was.
    pub acted_seq: i64,
}

/// The rows that a journal must have about one instance.
#[derive(Debug)]
pub(crate) struct StateRecord {
    pub(crate) instance: InstanceId,
    /// The settled state, if there is one.
    pub(crate) settled: Option<ReportedState>,
    /// Sequence number of the last report that is settled.
    pub(crate) seq: i64,
    /// Sequence number of the last report that was delivered to the sink; 0 if none was.
    pub(crate) acted_seq: i64,
    /// Sequence number and state of a later report that is held back.
    pub(crate) held: Option<(i64, ReportedState)>,
}

/// What the server has to do after a report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ReportOutcome {
    /// Deliver the new state to the sink, and record the report as settled.
    Deliver(SettledReport),
    /// Record the report as settled, and deliver nothing: the state is unchanged, or was reverted within the
    /// interval.
    Settle,
    /// Do nothing: the report is held back.
    Hold,
}

/// The current time on both clocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Now {
    /// For deadlines.
    pub(crate) monotonic: Moment,
    /// For records.
    pub(crate) wall: SystemTime,
}

impl Now {
    /// The moment of a stored time; the current moment for a time in the future.
    fn moment_of(self, at: SystemTime) -> Moment {
        self.monotonic.before(self.wall.duration_since(at).unwrap_or_default())
    }
}

/// One instance.
#[derive(Debug)]
struct ReportState {
    debounce: Debounce,
    /// Sequence number, state and arrival time of the last report.
    seq: i64,
    state: ReportedState,
    at: SystemTime,
    moment: Moment,
    /// Number of reports since the receiver started.
    reports: u64,
    /// Sequence number of the last report that was delivered to the sink; 0 if none was.
    acted_seq: i64,
}

/// All instances.
#[derive(Debug)]
pub(crate) struct ReportStates {
    states: BTreeMap<InstanceId, ReportState>,
    /// When each held-back report is settled, in order.
    deadlines: BTreeSet<(Moment, InstanceId)>,
    debounce_interval: Duration,
}

impl ReportStates {
    pub(crate) fn new(debounce_interval: Duration) -> Self {
        Self { states: BTreeMap::new(), deadlines: BTreeSet::new(), debounce_interval }
    }

    /// Restores an instance from the journal. Returns its settled state if the previous process has delivered one.
    /// The caller [replays](Self::replay) the unsettled reports afterwards.
    pub(crate) fn restore(
        &mut self,
        instance: &InstanceId,
        stored: &StoredReport,
        now: Now,
    ) -> Option<SettledReport> {
        let settled = stored.settled.map(|row| row.state);
        let debounce = settled.map_or_else(Debounce::default, Debounce::settled_as);
        let restored = match (stored.settled, stored.unsettled.last()) {
            (Some(row), _) => ReportState {
                debounce,
                seq: row.seq,
                state: row.state,
                at: row.at,
                moment: now.moment_of(row.at),
                reports: 0,
                acted_seq: row.acted_seq,
            },
            // The replay of the unsettled reports overwrites these values.
            (None, Some((seq, state))) => ReportState::new(*seq, *state, now),
            (None, None) => return None,
        };
        let settled = SettledReport {
            instance: instance.clone(),
            state: restored.state,
            from: None,
            seq: restored.acted_seq,
            at: restored.at,
        };
        self.states.insert(instance.clone(), restored);
        (settled.seq > 0).then_some(settled)
    }

    /// Applies a report that the journal has stored as number `seq`.
    pub(crate) fn apply(
        &mut self,
        instance: &InstanceId,
        reported: ReportedState,
        seq: i64,
        now: Now,
    ) -> ReportOutcome {
        let at = now.wall;
        let new = || ReportState::new(seq, reported, now);
        let state = self.states.entry(instance.clone()).or_insert_with(new);
        (state.seq, state.state) = (seq, reported);
        (state.at, state.moment) = (at, now.monotonic);
        state.reports += 1;
        if let Some(due) = state.debounce.due() {
            self.deadlines.remove(&(due, instance.clone()));
        }
        let from = state.debounce.settled();
        let decision = state.debounce.report(reported, now.monotonic, self.debounce_interval);
        if let Some(due) = state.debounce.due() {
            self.deadlines.insert((due, instance.clone()));
        }
        match decision {
            DebounceDecision::Act(settled) => {
                state.acted_seq = seq;
                let instance = instance.clone();
                ReportOutcome::Deliver(SettledReport { instance, state: settled, from, seq, at })
            }
            DebounceDecision::Unchanged | DebounceDecision::Coalesced => ReportOutcome::Settle,
            DebounceDecision::Held => ReportOutcome::Hold,
        }
    }

    /// Applies a report that the previous process has stored and not settled. That process may have delivered
    /// its state without recording it, so coalescing is off until the next delivery.
    pub(crate) fn replay(
        &mut self,
        instance: &InstanceId,
        reported: ReportedState,
        seq: i64,
        now: Now,
    ) -> ReportOutcome {
        let outcome = self.apply(instance, reported, seq, now);
        // Also after a delivery: the previous process may have delivered the reports after this one as well.
        if let Some(state) = self.states.get_mut(instance) {
            state.debounce.disable_coalescing();
        }
        outcome
    }

    /// When [`Self::settle_due`] has something to settle; `None` if no report is held back.
    pub(crate) fn due(&self) -> Option<Moment> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// Settles the held-back reports after their interval, and returns them.
    pub(crate) fn settle_due(&mut self, now: Now) -> Vec<SettledReport> {
        let mut all = Vec::new();
        while self.due().is_some_and(|due| due <= now.monotonic) {
            let Some((_, instance)) = self.deadlines.pop_first() else { break };
            let Some(state) = self.states.get_mut(&instance) else { continue };
            let from = state.debounce.settled();
            if let Some(settled) = state.debounce.tick(now.monotonic) {
                state.acted_seq = state.seq;
                let (seq, at) = (state.seq, now.wall);
                all.push(SettledReport { instance, state: settled, from, seq, at });
            }
        }
        all
    }

    /// Changes the interval for later reports. Reports that are held back keep their deadline.
    pub(crate) fn set_debounce_interval(&mut self, interval: Duration) {
        self.debounce_interval = interval;
    }

    /// Deletes an instance.
    pub(crate) fn forget(&mut self, instance: &InstanceId) {
        if let Some(due) = self.states.remove(instance).and_then(|state| state.debounce.due()) {
            self.deadlines.remove(&(due, instance.clone()));
        }
    }

    /// The rows that a new journal must have about every instance.
    pub(crate) fn records(&self) -> Vec<StateRecord> {
        let records = self.states.iter().map(|(instance, state)| {
            let is_held = state.debounce.is_holding();
            StateRecord {
                instance: instance.clone(),
                settled: state.debounce.settled(),
                // A report that is held back is not settled.
                seq: if is_held { state.acted_seq } else { state.seq },
                acted_seq: state.acted_seq,
                held: is_held.then_some((state.seq, state.state)),
            }
        });
        records.collect()
    }

    /// Whether an instance has reported.
    pub(crate) fn contains(&self, instance: &InstanceId) -> bool {
        self.states.contains_key(instance)
    }

    /// Number of instances.
    pub(crate) fn len(&self) -> usize {
        self.states.len()
    }

    /// The reported state of one instance; `None` if it has not reported.
    pub(crate) fn router_report(&self, instance: &InstanceId) -> Option<RouterReport> {
        let state = self.states.get(instance)?;
        Some(RouterReport {
            state: state.state,
            at: state.at,
            moment: state.moment,
            settled: state.debounce.settled(),
            is_held: state.debounce.is_holding(),
            reports: state.reports,
            acted_seq: state.acted_seq,
        })
    }
}

impl ReportState {
    /// An instance with nothing settled.
    fn new(seq: i64, state: ReportedState, now: Now) -> Self {
        let (at, moment) = (now.wall, now.monotonic);
        Self { debounce: Debounce::default(), seq, state, at, moment, reports: 0, acted_seq: 0 }
    }
}

#[cfg(test)]
mod tests;
