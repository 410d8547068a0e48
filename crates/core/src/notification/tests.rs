// SPDX-License-Identifier: Apache-2.0
//! The rules, on a clock that only the test moves, and with a store that is sometimes behind.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::RoleKind;

const PRIMARY: EventKind = EventKind::Role(RoleKind::Primary);
const BACKUP: EventKind = EventKind::Role(RoleKind::Backup);

fn policy(deliver: DeliveryMode) -> DeliveryPolicy {
    DeliveryPolicy {
        deliver,
        settle: Duration::ZERO,
        retries: None,
        first_wait: Duration::from_millis(250),
        max_wait: Duration::from_mins(1),
        has_history: true,
    }
}

fn at(millis: u64) -> Moment {
    Moment::new(Duration::from_millis(millis))
}

fn event(seq: i64, kind: EventKind) -> QueuedEvent<()> {
    QueuedEvent { seq, kind, content: () }
}

/// Begins and ends one attempt.
fn attempt(
    delivery: &mut InstanceDelivery<()>,
    result: AttemptResult,
    policy: &DeliveryPolicy,
) -> AfterAttempt {
    assert_eq!(delivery.next_step(at(0), false, policy), DeliveryStep::Attempt);
    delivery.begin().unwrap();
    delivery.finish(result, at(0), policy, &mut Jitter::new(1)).unwrap()
}

#[test]
fn a_newer_notification_replaces_the_one_that_waits_and_a_failed_older_one() {
    let latest = policy(DeliveryMode::Latest);
    let mut delivery = InstanceDelivery::new(None, 0);
    delivery.submit(event(1, PRIMARY), true, at(0), &latest);
    delivery.begin().unwrap();
    assert_eq!(delivery.submit(event(2, BACKUP), true, at(0), &latest).superseded, 0);
    assert_eq!(delivery.submit(event(3, PRIMARY), true, at(0), &latest).superseded, 1);
    let after = delivery.finish(AttemptResult::Failed, at(0), &latest, &mut Jitter::new(1));
    assert_eq!(after, Some(AfterAttempt::Concluded(Conclusion::Superseded)));
    assert_eq!(delivery.first(), Some(&event(3, PRIMARY)));
}

#[test]
fn a_hook_is_retried_as_often_as_configured_and_then_given_up() {
    let twice = DeliveryPolicy { retries: Some(2), ..policy(DeliveryMode::Every) };
    let mut delivery = InstanceDelivery::new(None, 0);
    delivery.submit(event(1, PRIMARY), true, at(0), &twice);
    let mut now = at(0);
    for _ in 0..2 {
        delivery.begin().unwrap();
        let after = delivery.finish(AttemptResult::Failed, now, &twice, &mut Jitter::new(1));
        assert!(matches!(after, Some(AfterAttempt::RetryAfter(_))), "{after:?}");
        let DeliveryStep::WaitUntil(next) = delivery.next_step(now, false, &twice) else {
            panic!()
        };
        now = next;
    }
    delivery.begin().unwrap();
    let after = delivery.finish(AttemptResult::Failed, now, &twice, &mut Jitter::new(1));
    assert_eq!(after, Some(AfterAttempt::Concluded(Conclusion::GivenUp)));
    assert!(delivery.is_idle() && !delivery.is_new(1), "it is not pending after a restart");
}

#[test]
fn an_attempt_that_could_not_be_made_does_not_count() {
    let never = DeliveryPolicy { retries: Some(0), ..policy(DeliveryMode::Every) };
    let mut delivery = InstanceDelivery::new(None, 0);
    delivery.submit(event(1, PRIMARY), true, at(0), &never);
    let mut waits = Vec::new();
    for _ in 0..3 {
        delivery.begin().unwrap();
        let after = delivery.finish(AttemptResult::Unavailable, at(0), &never, &mut Jitter::new(1));
        let Some(AfterAttempt::RetryAfter(wait)) = after else { panic!("{after:?}") };
        waits.push(wait);
    }
    assert!(waits.is_sorted_by(|before, after| before < after), "{waits:?}");
    delivery.begin().unwrap();
    let after = delivery.finish(AttemptResult::Failed, at(0), &never, &mut Jitter::new(1));
    assert_eq!(after, Some(AfterAttempt::Concluded(Conclusion::GivenUp)));
}

