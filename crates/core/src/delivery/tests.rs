//! The delivery against a model of upstream's receiver, on a clock that only the test moves.

use proptest::prelude::*;

use super::*;

const WINDOW: Duration = Duration::from_secs(2);

fn at(ms: u64) -> Moment {
    Moment::new(Duration::from_millis(ms))
}

fn delivery() -> Delivery {
    Delivery::new(WINDOW, Jitter::new(7))
}

/// Says what is due at `ms` and has it acknowledged; returns what was said.
fn say(delivery: &mut Delivery, ms: u64) -> Option<NeutronState> {
    let role = delivery.begin(at(ms))?;
    delivery.finish(Outcome::Taken, at(ms));
    Some(role)
}

#[test]
fn the_first_role_is_said_at_once_and_once() {
    let mut delivery = delivery();
    delivery.want(NeutronState::Backup);
    assert_eq!(say(&mut delivery, 0), Some(NeutronState::Backup));
    assert_eq!(delivery.due(), None);
}

#[test]
fn a_role_that_followed_another_too_closely_is_confirmed_once() {
    let mut delivery = delivery();
    delivery.want(NeutronState::Primary);
    say(&mut delivery, 0);
    delivery.want(NeutronState::Backup);
    assert_eq!(say(&mut delivery, 50), Some(NeutronState::Backup));

    assert_eq!(say(&mut delivery, 2_000), None, "the window has not surely passed");
    assert_eq!(say(&mut delivery, 3_000), Some(NeutronState::Backup));
    assert_eq!(delivery.due(), None);
}

#[test]
fn a_slow_receiver_is_given_a_longer_window() {
    let mut delivery = delivery();
    delivery.want(NeutronState::Primary);
    delivery.begin(at(0));
    delivery.finish(Outcome::Taken, at(1_000));
    delivery.want(NeutronState::Backup);
    assert_eq!(say(&mut delivery, 4_000), Some(NeutronState::Backup));
    assert!(delivery.due().is_some(), "its worker may have slept until then");
}

#[test]
fn a_role_that_followed_at_leisure_is_not_confirmed() {
    let mut delivery = delivery();
    delivery.want(NeutronState::Primary);
    say(&mut delivery, 0);
    delivery.want(NeutronState::Backup);
    assert_eq!(say(&mut delivery, 60_000), Some(NeutronState::Backup));
    assert_eq!(delivery.due(), None);
}

#[test]
fn a_predecessors_word_counts_as_heard() {
    let mut delivery = delivery();
    delivery.heard_before(at(0));
    delivery.want(NeutronState::Primary);
    say(&mut delivery, 100);
    assert!(delivery.due().is_some(), "to be confirmed");
}

#[test]
fn an_unanswered_attempt_makes_the_acknowledged_role_news_again() {
    let mut delivery = delivery();
    delivery.want(NeutronState::Backup);
    say(&mut delivery, 0);
    delivery.want(NeutronState::Primary);
    assert_eq!(delivery.begin(at(10_000)), Some(NeutronState::Primary));
    delivery.want(NeutronState::Backup);
    delivery.finish(Outcome::Failed(DeliveryFailure::Unanswered), at(15_000));

    assert_eq!(say(&mut delivery, 16_000), Some(NeutronState::Backup));
}

#[test]
fn an_attempt_that_reached_nobody_is_forgotten_when_the_role_returns() {
    let mut delivery = delivery();
    delivery.want(NeutronState::Backup);
    say(&mut delivery, 0);
    delivery.want(NeutronState::Primary);
    delivery.begin(at(10_000));
    delivery.finish(Outcome::Failed(DeliveryFailure::Absent), at(10_000));
    delivery.want(NeutronState::Backup);
    assert_eq!(delivery.due(), None);
}

#[test]
fn a_receiver_born_again_is_told_at_once_what_it_already_knew() {
    let mut delivery = delivery();
    delivery.want(NeutronState::Primary);
    say(&mut delivery, 0);
    delivery.receiver_appeared();
    assert_eq!(say(&mut delivery, 1), Some(NeutronState::Primary));
    // It may be the old one after all, whose window still runs.
    assert_eq!(say(&mut delivery, 5_000), Some(NeutronState::Primary));
    assert_eq!(delivery.due(), None, "and then silence");
}

#[test]
fn an_answer_from_the_receiver_before_does_not_count_for_the_new_one() {
    let mut delivery = delivery();
    delivery.want(NeutronState::Primary);
    delivery.begin(at(0));
    delivery.receiver_appeared();
    delivery.finish(Outcome::Taken, at(1));
    assert_eq!(say(&mut delivery, 2), Some(NeutronState::Primary));
}

#[test]
fn a_new_role_does_not_wait_for_the_backoff_of_the_old() {
    let mut delivery = delivery();
    delivery.want(NeutronState::Primary);
    delivery.begin(at(0));
    delivery.finish(Outcome::Failed(DeliveryFailure::Rejected), at(0));
    assert!(delivery.due() > Some(at(20_000)), "a rejection is retried slowly");
    delivery.want(NeutronState::Backup);
    assert_eq!(delivery.begin(at(1)), Some(NeutronState::Backup));
}

