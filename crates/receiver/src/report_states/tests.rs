// SPDX-License-Identifier: Apache-2.0
//! A model of a receiver with a disk and one target. Its process is killed at random points.

use proptest::prelude::*;

use super::*;
use crate::journal::SettledRow;

const INTERVAL: Duration = Duration::from_secs(2);

/// One step of the model.
#[derive(Debug, Clone)]
enum Step {
    /// A monitor reports the state of a router.
    Report(u8, ReportedState),
    /// This number of milliseconds passes.
    Pass(u64),
    /// All pending deliveries arrive at the target, and each is recorded.
    Arrive,
    /// The process is killed. `deferred` rows, which no reply waits for, are lost from the end, and then
    /// `settled` more rows of settled states: those are sent to the writer in batches, deliveries are not.
    Kill { deferred: usize, settled: usize },
}

/// A row, in the order in which the journal receives the rows.
#[derive(Debug, Clone)]
enum Row {
    Report(InstanceId, i64, ReportedState),
    Settled { instance: InstanceId, seq: i64, state: ReportedState, is_acted_on: bool },
    Delivered(InstanceId, i64),
}

#[derive(Debug)]
struct Model {
    states: ReportStates,
    /// Milliseconds since the start.
    time: u64,
    seq: i64,
    /// The journal.
    rows: Vec<Row>,
    /// How many rows were on the disk when the present process started.
    rows_at_start: usize,
    /// Deliveries that have not arrived at the target.
    in_flight: Vec<SettledReport>,
    /// The state that the target has for each router.
    target_states: BTreeMap<InstanceId, ReportedState>,
    /// The last state that was reported for each router.
    last_reported: BTreeMap<InstanceId, ReportedState>,
}

impl Model {
    fn new() -> Self {
        Self {
            states: ReportStates::new(INTERVAL),
            time: 0,
            seq: 0,
            rows: Vec::new(),
            rows_at_start: 0,
            in_flight: Vec::new(),
            target_states: BTreeMap::new(),
            last_reported: BTreeMap::new(),
        }
    }

    fn now(&self) -> Now {
        let since = Duration::from_millis(self.time);
        Now { monotonic: Moment::new(since), wall: SystemTime::UNIX_EPOCH + since }
    }

    fn deliver(&mut self, settled: SettledReport) {
        let SettledReport { instance, state, seq, .. } = settled.clone();
        self.in_flight.push(settled);
        self.rows.push(Row::Settled { instance, seq, state, is_acted_on: true });
    }

