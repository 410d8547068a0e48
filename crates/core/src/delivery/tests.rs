// SPDX-License-Identifier: Apache-2.0
//! Single cases of the delivery, and a property test against a model of Neutron's server in the agent. The test moves the
//! clock.

use proptest::prelude::*;

use super::*;

const WINDOW: Duration = Duration::from_secs(2);

fn at(ms: u64) -> Moment {
    Moment::new(Duration::from_millis(ms))
}

fn delivery() -> Delivery {
    Delivery::new(WINDOW, Jitter::new(7))
}

/// Makes the attempt that is due at `ms`, which the agent acknowledges; returns the reported state.
fn deliver(delivery: &mut Delivery, ms: u64) -> Option<NeutronState> {
    let state = delivery.begin(at(ms))?;
    delivery.finish(Outcome::Acknowledged, at(ms));
    Some(state)
}

#[test]
fn the_first_state_is_reported_once_and_without_delay() {
    let mut delivery = delivery();
    delivery.want(NeutronState::Backup);
    assert_eq!(deliver(&mut delivery, 0), Some(NeutronState::Backup));
    assert_eq!(delivery.due(), None);
}

#[test]
fn a_state_that_follows_another_within_the_window_is_confirmed_once() {
    let mut delivery = delivery();
    delivery.want(NeutronState::Primary);
    deliver(&mut delivery, 0);
    delivery.want(NeutronState::Backup);
    assert_eq!(deliver(&mut delivery, 50), Some(NeutronState::Backup));

    assert_eq!(deliver(&mut delivery, 2_000), None, "the window may not have passed");
    assert_eq!(deliver(&mut delivery, 3_000), Some(NeutronState::Backup));
    assert_eq!(delivery.due(), None);
}

#[test]
fn a_slow_agent_has_a_longer_window() {
    let mut delivery = delivery();
    delivery.want(NeutronState::Primary);
    delivery.begin(at(0));
    delivery.finish(Outcome::Acknowledged, at(1_000));
    delivery.want(NeutronState::Backup);
    assert_eq!(deliver(&mut delivery, 4_000), Some(NeutronState::Backup));
    assert!(delivery.due().is_some(), "the agent may have delayed the first state until then");
}

#[test]
fn a_fast_answer_does_not_shorten_the_window_of_an_earlier_slow_one() {
    let mut delivery = delivery();
    delivery.want(NeutronState::Primary);
    delivery.begin(at(0));
    delivery.finish(Outcome::Acknowledged, at(4_300));
    for (state, ms) in [
        (NeutronState::Backup, 4_310),
        (NeutronState::Primary, 5_200),
        (NeutronState::Backup, 7_300),
    ] {
        delivery.want(state);
        assert_eq!(deliver(&mut delivery, ms), Some(state));
    }
    assert!(delivery.due() > Some(at(10_600)), "the agent delays the first state until then");
}

#[test]
fn a_state_that_follows_another_after_the_window_is_not_confirmed() {
    let mut delivery = delivery();
    delivery.want(NeutronState::Primary);
    deliver(&mut delivery, 0);
    delivery.want(NeutronState::Backup);
    assert_eq!(deliver(&mut delivery, 60_000), Some(NeutronState::Backup));
    assert_eq!(delivery.due(), None);
}

#[test]
fn a_report_of_a_predecessor_starts_the_window() {
    let mut delivery = delivery();
    delivery.predecessor_reported(at(0));
    delivery.want(NeutronState::Primary);
    deliver(&mut delivery, 100);
    assert!(delivery.due().is_some(), "a confirmation is due");
}

#[test]
fn after_an_unanswered_attempt_the_acknowledged_state_is_reported_again() {
    let mut delivery = delivery();
    delivery.want(NeutronState::Backup);
    deliver(&mut delivery, 0);
    delivery.want(NeutronState::Primary);
    assert_eq!(delivery.begin(at(10_000)), Some(NeutronState::Primary));
    delivery.want(NeutronState::Backup);
    delivery.finish(Outcome::Failed(DeliveryFailure::Unanswered), at(15_000));

    assert_eq!(deliver(&mut delivery, 16_000), Some(NeutronState::Backup));
}