#[test]
fn a_role_wanted_during_a_failing_attempt_does_not_wait_for_its_backoff() {
    let mut delivery = delivery();
    delivery.want(NeutronState::Primary);
    delivery.begin(at(0));
    delivery.want(NeutronState::Backup);
    delivery.finish(Outcome::Failed(DeliveryFailure::Unanswered), at(5_000));
    assert_eq!(delivery.begin(at(5_000)), Some(NeutronState::Backup));
}

#[test]
fn a_confirmation_that_fails_waits_before_it_is_tried_again() {
    for setback in [
        DeliveryFailure::Absent,
        DeliveryFailure::Refusing,
        DeliveryFailure::Busy,
        DeliveryFailure::Unanswered,
    ] {
        let mut delivery = delivery();
        delivery.want(NeutronState::Primary);
        say(&mut delivery, 0);
        delivery.want(NeutronState::Backup);
        say(&mut delivery, 50);
        assert_eq!(delivery.begin(at(10_000)), Some(NeutronState::Backup), "the confirmation");
        delivery.finish(Outcome::Failed(setback), at(10_000));
        assert_eq!(delivery.begin(at(10_000)), None, "{setback:?}: not at once");
        assert_eq!(
            delivery.begin(at(20_000)),
            Some(NeutronState::Backup),
            "{setback:?}: but again"
        );
    }
}

#[test]
fn a_receiver_that_stays_busy_is_asked_less_and_less() {
    let mut delivery = delivery();
    delivery.want(NeutronState::Backup);
    let mut attempts = Vec::new();
    let mut now = at(0);
    while now < at(60_000) {
        assert_eq!(delivery.begin(now), Some(NeutronState::Backup));
        attempts.push(now);
        delivery.finish(Outcome::Failed(DeliveryFailure::Busy), now);
        now = delivery.due().unwrap();
    }
    let during = |from: u64, to: u64| {
        attempts.iter().filter(|attempt| (at(from)..at(to)).contains(attempt)).count()
    };
    assert!(during(0, 2_000) > 30, "a burst passes quickly: {}", during(0, 2_000));
    let later = during(10_000, 60_000);
    assert!((25..=50).contains(&later), "every one to two seconds: {later} attempts in 50 s");
}

#[test]
fn nothing_is_said_while_the_role_is_withheld() {
    let mut delivery = delivery();
    delivery.want(NeutronState::Backup);
    delivery.withhold();
    assert_eq!(delivery.due(), None);
    delivery.want(NeutronState::Primary);
    assert_eq!(say(&mut delivery, 5), Some(NeutronState::Primary));
}

/// Upstream's `enqueue_state_change`: one pending word per router, replaced while a worker
/// sleeps on a primary, and nothing applied if it changed meanwhile.
struct Receiver {
    applied: Option<NeutronState>,
    pending: Option<Pending>,
    /// What a busy interpreter adds to every wake-up.
    delay: Duration,
}

struct Pending {
    begun_with: NeutronState,
    now: NeutronState,
    wakes: Moment,
}

impl Receiver {
    /// Takes a word; `slowness` is what this receiver needs to answer it.
    fn hear(&mut self, role: NeutronState, now: Moment, slowness: Duration) {
        self.settle(now);
        if let Some(pending) = &mut self.pending {
            pending.now = role;
            return;
        }
        let sleep = if role == NeutronState::Primary { WINDOW } else { Duration::ZERO };
        let wakes = now + sleep + self.delay + slowness;
        self.pending = Some(Pending { begun_with: role, now: role, wakes });
    }

    fn settle(&mut self, now: Moment) {
        if let Some(pending) = self.pending.take_if(|pending| pending.wakes <= now)
            && pending.begun_with == pending.now
        {
            self.applied = Some(pending.now);
        }
    }
}

/// How long one attempt takes, and how much of that passes before the receiver hears it.
#[derive(Debug, Clone, Copy)]
struct Pace {
    takes_ms: u64,
    heard_after_ms: u64,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Want(NeutronState),
    Reborn,
    /// The next attempt ends like this instead of being acknowledged.
    Fail(DeliveryFailure, WasHeard),
}

#[derive(Debug, Clone, Copy)]
struct WasHeard(bool);

fn steps() -> impl Strategy<Value = Vec<(u64, Step)>> {
    let role = prop_oneof![Just(NeutronState::Primary), Just(NeutronState::Backup)];
    let setback = prop_oneof![
        Just(DeliveryFailure::Absent),
        Just(DeliveryFailure::Refusing),
        Just(DeliveryFailure::Busy),
        Just(DeliveryFailure::Unanswered),
    ];
    let step = prop_oneof![
        5 => role.prop_map(Step::Want),
        1 => Just(Step::Reborn),
        3 => (setback, any::<bool>()).prop_map(|(setback, heard)| Step::Fail(setback, WasHeard(heard))),
    ];
    prop::collection::vec((0_u64..3_000, step), 1..40)
}