    fn act_on(
        &mut self,
        outcome: ReportOutcome,
        instance: &InstanceId,
        state: ReportedState,
        seq: i64,
    ) {
        match outcome {
            ReportOutcome::Deliver(settled) => self.deliver(settled),
            ReportOutcome::Settle => {
                let instance = instance.clone();
                self.rows.push(Row::Settled { instance, seq, state, is_acted_on: false });
            }
            ReportOutcome::Hold => {}
        }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Report(router, state) => {
                let instance: InstanceId = format!("r{router}").parse().unwrap();
                self.seq += 1;
                self.last_reported.insert(instance.clone(), *state);
                self.rows.push(Row::Report(instance.clone(), self.seq, *state));
                let outcome = self.states.apply(&instance, *state, self.seq, self.now());
                self.act_on(outcome, &instance, *state, self.seq);
            }
            Step::Pass(millis) => {
                self.time += millis;
                for settled in self.states.settle_due(self.now()) {
                    self.deliver(settled);
                }
            }
            Step::Arrive => {
                for settled in std::mem::take(&mut self.in_flight) {
                    let SettledReport { instance, state, seq, .. } = settled;
                    self.target_states.insert(instance.clone(), state);
                    self.rows.push(Row::Delivered(instance, seq));
                }
            }
            Step::Kill { deferred, settled } => {
                // The rows of reports are never lost: the reply waits for them.
                self.lose_rows(*deferred, |row| !matches!(row, Row::Report(..)));
                self.lose_rows(*settled, |row| matches!(row, Row::Settled { .. }));
                self.restart();
            }
        }
    }

    /// Removes the last `count` rows of a kind that the present process has written.
    fn lose_rows(&mut self, count: usize, is_of_kind: impl Fn(&Row) -> bool) {
        for _ in 0..count {
            let at = self.rows.iter().rposition(&is_of_kind);
            let Some(at) = at.filter(|at| *at >= self.rows_at_start) else { return };
            self.rows.remove(at);
        }
    }

    /// Starts the next process from the rows on the disk.
    fn restart(&mut self) {
        self.rows_at_start = self.rows.len();
        self.in_flight.clear();
        self.states = ReportStates::new(INTERVAL);
        for (instance, stored) in self.stored() {
            if let Some(settled) = self.states.restore(&instance, &stored, self.now())
                && self.received(&instance) < settled.seq
            {
                self.in_flight.push(settled);
            }
            for (seq, state) in stored.unsettled {
                let outcome = self.states.replay(&instance, state, seq, self.now());
                self.act_on(outcome, &instance, state, seq);
            }
        }
    }

    /// Sequence number of the last report that the target has received, as the history returns it; 0 for none.
    fn received(&self, instance: &InstanceId) -> i64 {
        let delivered = self.rows.iter().rev().find_map(|row| match row {
            Row::Delivered(of, seq) if of == instance => Some(*seq),
            _ => None,
        });
        delivered.unwrap_or(0)
    }

    /// What the journal returns when it is opened.
    fn stored(&self) -> BTreeMap<InstanceId, StoredReport> {
        let mut all: BTreeMap<InstanceId, StoredReport> = BTreeMap::new();
        for row in self.rows.iter().cloned() {
            match row {
                Row::Report(instance, seq, state) => {
                    all.entry(instance).or_default().unsettled.push((seq, state));
                }
                Row::Settled { instance, seq, state, is_acted_on } => {
                    let stored = all.entry(instance).or_default();
                    let before = stored.settled.map_or(0, |row| row.acted_seq);
                    let acted_seq = if is_acted_on { seq } else { before };
                    let at = SystemTime::UNIX_EPOCH;
                    stored.settled = Some(SettledRow { state, seq, acted_seq, at });
                    stored.unsettled.retain(|(open, _)| *open > seq);
                }
                Row::Delivered(..) => {}
            }
        }
        all
    }
}

fn step() -> impl Strategy<Value = Step> {
    let states = [
        ReportedState::Primary,
        ReportedState::Backup,
        ReportedState::Fault,
        ReportedState::Unknown,
    ];
    prop_oneof![
        4 => (0_u8..3, proptest::sample::select(states.to_vec()))
            .prop_map(|(router, state)| Step::Report(router, state)),
        2 => (0_u64..3000).prop_map(Step::Pass),
        2 => Just(Step::Arrive),
        1 => (0_usize..5, 0_usize..5)
            .prop_map(|(deferred, settled)| Step::Kill { deferred, settled }),
    ]
}

/// A case that the random steps have found: every delivery is on the disk, and no settled state is.
#[test]
fn a_state_delivered_before_a_crash_is_corrected_after_it() {
    let mut model = Model::new();
    for step in [
        Step::Report(0, ReportedState::Backup),
        Step::Report(0, ReportedState::Primary),
        Step::Pass(2000),
        Step::Arrive,
        Step::Report(0, ReportedState::Backup),
        Step::Kill { deferred: 1, settled: 4 },
        Step::Kill { deferred: 0, settled: 0 },
        Step::Pass(10_000),
        Step::Arrive,
    ] {
        model.step(&step);
    }
    let known: Vec<ReportedState> = model.target_states.values().copied().collect();
    assert_eq!(known, [ReportedState::Backup]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// For any order of steps and any crash points: the settled state in the end is the last reported state, and the
    /// target has it, unless the target never received anything about the router.
    #[test]
    fn the_target_converges_to_the_last_report_at_any_crash_point(
        steps in proptest::collection::vec(step(), 1..60),
    ) {
        let mut model = Model::new();
        for step in &steps {
            model.step(step);
        }
        for step in [Step::Pass(10_000), Step::Arrive] {
            model.step(&step);
        }
        for (instance, state) in &model.last_reported {
            let report = model.states.router_report(instance).unwrap();
            prop_assert_eq!(report.settled, Some(*state));
            prop_assert_eq!(report.state, *state);
            if let Some(known) = model.target_states.get(instance) {
                prop_assert_eq!(known, state);
            }
        }
    }
}