#[test]
fn a_role_that_is_back_before_it_has_settled_is_not_sent() {
    let settling =
        DeliveryPolicy { settle: Duration::from_secs(2), ..policy(DeliveryMode::Latest) };
    let mut delivery = InstanceDelivery::new(None, 0);
    delivery.submit(event(1, BACKUP), true, at(0), &settling);
    assert_eq!(delivery.next_step(at(1999), false, &settling), DeliveryStep::WaitUntil(at(2000)));
    assert_eq!(delivery.next_step(at(2000), false, &settling), DeliveryStep::Attempt);
    delivery.begin().unwrap();
    delivery.finish(AttemptResult::Delivered, at(2000), &settling, &mut Jitter::new(1)).unwrap();
    delivery.submit(event(2, PRIMARY), true, at(5000), &settling);
    delivery.submit(event(3, BACKUP), true, at(6000), &settling);
    assert_eq!(delivery.next_step(at(7999), false, &settling), DeliveryStep::WaitUntil(at(8000)));
    let step = delivery.next_step(at(8000), false, &settling);
    assert_eq!(step, DeliveryStep::Concluded(Conclusion::Filtered));
    assert_eq!(delivery.concluded().map(|concluded| concluded.seq), Some(3));
    assert!(delivery.is_idle());
}

#[test]
fn after_a_silence_the_target_gets_the_current_role_only_if_it_differs() {
    let latest = policy(DeliveryMode::Latest);
    for (last, is_sent) in [(BACKUP, true), (PRIMARY, false)] {
        let mut delivery = InstanceDelivery::new(None, 0);
        delivery.submit(event(1, PRIMARY), true, at(0), &latest);
        attempt(&mut delivery, AttemptResult::Delivered, &latest);
        delivery.submit(event(2, BACKUP), true, at(0), &latest);
        assert_eq!(delivery.next_step(at(0), true, &latest), DeliveryStep::Silenced);
        delivery.submit(event(3, last), true, at(0), &latest);
        assert_eq!(delivery.next_step(at(0), true, &latest), DeliveryStep::Silenced);
        let step = delivery.next_step(at(0), false, &latest);
        let filtered = DeliveryStep::Concluded(Conclusion::Filtered);
        assert_eq!(step, if is_sent { DeliveryStep::Attempt } else { filtered });
    }
}

#[test]
fn events_of_an_every_target_from_before_a_silence_are_delivered_after_it() {
    let every = policy(DeliveryMode::Every);
    let mut delivery = InstanceDelivery::new(None, 0);
    delivery.submit(event(1, PRIMARY), true, at(0), &every);
    delivery.submit(event(2, BACKUP), true, at(0), &every);
    assert_eq!(delivery.next_step(at(0), true, &every), DeliveryStep::Silenced);
    // This one happens during the silence, so the target does not select it.
    delivery.submit(event(3, PRIMARY), false, at(0), &every);
    assert_eq!(delivery.next_step(at(0), true, &every), DeliveryStep::Silenced);
    delivery.submit(event(4, BACKUP), true, at(0), &every);
    for seq in [1, 2, 4] {
        assert_eq!(delivery.first().map(|first| first.seq), Some(seq));
        attempt(&mut delivery, AttemptResult::Delivered, &every);
    }
    assert!(delivery.is_idle());
}

#[test]
fn an_event_outside_of_on_is_concluded_without_an_attempt() {
    for mode in [DeliveryMode::Latest, DeliveryMode::Every] {
        let policy = policy(mode);
        let mut delivery = InstanceDelivery::new(None, 0);
        let submitted = delivery.submit(event(4, BACKUP), false, at(0), &policy);
        assert!(submitted.is_concluded && delivery.is_idle() && !delivery.is_new(4));
    }
}

