// SPDX-License-Identifier: Apache-2.0
//! Debounces the states that monitors report to the receiver.
//!
//! A report is the statement of another process; the kernel may differ from it. A receiver that
//! acted on every report at once would start services for a primary that lasts only a moment. Therefore
//! a reported `primary` is *held* for one advert interval, as Neutron's agent does. Every other state
//! takes effect at once. A state that took effect is *settled*.
//!
//! ```text
//!                  primary                        interval over
//!   settled ───────────────────▶ held ────────────────────────────▶ settled as primary
//!     ▲   │ another state: act        │ another state
//!     └───┘                           ├─ equal to the settled one: coalesced, no action
//!                                     └─ different: settled as that state, act
//! ```
//!
//! Neutron's own server compares the state with which a worker started with the latest one, and acts on
//! neither if they differ. It can therefore lose a `backup` after a repeated `primary`, and a `primary`
//! that directly follows a `backup`. With this type the last report always takes effect.

use std::time::Duration;

use strum::{EnumString, IntoStaticStr};

use crate::{Moment, NeutronState};

/// The state of an instance as a monitor reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, EnumString, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum ReportedState {
    /// The monitor's node holds the virtual address.
    // Monitors of Neutron up to release 16 report `master`. They can survive an upgrade.
    #[strum(to_string = "primary", serialize = "master")]
    Primary,
    /// The monitor's node does not hold the virtual address.
    Backup,
    /// The machine of the monitor cannot hold the virtual address, for example because a link is down.
    Fault,
    /// The monitor does not know the state.
    Unknown,
}

impl ReportedState {
    /// The state as it is written in the protocol, in JSON and in the journal.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Reads a state as monitors of any Neutron release write it; `None` for any other text.
    pub fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }

    /// The Neutron state that this report means; `None` for [`Self::Unknown`].
    pub fn neutron_state(self) -> Option<NeutronState> {
        match self {
            Self::Primary => Some(NeutronState::Primary),
            Self::Backup | Self::Fault => Some(NeutronState::Backup),
            Self::Unknown => None,
        }
    }

    /// The name of the state in the API of Neutron's server (`ha_state`).
    pub fn neutron_server_name(self) -> &'static str {
        match self {
            Self::Primary => "active",
            Self::Backup | Self::Fault => "standby",
            Self::Unknown => "unknown",
        }
    }
}

/// The next step of the receiver after one report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DebounceDecision {
    /// Act on this state now.
    Act(ReportedState),
    /// Wait: a `primary` is held until [`Debounce::due`].
    Held,
    /// Do nothing: the report cancels the held `primary`.
    Coalesced,
    /// Do nothing: the state is already settled.
    Unchanged,
}

/// The reported states of one instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Debounce {
    /// The state that took effect last.
    settled: Option<ReportedState>,
    /// The end of the interval during which a `primary` is held; `None` if none is held.
    held_until: Option<Moment>,
    /// Set after a crash: actions that were not recorded may have run.
    is_coalescing_disabled: bool,
}

impl Debounce {
    /// An instance with `state` settled: its last action was for this state.
    pub fn settled_as(state: ReportedState) -> Self {
        Self { settled: Some(state), held_until: None, is_coalescing_disabled: false }
    }

    /// Disables coalescing until the next action. After a crash, actions that were not recorded may have
    /// run, so a held `primary` and the report that cancels it cannot be dropped.
    pub fn disable_coalescing(&mut self) {
        self.is_coalescing_disabled = true;
    }

    /// The settled state; `None` before the first report takes effect.
    pub fn settled(&self) -> Option<ReportedState> {
        self.settled
    }

    /// Whether a reported `primary` is held.
    pub fn is_holding(&self) -> bool {
        self.held_until.is_some()
    }

    /// Takes the report of a monitor. A `primary` is held for `interval`; zero means that it takes effect
    /// at once.
    pub fn report(
        &mut self,
        state: ReportedState,
        now: Moment,
        interval: Duration,
    ) -> DebounceDecision {
        match (state, self.held_until) {
            (ReportedState::Primary, Some(_)) => DebounceDecision::Held,
            (ReportedState::Primary, None) if self.settled == Some(ReportedState::Primary) => {
                DebounceDecision::Unchanged
            }
            (ReportedState::Primary, None) if interval.is_zero() => self.settle(state),
            (ReportedState::Primary, None) => {
                self.held_until = Some(now + interval);
                DebounceDecision::Held
            }
            (other, Some(_)) => {
                self.held_until = None;
                // Without a settled state no target knows a state that would have to be corrected.
                let cancels = self.settled.is_none_or(|settled| settled == other);
                if cancels && !self.is_coalescing_disabled {
                    self.settled = Some(other);
                    return DebounceDecision::Coalesced;
                }
                self.settle(other)
            }
            (other, None) if self.settled == Some(other) => DebounceDecision::Unchanged,
            (other, None) => self.settle(other),
        }
    }

    fn settle(&mut self, state: ReportedState) -> DebounceDecision {
        self.settled = Some(state);
        self.is_coalescing_disabled = false;
        DebounceDecision::Act(state)
    }

    /// When to call [`Self::tick`]; `None` if nothing is held.
    pub fn due(&self) -> Option<Moment> {
        self.held_until
    }