#[test]
fn an_attempt_without_an_agent_needs_no_report_when_the_state_returns() {
    let mut delivery = delivery();
    delivery.want(NeutronState::Backup);
    deliver(&mut delivery, 0);
    delivery.want(NeutronState::Primary);
    delivery.begin(at(10_000));
    delivery.finish(Outcome::Failed(DeliveryFailure::Absent), at(10_000));
    delivery.want(NeutronState::Backup);
    assert_eq!(delivery.due(), None);
}

#[test]
fn a_restarted_agent_gets_the_unchanged_state_at_once() {
    let mut delivery = delivery();
    delivery.want(NeutronState::Primary);
    deliver(&mut delivery, 0);
    delivery.agent_restarted();
    assert_eq!(deliver(&mut delivery, 1), Some(NeutronState::Primary));
    // It may be the old agent after all, and its window still runs.
    assert_eq!(deliver(&mut delivery, 5_000), Some(NeutronState::Primary));
    assert_eq!(delivery.due(), None, "no further report");
}

#[test]
fn an_answer_of_the_old_agent_does_not_count_for_the_new_one() {
    let mut delivery = delivery();
    delivery.want(NeutronState::Primary);
    delivery.begin(at(0));
    delivery.agent_restarted();
    delivery.finish(Outcome::Acknowledged, at(1));
    assert_eq!(deliver(&mut delivery, 2), Some(NeutronState::Primary));
}

#[test]
fn a_new_state_does_not_wait_for_the_backoff_of_the_old_one() {
    let mut delivery = delivery();
    delivery.want(NeutronState::Primary);
    delivery.begin(at(0));
    delivery.finish(Outcome::Failed(DeliveryFailure::Rejected), at(0));
    assert!(delivery.due() > Some(at(20_000)), "a rejection is retried slowly");
    delivery.want(NeutronState::Backup);
    assert_eq!(delivery.begin(at(1)), Some(NeutronState::Backup));
}

#[test]
fn a_state_wanted_during_a_failing_attempt_does_not_wait_for_its_backoff() {
    let mut delivery = delivery();
    delivery.want(NeutronState::Primary);
    delivery.begin(at(0));
    delivery.want(NeutronState::Backup);
    delivery.finish(Outcome::Failed(DeliveryFailure::Unanswered), at(5_000));
    assert_eq!(delivery.begin(at(5_000)), Some(NeutronState::Backup));
}

#[test]
fn a_failed_confirmation_is_retried_after_a_wait() {
    for failure in [
        DeliveryFailure::Absent,
        DeliveryFailure::Refusing,
        DeliveryFailure::Busy,
        DeliveryFailure::Unanswered,
    ] {
        let mut delivery = delivery();
        delivery.want(NeutronState::Primary);
        deliver(&mut delivery, 0);
        delivery.want(NeutronState::Backup);
        deliver(&mut delivery, 50);
        assert_eq!(delivery.begin(at(10_000)), Some(NeutronState::Backup), "the confirmation");
        delivery.finish(Outcome::Failed(failure), at(10_000));
        assert_eq!(delivery.begin(at(10_000)), None, "{failure:?}: retried without a wait");
        assert_eq!(
            delivery.begin(at(20_000)),
            Some(NeutronState::Backup),
            "{failure:?}: not retried"
        );
    }
}

#[test]
fn an_agent_that_stays_busy_gets_fewer_attempts() {
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
    assert!(during(0, 2_000) > 30, "a busy agent is retried often at first: {}", during(0, 2_000));
    let later = during(10_000, 60_000);
    assert!((25..=50).contains(&later), "one attempt every one to two seconds: {later} in 50 s");
}

