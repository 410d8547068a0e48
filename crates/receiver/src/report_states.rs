//! What was claimed of each instance, and what follows from it: the rules of a receiver, without its socket
//! and its disk.
//!
//! What follows is told to the audience, and noted in the journal. A process may be killed between any two
//! of these; the next one is handed what the journal has ([`StoredReport`]), and whoever must know is told once
//! more rather than never.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use vipwatch_core::debounce::{Debounce, DebounceDecision, ReportedState};
use vipwatch_core::{InstanceId, Moment};

use crate::journal::StoredReport;
use crate::server::SettledReport;

/// What is known of one instance, for whoever asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouterReport {
    /// What was claimed last.
    pub state: ReportedState,
    /// When.
    pub at: SystemTime,
    /// What holds.
    pub settled: Option<ReportedState>,
    /// Whether a primary is held back.
    pub is_held: bool,
    /// How many reports there were.
    pub reports: u64,
    /// The last report that was acted on; zero if none ever was.
    pub acted: i64,
}

/// What a journal must have of one instance.
#[derive(Debug)]
pub(crate) struct StoredRow {
    pub(crate) instance: InstanceId,
    /// What holds, by the report `seq`.
    pub(crate) settled: Option<ReportedState>,
    pub(crate) seq: i64,
    /// The last report that was acted on; zero if none ever was.
    pub(crate) acted: i64,
    /// The report after that, by its number, if it is held back.
    pub(crate) held: Option<(i64, ReportedState)>,
}

/// What follows from a report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ReportOutcome {
    /// The audience is told, and it is noted.
    Tell(SettledReport),
    /// It is noted: it was so already, or was taken back in time.
    Note,
    /// Nothing, for now.
    Wait,
}

/// One instance's.
#[derive(Debug)]
struct Book {
    debounce: Debounce,
    /// The last report, and what it said when.
    seq: i64,
    state: ReportedState,
    at: SystemTime,
    reports: u64,
    /// The last report that was acted on.
    acted: i64,
}

/// All of them.
#[derive(Debug)]
pub(crate) struct ReportStates {
    each: BTreeMap<InstanceId, Book>,
    due: BTreeSet<(Moment, InstanceId)>,
    /// For how long a primary is held back.
    interval: Duration,
}

impl ReportStates {
    pub(crate) fn new(interval: Duration) -> Self {
        Self { each: BTreeMap::new(), due: BTreeSet::new(), interval }
    }

    /// Takes over what the journal has of an instance; tells what holds, if anybody was ever told of it.
    /// The reports that are open are to be heard [again](Self::hear_again) after this.
    pub(crate) fn recall(
        &mut self,
        instance: &InstanceId,
        memory: &StoredReport,
    ) -> Option<SettledReport> {
        let settled = memory.settled.map(|holds| holds.state);
        let debounce = settled.map_or_else(Debounce::default, Debounce::settled_as);
        let (state, seq, at, acted) = match (memory.settled, memory.open.last()) {
            (Some(holds), _) => (holds.state, holds.seq, holds.at, holds.acted),
            // It is heard next.
            (None, Some((seq, state))) => (*state, *seq, SystemTime::UNIX_EPOCH, 0),
            (None, None) => return None,
        };
        self.each.insert(instance.clone(), Book { debounce, seq, state, at, reports: 0, acted });
        let (instance, seq) = (instance.clone(), acted);
        (acted > 0).then_some(SettledReport { instance, state, from: None, seq, at })
    }

    /// A report that is in the journal.
    pub(crate) fn hear(
        &mut self,
        instance: &InstanceId,
        state: ReportedState,
        seq: i64,
        (now, at): (Moment, SystemTime),
    ) -> ReportOutcome {
        let debounce = Debounce::default;
        let fresh = || Book { debounce: debounce(), seq, state, at, reports: 0, acted: 0 };
        let book = self.each.entry(instance.clone()).or_insert_with(fresh);
        (book.seq, book.state, book.at) = (seq, state, at);
        book.reports += 1;
        if let Some(due) = book.debounce.due() {
            self.due.remove(&(due, instance.clone()));
        }
        let from = book.debounce.settled();
        let verdict = book.debounce.report(state, now, self.interval);
        if let Some(due) = book.debounce.due() {
            self.due.insert((due, instance.clone()));
        }
        match verdict {
            DebounceDecision::Act(state) => {
                book.acted = seq;
                ReportOutcome::Tell(SettledReport {
                    instance: instance.clone(),
                    state,
                    from,
                    seq,
                    at,
                })
            }
            DebounceDecision::Unchanged | DebounceDecision::Coalesced => ReportOutcome::Note,
            DebounceDecision::Held => ReportOutcome::Wait,
        }
    }