/// The steps of a target with `on = ["primary"]`: primary, backup, and primary again after `backup_lasts`.
fn is_second_primary_sent(policy: &DeliveryPolicy, backup_lasts: u64, is_silenced: bool) -> bool {
    let mut delivery = InstanceDelivery::new(None, 0);
    delivery.submit(event(1, PRIMARY), true, at(0), policy);
    assert_eq!(delivery.next_step(at(2000), false, policy), DeliveryStep::Attempt);
    delivery.begin().unwrap();
    delivery.finish(AttemptResult::Delivered, at(2000), policy, &mut Jitter::new(1)).unwrap();
    delivery.submit(event(2, BACKUP), false, at(5000), policy);
    assert_eq!(delivery.pending(), 0, "there is nothing to deliver");
    while let DeliveryStep::Concluded(_) =
        delivery.next_step(at(5000 + backup_lasts), false, policy)
    {}
    delivery.submit(event(3, PRIMARY), true, at(5000 + backup_lasts), policy);
    if is_silenced {
        assert_eq!(delivery.next_step(at(50_000), true, policy), DeliveryStep::Silenced);
    }
    delivery.next_step(at(60_000), false, policy) == DeliveryStep::Attempt
}

#[test]
fn a_role_that_returns_after_one_outside_of_on_has_settled_is_sent_again() {
    let settling =
        DeliveryPolicy { settle: Duration::from_secs(2), ..policy(DeliveryMode::Latest) };
    assert!(is_second_primary_sent(&settling, 2000, false));
    assert!(!is_second_primary_sent(&settling, 1999, false), "backup has not settled");
}

#[test]
fn a_role_that_returns_during_a_silence_after_one_outside_of_on_is_sent() {
    assert!(is_second_primary_sent(&policy(DeliveryMode::Latest), 1000, true));
}

#[test]
fn a_role_outside_of_on_that_came_during_an_attempt_is_not_forgotten() {
    let settling =
        DeliveryPolicy { settle: Duration::from_secs(2), ..policy(DeliveryMode::Latest) };
    let mut delivery = InstanceDelivery::new(None, 0);
    delivery.submit(event(1, PRIMARY), true, at(0), &settling);
    delivery.begin().unwrap();
    delivery.submit(event(2, BACKUP), false, at(2000), &settling);
    delivery.finish(AttemptResult::Delivered, at(3000), &settling, &mut Jitter::new(1)).unwrap();
    assert_eq!(delivery.next_step(at(3000), false, &settling), DeliveryStep::WaitUntil(at(4000)));
    let step = delivery.next_step(at(4000), false, &settling);
    assert_eq!(step, DeliveryStep::Concluded(Conclusion::Filtered));
    let concluded = delivery.concluded().unwrap();
    assert_eq!((concluded.seq, concluded.delivered), (2, None));
}

#[test]
fn a_finding_that_closes_is_sent_although_its_kind_is_that_of_the_opened_one() {
    let settling =
        DeliveryPolicy { settle: Duration::from_secs(2), ..policy(DeliveryMode::Latest) };
    let concluded = Concluded {
        seq: 1,
        conclusion: Conclusion::Delivered,
        delivered: Some(EventKind::Finding),
    };
    let mut delivery = InstanceDelivery::new(Some(concluded), 0);
    delivery.submit(event(2, EventKind::Finding), true, at(0), &settling);
    assert_eq!(delivery.next_step(at(2000), false, &settling), DeliveryStep::Attempt);
}

#[test]
fn without_a_history_a_full_queue_drops_the_oldest_and_counts_it() {
    let every = DeliveryPolicy { has_history: false, ..policy(DeliveryMode::Every) };
    let mut delivery = InstanceDelivery::new(None, 0);
    let count = i64::try_from(MAX_QUEUED).unwrap() + 3;
    let dropped: u32 = (1..=count)
        .map(|seq| delivery.submit(event(seq, PRIMARY), true, at(0), &every).dropped)
        .sum();
    assert_eq!((dropped, delivery.missed(), delivery.first().unwrap().seq), (3, 3, 4));
}