#[test]
fn no_attempt_begins_while_the_state_is_withheld() {
    let mut delivery = delivery();
    delivery.want(NeutronState::Backup);
    delivery.withhold();
    assert_eq!(delivery.due(), None);
    delivery.want(NeutronState::Primary);
    assert_eq!(deliver(&mut delivery, 5), Some(NeutronState::Primary));
}

/// Neutron's `enqueue_state_change`: one pending state per router. A report replaces it while a worker
/// delays a primary, and the worker applies nothing if the state has changed meanwhile.
struct Agent {
    applied: Option<NeutronState>,
    pending: Option<Pending>,
    /// The additional delay of every wake-up in a busy interpreter.
    delay: Duration,
}

struct Pending {
    first: NeutronState,
    latest: NeutronState,
    wakes: Moment,
}

impl Agent {
    /// Takes a report; `slowness` is the time that the agent needs to answer it.
    fn receive(&mut self, state: NeutronState, now: Moment, slowness: Duration) {
        self.settle(now);
        if let Some(pending) = &mut self.pending {
            pending.latest = state;
            return;
        }
        let sleep = if state == NeutronState::Primary { WINDOW } else { Duration::ZERO };
        let wakes = now + sleep + self.delay + slowness;
        self.pending = Some(Pending { first: state, latest: state, wakes });
    }

    fn settle(&mut self, now: Moment) {
        if let Some(pending) = self.pending.take_if(|pending| pending.wakes <= now)
            && pending.first == pending.latest
        {
            self.applied = Some(pending.latest);
        }
    }
}

/// How long one attempt takes, and how much of that passes before the report arrives, in milliseconds.
#[derive(Debug, Clone, Copy)]
struct Pace {
    takes_ms: u64,
    arrives_after_ms: u64,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Want(NeutronState),
    AgentRestarts,
    /// The next attempt fails like this.
    Fail(DeliveryFailure, Arrives),
}

#[derive(Debug, Clone, Copy)]
struct Arrives(bool);

fn steps() -> impl Strategy<Value = Vec<(u64, Step)>> {
    let state = prop_oneof![Just(NeutronState::Primary), Just(NeutronState::Backup)];
    let failure = prop_oneof![
        Just(DeliveryFailure::Absent),
        Just(DeliveryFailure::Refusing),
        Just(DeliveryFailure::Busy),
        Just(DeliveryFailure::Unanswered),
    ];
    let step = prop_oneof![
        5 => state.prop_map(Step::Want),
        1 => Just(Step::AgentRestarts),
        3 => (failure, any::<bool>()).prop_map(|(failure, arrives)| Step::Fail(failure, Arrives(arrives))),
    ];
    prop::collection::vec((0_u64..3_000, step), 1..40)
}

/// Attempts that end at once, after a short time, or at the time limit of an attempt.
fn paces() -> impl Strategy<Value = Vec<Pace>> {
    let takes = prop_oneof![2 => Just(0_u64), 3 => 1_u64..500, 1 => 500_u64..5_000];
    let pace = (takes, 0_u64..=100).prop_map(|(takes_ms, percent)| Pace {
        takes_ms,
        arrives_after_ms: takes_ms * percent / 100,
    });
    prop::collection::vec(pace, 1..12)
}

/// An attempt in progress.
struct Exchange {
    state: NeutronState,
    outcome: Outcome,
    /// When the report arrives; `None` if it has arrived or never will.
    arrives: Option<Moment>,
    ends: Moment,
    slowness: Duration,
}

/// A delivery and its agent, in steps of one millisecond.
struct World {
    delivery: Delivery,
    agent: Agent,
    exchange: Option<Exchange>,
    paces: std::iter::Cycle<std::vec::IntoIter<Pace>>,
    failures: Vec<(DeliveryFailure, Arrives)>,
    wanted: Option<NeutronState>,
    /// The state of the last failed attempt, and the time of its end.
    failed: Option<(NeutronState, Moment)>,
    attempts: usize,
}