    /// Settles a held `primary` after its interval, and returns the state to act on.
    pub fn tick(&mut self, now: Moment) -> Option<ReportedState> {
        self.held_until.filter(|until| *until <= now)?;
        *self = Self::settled_as(ReportedState::Primary);
        self.settled
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const INTERVAL: Duration = Duration::from_secs(1);

    fn at(millis: u64) -> Moment {
        Moment::new(Duration::from_millis(millis))
    }

    /// Reports each state at its time in ms, then waits; returns the states that were acted on.
    fn acted(debounce: &mut Debounce, reports: &[(u64, ReportedState)]) -> Vec<ReportedState> {
        let mut acted = Vec::new();
        for (time, state) in reports {
            acted.extend(debounce.tick(at(*time)));
            if let DebounceDecision::Act(state) = debounce.report(*state, at(*time), INTERVAL) {
                acted.push(state);
            }
        }
        acted.extend(debounce.tick(at(1_000_000)));
        acted
    }

    // The cases of Neutron's test_agent.py, under their names there.

    #[test]
    fn test_enqueue_state_change_from_none_to_primary() {
        assert_eq!(
            acted(&mut Debounce::default(), &[(0, ReportedState::Primary)]),
            [ReportedState::Primary]
        );
    }

    #[test]
    fn test_enqueue_state_change_from_none_to_backup() {
        assert_eq!(
            acted(&mut Debounce::default(), &[(0, ReportedState::Backup)]),
            [ReportedState::Backup]
        );
    }

    #[test]
    fn test_enqueue_state_change_from_none_to_primary_to_backup() {
        let mut debounce = Debounce::default();
        assert_eq!(
            acted(&mut debounce, &[(0, ReportedState::Primary), (200, ReportedState::Backup)]),
            []
        );
        assert_eq!(
            debounce.settled(),
            Some(ReportedState::Backup),
            "the coalesced state is settled"
        );
    }

    #[test]
    fn test_enqueue_state_change_from_none_to_backup_to_primary() {
        let acted = acted(
            &mut Debounce::default(),
            &[(0, ReportedState::Backup), (2000, ReportedState::Primary)],
        );
        assert_eq!(acted, [ReportedState::Backup, ReportedState::Primary]);
    }

    // Reports that Neutron's server loses.

    #[test]
    fn d41_a_backup_after_a_repeated_primary_is_not_lost() {
        let reports = [
            (0, ReportedState::Primary),
            (5000, ReportedState::Primary),
            (5200, ReportedState::Backup),
        ];
        assert_eq!(
            acted(&mut Debounce::default(), &reports),
            [ReportedState::Primary, ReportedState::Backup]
        );
    }

    #[test]
    fn d42_a_primary_directly_after_a_backup_is_not_lost() {
        let reports = [(0, ReportedState::Backup), (1, ReportedState::Primary)];
        assert_eq!(
            acted(&mut Debounce::default(), &reports),
            [ReportedState::Backup, ReportedState::Primary]
        );
    }

    #[test]
    fn d43_the_state_of_an_older_monitor_is_read_and_other_text_is_not() {
        assert_eq!(ReportedState::parse("master"), Some(ReportedState::Primary));
        for text in ["", "Primary", "boss", "primary ", "active"] {
            assert_eq!(ReportedState::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn states_have_the_names_that_neutrons_server_uses() {
        let name = ReportedState::neutron_server_name;
        assert_eq!(name(ReportedState::Primary), "active");
        assert_eq!(name(ReportedState::Backup), "standby");
        assert_eq!(name(ReportedState::Fault), "standby");
        assert_eq!(name(ReportedState::Unknown), "unknown");
    }

    #[test]
    fn a_primary_that_is_cancelled_within_the_interval_is_coalesced() {
        let mut debounce = Debounce::settled_as(ReportedState::Backup);
        assert_eq!(
            acted(&mut debounce, &[(0, ReportedState::Primary), (999, ReportedState::Backup)]),
            []
        );
        let reports = [(0, ReportedState::Primary), (1000, ReportedState::Backup)];
        assert_eq!(acted(&mut debounce, &reports), [ReportedState::Primary, ReportedState::Backup]);
    }

    #[test]
    fn without_coalescing_a_cancelled_primary_leads_to_one_action() {
        let mut debounce = Debounce::default();
        debounce.disable_coalescing();
        let reports = [(0, ReportedState::Primary), (200, ReportedState::Backup)];
        assert_eq!(acted(&mut debounce, &reports), [ReportedState::Backup]);
        let mut debounce = Debounce::settled_as(ReportedState::Backup);
        debounce.disable_coalescing();
        assert_eq!(acted(&mut debounce, &reports), [ReportedState::Backup]);
        assert_eq!(acted(&mut debounce, &reports), [], "only once");
    }

    #[test]
    fn without_an_interval_a_primary_takes_effect_at_once() {
        let mut debounce = Debounce::default();
        let decision = debounce.report(ReportedState::Primary, at(0), Duration::ZERO);
        assert_eq!(decision, DebounceDecision::Act(ReportedState::Primary));
    }

    proptest! {
        /// For any reports at any times: the settled state is the last one reported, no two consecutive
        /// actions are for the same state, and the last action, if there was one, was for the settled
        /// state.
        #[test]
        fn the_last_reported_state_is_settled_in_the_end(
            steps in proptest::collection::vec((0_u64..3000, 0_usize..4), 1..40),
        ) {
            let states = [ReportedState::Primary, ReportedState::Backup, ReportedState::Fault, ReportedState::Unknown];
            let mut time = 0;
            let reports: Vec<(u64, ReportedState)> = steps
                .iter()
                .map(|(wait, state)| {
                    time += wait;
                    (time, states[*state])
                })
                .collect();
            let mut debounce = Debounce::default();
            let acted = acted(&mut debounce, &reports);
            prop_assert_eq!(debounce.settled(), reports.last().map(|(_, state)| *state));
            prop_assert!(acted.windows(2).all(|pair| pair[0] != pair[1]));
            if let Some(last) = acted.last() {
                prop_assert_eq!(Some(*last), debounce.settled());
            }
        }
    }
}