#[test]
fn events_that_the_history_does_not_have_are_counted_as_missed() {
    let every = policy(DeliveryMode::Every);
    let mut delivery = InstanceDelivery::new(None, 0);
    let count = i64::try_from(MAX_QUEUED).unwrap() + 5;
    for seq in 1..=count {
        delivery.submit(event(seq, PRIMARY), true, at(0), &every);
    }
    for _ in 1..MAX_QUEUED {
        attempt(&mut delivery, AttemptResult::Delivered, &every);
    }
    let DeliveryStep::ReadBacklog(range) = delivery.next_step(at(0), false, &every) else {
        panic!()
    };
    assert_eq!((range.before, range.moved), (count, 5));
    let read_to = range.after;
    let events = vec![event(read_to + 1, PRIMARY)];
    let part = BacklogPart { range, events, read_to, rows: 1, missed: 0, is_complete: true };
    delivery.add_backlog(part);
    assert_eq!((delivery.missed(), delivery.pending()), (4, 2));
}

#[test]
fn an_event_that_is_submitted_while_the_backlog_is_read_hides_no_other() {
    let every = policy(DeliveryMode::Every);
    let concluded = Concluded { seq: 1, conclusion: Conclusion::Delivered, delivered: None };
    let mut delivery = InstanceDelivery::new(Some(concluded), 0);
    delivery.resume(event(5, PRIMARY), true, false, at(0), &every);
    let DeliveryStep::ReadBacklog(range) = delivery.next_step(at(0), false, &every) else {
        panic!()
    };
    assert_eq!((range.after, range.before), (1, 5));
    delivery.submit(event(9, BACKUP), true, at(0), &every);
    let events = vec![event(2, BACKUP), event(3, PRIMARY)];
    let part = BacklogPart { range, events, read_to: 3, rows: 2, missed: 0, is_complete: true };
    delivery.add_backlog(part);
    for _ in 0..2 {
        attempt(&mut delivery, AttemptResult::Delivered, &every);
    }
    let DeliveryStep::ReadBacklog(range) = delivery.next_step(at(0), false, &every) else {
        panic!()
    };
    assert_eq!(range, BacklogRange { after: 4, before: 9, moved: 1 }, "5 is in the history only");
}

#[test]
fn an_event_that_is_submitted_during_a_read_without_upper_limit_is_delivered_once() {
    let every = policy(DeliveryMode::Every);
    let concluded = Concluded { seq: 1, conclusion: Conclusion::Delivered, delivered: None };
    let mut delivery = InstanceDelivery::new(Some(concluded), 0);
    delivery.resume(event(5, BACKUP), false, false, at(0), &every);
    let DeliveryStep::ReadBacklog(range) = delivery.next_step(at(0), false, &every) else {
        panic!()
    };
    assert_eq!((range.after, range.before), (1, i64::MAX));
    delivery.submit(event(9, PRIMARY), true, at(0), &every);
    let events = vec![event(2, PRIMARY), event(9, PRIMARY)];
    let part = BacklogPart { range, events, read_to: 9, rows: 3, missed: 0, is_complete: true };
    delivery.add_backlog(part);
    assert_eq!(delivery.pending(), 1);
    let step = delivery.next_step(at(0), false, &every);
    assert_eq!(step, DeliveryStep::ReadBacklog(BacklogRange { after: 1, before: 9, moved: 0 }));
}