impl World {
    fn step(&mut self, step: Step) {
        match step {
            Step::Want(state) => {
                self.wanted = Some(state);
                self.delivery.want(state);
            }
            Step::AgentRestarts => {
                self.agent = Agent { applied: None, pending: None, delay: self.agent.delay };
                // The connection was to the old agent: the report never arrives at the new one.
                if let Some(exchange) = &mut self.exchange {
                    exchange.arrives = None;
                }
                self.delivery.agent_restarted();
            }
            Step::Fail(failure, arrives) => self.failures.push((failure, arrives)),
        }
    }

    fn advance(&mut self, now: Moment) -> Result<(), TestCaseError> {
        self.agent.settle(now);
        self.advance_exchange(now);
        // Twice: a failed attempt must not be due again in the same millisecond.
        for _ in 0..2 {
            let Some(state) = self.delivery.begin(now) else { break };
            prop_assert!(self.exchange.is_none(), "two attempts at once");
            prop_assert!(self.failed != Some((state, now)), "retried without a wait");
            self.attempts += 1;
            self.begin(state, now);
            self.advance_exchange(now);
        }
        Ok(())
    }

    fn begin(&mut self, state: NeutronState, now: Moment) {
        let pace = self.paces.next().expect("a cycle does not end");
        let arrives_after = Duration::from_millis(pace.arrives_after_ms);
        let takes = Duration::from_millis(pace.takes_ms);
        let failure = self.failures.pop();
        let is_arriving =
            failure.is_none_or(|(failure, arrives)| failure.may_have_arrived() && arrives.0);
        self.exchange = Some(Exchange {
            state,
            outcome: failure.map_or(Outcome::Acknowledged, |(failure, _)| Outcome::Failed(failure)),
            arrives: is_arriving.then(|| now + arrives_after),
            ends: now + takes,
            slowness: if failure.is_none() { takes } else { Duration::ZERO },
        });
    }

    fn advance_exchange(&mut self, now: Moment) {
        let Some(exchange) = &mut self.exchange else { return };
        if exchange.arrives.take_if(|arrives| *arrives <= now).is_some() {
            self.agent.receive(exchange.state, now, exchange.slowness);
        }
        if let Some(ended) = self.exchange.take_if(|exchange| exchange.ends <= now) {
            if matches!(ended.outcome, Outcome::Failed(_)) {
                self.failed = Some((ended.state, now));
            }
            self.delivery.finish(ended.outcome, now);
        }
    }

    fn is_quiet(&self) -> bool {
        self.exchange.is_none() && self.delivery.due().is_none() && self.agent.pending.is_none()
    }
}

proptest! {
    /// For any order of changes, failures and restarts, also during an attempt, the agent ends with the state
    /// that was wanted last, and the attempts end.
    #[test]
    fn the_agent_ends_with_the_wanted_state(
        steps in steps(),
        paces in paces(),
        delay in 0_u64..400,
        applied_before in prop_oneof![Just(None), Just(Some(NeutronState::Primary)), Just(Some(NeutronState::Backup))],
    ) {
        let delay = Duration::from_millis(delay);
        let mut world = World {
            delivery: delivery(),
            agent: Agent { applied: applied_before, pending: None, delay },
            exchange: None,
            paces: paces.into_iter().cycle(),
            failures: Vec::new(),
            wanted: None,
            failed: None,
            attempts: 0,
        };
        let mut clock = 0_u64;
        for (gap, step) in steps {
            for _ in 0..gap {
                clock += 1;
                world.advance(at(clock))?;
            }
            world.step(step);
        }
        world.attempts = 0;
        let limit = clock + 600_000;
        while clock < limit && (clock == 0 || !world.is_quiet()) {
            clock += 1;
            world.advance(at(clock))?;
        }

        prop_assert_eq!(world.delivery.due(), None, "an attempt is planned at the end");
        prop_assert!(world.delivery.is_settled());
        if world.wanted.is_some() {
            prop_assert_eq!(world.agent.applied, world.wanted);
        }
        prop_assert!(world.attempts <= 4 + 40, "too many attempts: {}", world.attempts);
    }
}