    /// A report that was promised by the process before us. It may have been acted on, and not have been noted:
    /// nothing of it is swallowed.
    pub(crate) fn hear_again(
        &mut self,
        instance: &InstanceId,
        state: ReportedState,
        seq: i64,
        now: (Moment, SystemTime),
    ) -> ReportOutcome {
        let consequence = self.hear(instance, state, seq, now);
        // Also if something was acted on again: what follows it may have been, too.
        if let Some(book) = self.each.get_mut(instance) {
            book.debounce.disable_coalescing();
        }
        consequence
    }

    /// When [`Self::tick`] has something to tell.
    pub(crate) fn due(&self) -> Option<Moment> {
        self.due.first().map(|(at, _)| *at)
    }

    /// What is to be told now, because nobody has taken it back.
    pub(crate) fn tick(&mut self, (now, at): (Moment, SystemTime)) -> Vec<SettledReport> {
        let mut told = Vec::new();
        while self.due().is_some_and(|due| due <= now) {
            let Some((_, instance)) = self.due.pop_first() else { break };
            let Some(book) = self.each.get_mut(&instance) else { continue };
            let from = book.debounce.settled();
            if let Some(state) = book.debounce.tick(now) {
                book.acted = book.seq;
                told.push(SettledReport { instance, state, from, seq: book.seq, at });
            }
        }
        told
    }

    /// From now on, a primary is held back for so long.
    pub(crate) fn set_interval(&mut self, interval: Duration) {
        self.interval = interval;
    }

    /// Forgets an instance.
    pub(crate) fn forget(&mut self, instance: &InstanceId) {
        if let Some(due) = self.each.remove(instance).and_then(|book| book.debounce.due()) {
            self.due.remove(&(due, instance.clone()));
        }
    }

    /// What a journal must have of every instance, to go on from there.
    pub(crate) fn kept(&self) -> Vec<StoredRow> {
        let each = self.each.iter().map(|(instance, book)| {
            let is_held = book.debounce.is_holding();
            StoredRow {
                instance: instance.clone(),
                settled: book.debounce.settled(),
                // A report that is held back is not settled.
                seq: if is_held { book.acted } else { book.seq },
                acted: book.acted,
                held: is_held.then_some((book.seq, book.state)),
            }
        });
        each.collect()
    }

    /// Whether there is anything about an instance.
    pub(crate) fn has(&self, instance: &InstanceId) -> bool {
        self.each.contains_key(instance)
    }

    /// How many instances there are.
    pub(crate) fn len(&self) -> usize {
        self.each.len()
    }