#[test]
fn the_first_event_of_an_instance_is_delivered_after_a_restart() {
    let every = policy(DeliveryMode::Every);
    let mut first_run = InstanceDelivery::new(None, 0);
    let submitted = first_run.submit(event(7, PRIMARY), true, at(0), &every);
    assert!(submitted.is_concluded, "the row is stored before the event is delivered");
    let mut second_run = InstanceDelivery::new(first_run.concluded(), 0);
    second_run.resume(event(7, PRIMARY), true, true, at(0), &every);
    let step = second_run.next_step(at(0), false, &every);
    assert_eq!(step, DeliveryStep::ReadBacklog(BacklogRange { after: 6, before: 7, moved: 0 }));
}

/// One instance and one target, with a history and a store of conclusions, which may be behind.
struct Model {
    policy: DeliveryPolicy,
    delivery: InstanceDelivery<()>,
    now: Moment,
    jitter: Jitter,
    /// The transitions that the history has.
    history: Vec<(i64, EventKind)>,
    /// The numbers of all transitions that were ever written.
    written: BTreeSet<i64>,
    last: Option<(i64, EventKind)>,
    is_silenced: bool,
    /// The numbers of the transitions that happened during a silence.
    silenced: BTreeSet<i64>,
    /// The row on the disk.
    stored: Option<Concluded>,
    stored_missed: u32,
    /// The transitions and the conclusions that are not written yet.
    queued: Vec<(i64, EventKind)>,
    unwritten: Vec<(Concluded, u32)>,
    /// A worker has read this from the history, and has not added it yet.
    reading: Option<BacklogPart<()>>,
    received: Vec<(i64, EventKind)>,
    given_up: Vec<i64>,
    missed: u32,
    /// The next number must be higher than this one; a kill may repeat numbers.
    received_to: i64,
}

impl Model {
    fn new(policy: DeliveryPolicy) -> Self {
        Self {
            policy,
            delivery: InstanceDelivery::new(None, 0),
            now: at(0),
            jitter: Jitter::new(7),
            history: Vec::new(),
            written: BTreeSet::new(),
            last: None,
            is_silenced: false,
            silenced: BTreeSet::new(),
            stored: None,
            stored_missed: 0,
            queued: Vec::new(),
            unwritten: Vec::new(),
            reading: None,
            received: Vec::new(),
            given_up: Vec::new(),
            missed: 0,
            received_to: 0,
        }
    }

    fn transition(&mut self, kind: EventKind) {
        let event = self.next_event(kind);
        let is_selected = self.is_selected(event.seq);
        let submitted = self.delivery.submit(event, is_selected, self.now, &self.policy);
        self.note_submitted(submitted);
    }

    /// A target for every transition does not get those that happened during a silence.
    fn is_selected(&self, seq: i64) -> bool {
        self.policy.deliver == DeliveryMode::Latest || !self.silenced.contains(&seq)
    }

    /// A transition that the history has after its next write.
    fn next_event(&mut self, kind: EventKind) -> QueuedEvent<()> {
        let seq = self.last.map_or(1, |(seq, _)| seq + 1);
        self.last = Some((seq, kind));
        self.queued.push((seq, kind));
        if self.is_silenced {
            self.silenced.insert(seq);
        }
        event(seq, kind)
    }

    fn note_submitted(&mut self, submitted: Submitted) {
        if submitted.is_concluded {
            self.note_concluded(0);
        }
    }

    /// Does what the queue of a target does, until an attempt begins or nothing can be done.
    fn run(&mut self, result: Option<AttemptResult>) {
        loop {
            self.end_reading();
            match self.delivery.next_step(self.now, self.is_silenced, &self.policy) {
                DeliveryStep::Attempt => {
                    let Some(result) = result else { return };
                    return self.attempt(result);
                }
                DeliveryStep::ReadBacklog(range) => self.begin_reading(range),
                DeliveryStep::Concluded(_) => self.note_concluded(0),
                DeliveryStep::Idle
                | DeliveryStep::WaitUntil(_)
                | DeliveryStep::Running
                | DeliveryStep::Silenced => return,
            }
        }
    }