/// Attempts that end at once, soon, or at the time limit of an attempt.
fn paces() -> impl Strategy<Value = Vec<Pace>> {
    let takes = prop_oneof![2 => Just(0_u64), 3 => 1_u64..500, 1 => 500_u64..5_000];
    let pace = (takes, 0_u64..=100).prop_map(|(takes_ms, percent)| Pace {
        takes_ms,
        heard_after_ms: takes_ms * percent / 100,
    });
    prop::collection::vec(pace, 1..12)
}

/// An attempt that has begun: what its receiver hears and answers, and when.
struct UnderWay {
    role: NeutronState,
    outcome: Outcome,
    hears: Option<Moment>,
    ends: Moment,
    slowness: Duration,
}

/// A delivery and its receiver, one millisecond after the other.
struct World {
    delivery: Delivery,
    receiver: Receiver,
    under_way: Option<UnderWay>,
    paces: std::iter::Cycle<std::vec::IntoIter<Pace>>,
    failures: Vec<(DeliveryFailure, WasHeard)>,
    wanted: Option<NeutronState>,
    /// The role of the last attempt that failed, and when it did.
    failed: Option<(NeutronState, Moment)>,
    said: usize,
}

impl World {
    fn step(&mut self, step: Step) {
        match step {
            Step::Want(role) => {
                self.wanted = Some(role);
                self.delivery.want(role);
            }
            Step::Reborn => {
                self.receiver =
                    Receiver { applied: None, pending: None, delay: self.receiver.delay };
                // The connection was to the old one: the new one never hears of it.
                if let Some(attempt) = &mut self.under_way {
                    attempt.hears = None;
                }
                self.delivery.receiver_appeared();
            }
            Step::Fail(setback, heard) => self.failures.push((setback, heard)),
        }
    }

    fn advance(&mut self, now: Moment) -> Result<(), TestCaseError> {
        self.receiver.settle(now);
        self.go_on(now);
        // Twice: what fails must not be due again before time has passed.
        for _ in 0..2 {
            let Some(role) = self.delivery.begin(now) else { break };
            prop_assert!(self.under_way.is_none(), "two attempts at once");
            prop_assert!(self.failed != Some((role, now)), "no time passed since the last failure");
            self.said += 1;
            self.begin(role, now);
            self.go_on(now);
        }
        Ok(())
    }

    fn begin(&mut self, role: NeutronState, now: Moment) {
        let pace = self.paces.next().expect("a cycle does not end");
        let (heard_after, takes) =
            (Duration::from_millis(pace.heard_after_ms), Duration::from_millis(pace.takes_ms));
        let failure = self.failures.pop();
        let is_heard = failure.is_none_or(|(setback, heard)| setback.may_be_heard() && heard.0);
        self.under_way = Some(UnderWay {
            role,
            outcome: failure.map_or(Outcome::Taken, |(setback, _)| Outcome::Failed(setback)),
            hears: is_heard.then(|| now + heard_after),
            ends: now + takes,
            slowness: if failure.is_none() { takes } else { Duration::ZERO },
        });
    }

    fn go_on(&mut self, now: Moment) {
        let Some(attempt) = &mut self.under_way else { return };
        if attempt.hears.take_if(|hears| *hears <= now).is_some() {
            self.receiver.hear(attempt.role, now, attempt.slowness);
        }
        if let Some(ended) = self.under_way.take_if(|attempt| attempt.ends <= now) {
            if matches!(ended.outcome, Outcome::Failed(_)) {
                self.failed = Some((ended.role, now));
            }
            self.delivery.finish(ended.outcome, now);
        }
    }

    fn is_quiet(&self) -> bool {
        self.under_way.is_none() && self.delivery.due().is_none() && self.receiver.pending.is_none()
    }
}

proptest! {
    /// Whatever happens on the way, also while an attempt is under way, the receiver ends with the role
    /// that was wanted last, and then there is silence.
    #[test]
    fn the_applied_role_ends_equal_to_the_wanted_one(
        steps in steps(),
        paces in paces(),
        delay in 0_u64..400,
        applied_before in prop_oneof![Just(None), Just(Some(NeutronState::Primary)), Just(Some(NeutronState::Backup))],
    ) {
        let delay = Duration::from_millis(delay);
        let mut world = World {
            delivery: delivery(),
            receiver: Receiver { applied: applied_before, pending: None, delay },
            under_way: None,
            paces: paces.into_iter().cycle(),
            failures: Vec::new(),
            wanted: None,
            failed: None,
            said: 0,
        };
        let mut clock = 0_u64;
        for (gap, step) in steps {
            for _ in 0..gap {
                clock += 1;
                world.advance(at(clock))?;
            }
            world.step(step);
        }
        world.said = 0;
        let limit = clock + 600_000;
        while clock < limit && (clock == 0 || !world.is_quiet()) {
            clock += 1;
            world.advance(at(clock))?;
        }

        prop_assert_eq!(world.delivery.due(), None, "still talking at the end");
        prop_assert!(world.delivery.is_settled());
        if world.wanted.is_some() {
            prop_assert_eq!(world.receiver.applied, world.wanted);
        }
        prop_assert!(world.said <= 4 + 40, "chatter");
    }
}