    /// What is known of one.
    pub(crate) fn router_report(&self, instance: &InstanceId) -> Option<RouterReport> {
        let book = self.each.get(instance)?;
        Some(RouterReport {
            state: book.state,
            at: book.at,
            settled: book.debounce.settled(),
            is_held: book.debounce.is_holding(),
            reports: book.reports,
            acted: book.acted,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::journal::SettledRow;

    const INTERVAL: Duration = Duration::from_secs(2);

    /// One thing that happens.
    #[derive(Debug, Clone)]
    enum Step {
        /// A monitor reports about a router.
        Report(u8, ReportedState),
        /// Time passes, in milliseconds.
        Pass(u64),
        /// What was told reaches the one who is told, and that is noted.
        Arrive,
        /// The process is killed. Of what nobody waited for, the last notes may be lost; and some more of
        /// what holds, because they are handed over in bundles, and who was told is not.
        Kill(usize, usize),
    }

    /// What the journal would be handed, in order.
    #[derive(Debug, Clone)]
    enum Note {
        Report(InstanceId, i64, ReportedState),
        SettledReport(InstanceId, i64, ReportedState, bool),
        Told(InstanceId, i64),
    }

    /// A receiver, its disk, and one who is told.
    #[derive(Debug)]
    struct World {
        states: ReportStates,
        time: u64,
        seq: i64,
        notes: Vec<Note>,
        /// So many of them the present process has read.
        read: usize,
        /// Told, and not arrived.
        on_its_way: Vec<SettledReport>,
        knows: BTreeMap<InstanceId, ReportedState>,
        said: BTreeMap<InstanceId, ReportedState>,
    }

    impl World {
        fn new() -> Self {
            Self {
                states: ReportStates::new(INTERVAL),
                time: 0,
                seq: 0,
                notes: Vec::new(),
                read: 0,
                on_its_way: Vec::new(),
                knows: BTreeMap::new(),
                said: BTreeMap::new(),
            }
        }

        fn now(&self) -> (Moment, SystemTime) {
            let since = Duration::from_millis(self.time);
            (Moment::new(since), SystemTime::UNIX_EPOCH + since)
        }

        fn tell(&mut self, settled: SettledReport) {
            let SettledReport { instance, state, seq, .. } = settled.clone();
            self.on_its_way.push(settled);
            self.notes.push(Note::SettledReport(instance, seq, state, true));
        }

        fn follow(
            &mut self,
            instance: &InstanceId,
            state: ReportedState,
            seq: i64,
            what: ReportOutcome,
        ) {
            match what {
                ReportOutcome::Tell(settled) => self.tell(settled),
                ReportOutcome::Note => {
                    self.notes.push(Note::SettledReport(instance.clone(), seq, state, false));
                }
                ReportOutcome::Wait => {}
            }
        }

        fn step(&mut self, step: &Step) {
            match step {
                Step::Report(router, state) => {
                    let instance: InstanceId = format!("r{router}").parse().unwrap();
                    self.seq += 1;
                    self.said.insert(instance.clone(), *state);
                    self.notes.push(Note::Report(instance.clone(), self.seq, *state));
                    let what = self.states.hear(&instance, *state, self.seq, self.now());
                    self.follow(&instance, *state, self.seq, what);
                }
                Step::Pass(millis) => {
                    self.time += millis;
                    for settled in self.states.tick(self.now()) {
                        self.tell(settled);
                    }
                }
                Step::Arrive => {
                    for SettledReport { instance, state, seq, .. } in
                        std::mem::take(&mut self.on_its_way)
                    {
                        self.knows.insert(instance.clone(), state);
                        self.notes.push(Note::Told(instance, seq));
                    }
                }
                Step::Kill(last, more) => self.restart(*last, *more),
            }
        }

        /// Loses the last notes of a kind.
        fn lose(&mut self, count: usize, is_lost: impl Fn(&Note) -> bool) {
            for _ in 0..count {
                let at = self.notes.iter().rposition(&is_lost);
                // What a process has read when it started was on the disk.
                let Some(at) = at.filter(|at| *at >= self.read) else { return };
                self.notes.remove(at);
            }
        }

        /// The next process, with what is on the disk.
        fn restart(&mut self, last: usize, more: usize) {
            // What was promised is there, whatever else is.
            self.lose(last, |note| !matches!(note, Note::Report(..)));
            self.lose(more, |note| matches!(note, Note::SettledReport(..)));
            self.read = self.notes.len();
            self.on_its_way.clear();
            self.states = ReportStates::new(INTERVAL);
            let mut memories: BTreeMap<InstanceId, StoredReport> = BTreeMap::new();
            for note in &self.notes {
                match note.clone() {
                    Note::Report(instance, seq, state) => {
                        memories.entry(instance).or_default().open.push((seq, state));
                    }
                    Note::SettledReport(instance, seq, state, is_acted_on) => {
                        let memory = memories.entry(instance).or_default();
                        let before = memory.settled.map_or(0, |holds| holds.acted);
                        let acted = if is_acted_on { seq } else { before };
                        let at = SystemTime::UNIX_EPOCH;
                        memory.settled = Some(SettledRow { state, seq, acted, at });
                        memory.open.retain(|(open, _)| *open > seq);
                    }
                    Note::Told(instance, seq) => {
                        memories.entry(instance).or_default().told.insert("x".to_owned(), seq);
                    }
                }
            }
            for (instance, memory) in memories {
                if let Some(settled) = self.states.recall(&instance, &memory)
                    && memory.told.get("x").is_none_or(|told| *told < settled.seq)
                {
                    self.on_its_way.push(settled);
                }
                for (seq, state) in memory.open {
                    let what = self.states.hear_again(&instance, state, seq, self.now());
                    self.follow(&instance, state, seq, what);
                }
            }
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
            1 => (0_usize..5, 0_usize..5).prop_map(|(last, more)| Step::Kill(last, more)),
        ]
    }

    /// What random steps have found once: all that was told is on the disk, and nothing of what holds.
    #[test]
    fn what_was_told_before_a_crash_is_taken_back_after_it() {
        let mut world = World::new();
        for step in [
            Step::Report(0, ReportedState::Backup),
            Step::Report(0, ReportedState::Primary),
            Step::Pass(2000),
            Step::Arrive,
            Step::Report(0, ReportedState::Backup),
            Step::Kill(1, 4),
            Step::Kill(0, 0),
            Step::Pass(10_000),
            Step::Arrive,
        ] {
            world.step(&step);
        }
        let known: Vec<ReportedState> = world.knows.values().copied().collect();
        assert_eq!(known, [ReportedState::Backup]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// For any interleaving, and whenever the process is killed: what holds in the end is what each
        /// monitor said last, and whoever is told knows it; unless he was never told of anything.
        #[test]
        fn what_is_applied_converges_to_the_last_report_at_any_crash_point(
            steps in proptest::collection::vec(step(), 1..60),
        ) {
            let mut world = World::new();
            for step in &steps {
                world.step(step);
            }
            for step in [Step::Pass(10_000), Step::Arrive] {
                world.step(&step);
            }
            for (instance, state) in &world.said {
                let report = world.states.router_report(instance).unwrap();
                prop_assert_eq!(report.settled, Some(*state));
                prop_assert_eq!(report.state, *state);
                if let Some(known) = world.knows.get(instance) {
                    prop_assert_eq!(known, state);
                }
            }
        }
    }
}