    fn attempt(&mut self, result: AttemptResult) {
        let (seq, missed) = (self.delivery.begin().unwrap().seq, self.delivery.missed());
        assert!(!self.is_silenced && self.is_selected(seq), "{seq} is sent, although silenced");
        let kind = self.delivery.first().unwrap().kind;
        if result == AttemptResult::Delivered {
            assert!(seq > self.received_to, "{seq} after {}", self.received_to);
            self.received_to = seq;
            self.received.push((seq, kind));
            self.missed += missed;
        }
        let after = self.delivery.finish(result, self.now, &self.policy, &mut self.jitter).unwrap();
        if after == AfterAttempt::Concluded(Conclusion::GivenUp) {
            self.given_up.push(seq);
        }
        if matches!(after, AfterAttempt::Concluded(_)) {
            let missed = if result == AttemptResult::Delivered { missed } else { 0 };
            self.note_concluded_at(seq, missed);
        }
    }

    fn note_concluded(&mut self, missed: u32) {
        self.unwritten.extend(self.delivery.concluded().map(|concluded| (concluded, missed)));
    }

    fn note_concluded_at(&mut self, seq: i64, missed: u32) {
        let concluded = self.delivery.concluded().unwrap();
        self.unwritten.push((Concluded { seq: seq.max(concluded.seq), ..concluded }, missed));
    }

    /// A worker begins to read the history, if that is the next step.
    fn read(&mut self) {
        if self.reading.is_some() {
            return;
        }
        let step = self.delivery.next_step(self.now, self.is_silenced, &self.policy);
        if let DeliveryStep::ReadBacklog(range) = step {
            self.begin_reading(range);
        } else if let DeliveryStep::Concluded(_) = step {
            self.note_concluded(0);
        }
    }

    fn begin_reading(&mut self, range: BacklogRange) {
        // The reader waits until the last event before the range's end is written.
        self.write();
        let BacklogRange { after, before, .. } = range;
        let rows = self.history.iter().filter(|(seq, _)| *seq > after && *seq < before);
        let rows: Vec<_> = rows.take(3).map(|(seq, kind)| event(*seq, *kind)).collect();
        self.reading = Some(BacklogPart {
            range,
            read_to: rows.last().map_or(after, |event| event.seq),
            is_complete: rows.len() < 3,
            rows: u32::try_from(rows.len()).unwrap(),
            missed: self.stored_missed,
            events: rows.into_iter().filter(|event| self.is_selected(event.seq)).collect(),
        });
    }

    fn end_reading(&mut self) {
        let Some(part) = self.reading.take() else { return };
        if self.delivery.add_backlog(part) {
            self.note_concluded(0);
        }
    }

    /// The history's thread writes its batch: transitions, and earlier conclusions.
    fn write(&mut self) {
        self.written.extend(self.queued.iter().map(|(seq, _)| *seq));
        self.history.append(&mut self.queued);
        for (concluded, missed) in std::mem::take(&mut self.unwritten) {
            // Retention has counted it as lost, but it was in memory.
            let was_counted = self.stored.is_some_and(|stored| stored.seq >= concluded.seq);
            let corrected = missed + u32::from(was_counted);
            self.stored_missed = self.stored_missed.saturating_sub(corrected);
            if !was_counted {
                self.stored = Some(concluded);
            }
        }
    }

    /// Retention deletes the oldest transitions, and counts those that a target for every transition has not got.
    fn retain(&mut self, count: usize) {
        self.write();
        let keep = self.history.len().saturating_sub(count).max(1);
        let deleted: Vec<(i64, EventKind)> =
            self.history.drain(..self.history.len().saturating_sub(keep)).collect();
        let Some(stored) = &mut self.stored else { return };
        if self.policy.deliver == DeliveryMode::Latest {
            return;
        }
        let lost = deleted.iter().filter(|(seq, _)| *seq > stored.seq).count();
        self.stored_missed += u32::try_from(lost).unwrap();
        if let Some((seq, _)) = deleted.last() {
            stored.seq = stored.seq.max(*seq);
        }
    }

    /// The process is killed, and the next one reads the disk.
    fn kill(&mut self) {
        self.unwritten.clear();
        self.reading = None;
        let is_unchanged = self.queued.is_empty();
        self.queued.clear();
        // The target may have received more than the disk shows.
        let stored = self.stored.map(|stored| Concluded { delivered: None, ..stored });
        self.delivery = InstanceDelivery::new(stored, self.stored_missed);
        self.received_to = 0;
        let Some((seq, kind)) = self.last else { return };
        // The kernel has a role that the history does not: a transition while the process did not run.
        let event = if is_unchanged { event(seq, kind) } else { self.next_event(kind) };
        let is_selected = self.is_selected(event.seq);
        let submitted =
            self.delivery.resume(event, is_selected, is_unchanged, self.now, &self.policy);
        self.note_submitted(submitted);
    }

    /// Number of written transitions that the target received, that were given up, that were silenced, or that were
    /// counted as missed.
    fn accounted(&mut self) -> usize {
        self.write();
        let received = self.received.iter().map(|(seq, _)| *seq);
        let concluded = received.chain(self.given_up.iter().copied());
        let mut seqs: BTreeSet<i64> = concluded.chain(self.silenced.iter().copied()).collect();
        seqs.retain(|seq| self.written.contains(seq));
        seqs.len() + (self.missed + self.stored_missed) as usize
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    /// For any transitions, failures, reloads, kills, silences and deletions, a target ends with the latest role, and a
    /// target for every transition gets each one that was not silenced in order, or the number of those that it did not
    /// get.
    #[test]
    fn a_target_ends_with_the_latest_role_and_every_transition_or_their_number(
        is_every in any::<bool>(),
        retries in proptest::option::of(0_u32..3),
        settle in prop_oneof![Just(0_u64), Just(500)],
        steps in proptest::collection::vec((0_u8..15, 0_u64..700), 1..150),
    ) {
        let mode = if is_every { DeliveryMode::Every } else { DeliveryMode::Latest };
        let settle = Duration::from_millis(if is_every { 0 } else { settle });
        let mut model = Model::new(DeliveryPolicy { settle, retries, ..policy(mode) });
        model.transition(BACKUP);
        let mut kills = 0;
        for (step, amount) in steps {
            model.now = model.now + Duration::from_millis(amount);
            match step {
                0..=4 => model.transition(if amount % 2 == 0 { PRIMARY } else { BACKUP }),
                5 => model.run(Some(AttemptResult::Delivered)),
                6 | 7 => model.run(Some(AttemptResult::Failed)),
                8 => model.run(Some(AttemptResult::Interrupted)),
                9 => model.write(),
                10 if amount < 200 => {
                    kills += 1;
                    model.kill();
                }
                10 => model.delivery.retry_now(&model.policy),
                11 | 12 => model.read(),
                14 => model.is_silenced = !model.is_silenced,
                _ => model.retain(usize::try_from(amount / 50).unwrap()),
            }
        }
        model.is_silenced = false;
        while !model.delivery.is_idle() {
            model.now = model.now + Duration::from_mins(2);
            model.run(Some(AttemptResult::Delivered));
        }
        let (last_seq, last_kind) = model.last.unwrap();
        let concluded = model.delivery.concluded().unwrap();
        prop_assert!(concluded.seq >= last_seq, "{concluded:?}");
        let was_given_up = model.given_up.contains(&last_seq);
        if is_every {
            let (accounted, total) = (model.accounted(), model.written.len());
            // A kill forgets that a notification was delivered, so it may be delivered and counted as lost. Retention
            // does not know silences, and counts each transition that it deletes.
            prop_assert!(accounted >= total, "{accounted} of {total}");
            if kills == 0 && model.silenced.is_empty() {
                prop_assert_eq!(accounted, total);
            }
        } else if !was_given_up {
            let (_, kind) = model.received.last().unwrap();
            prop_assert_eq!(*kind, last_kind);
        }
    }
}
