//! What monitors say of instances, and when a receiver acts on it.
//!
//! A claim is what another process says; the kernel may say otherwise. A receiver that acted on every
//! claim at once would start services for a primary that is none a moment later. So a claim to be
//! primary is held back for one advert interval, as Neutron's agent does, and one that is taken back
//! within it is never acted on:
//!
//! ```text
//!                  primary                        interval over
//!   settled ───────────────────▶ held back ───────────────────────▶ settled as primary
//!     ▲   │ another word: at once     │ another word
//!     └───┘                           ├─ as it was settled before: swallowed, nothing is done
//!                                     └─ another: settled as that, at once
//! ```
//!
//! Neutron's own receiver compares the word it was started for with the last one, and acts on neither if
//! they differ; it can lose a backup after a repeated primary, and a primary right behind a backup. Here
//! the last word always counts in the end.

use std::time::Duration;

use crate::{Moment, NeutronState};

/// What is claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReportedState {
    /// It is primary.
    Primary,
    /// It is backup.
    Backup,
    /// It could not be primary.
    Fault,
    /// Nobody knows.
    Unknown,
}

impl ReportedState {
    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Primary => "primary",
            Self::Backup => "backup",
            Self::Fault => "fault",
            Self::Unknown => "unknown",
        }
    }

    /// What a word of any release means; `None` if it means nothing.
    pub fn parse(word: &str) -> Option<Self> {
        match word {
            // Monitors of Neutron up to 16, which may survive an upgrade.
            "primary" | "master" => Some(Self::Primary),
            "backup" => Some(Self::Backup),
            "fault" => Some(Self::Fault),
            "unknown" => Some(Self::Unknown),
            _ => None,
        }
    }

    /// The role it is about; `None` if nobody knows.
    pub fn neutron_state(self) -> Option<NeutronState> {
        match self {
            Self::Primary => Some(NeutronState::Primary),
            Self::Backup | Self::Fault => Some(NeutronState::Backup),
            Self::Unknown => None,
        }
    }

    /// What Neutron's server calls it.
    pub fn server_name(self) -> &'static str {
        match self {
            Self::Primary => "active",
            Self::Backup | Self::Fault => "standby",
            Self::Unknown => "unknown",
        }
    }
}

/// What a claim leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DebounceDecision {
    /// Act on it, now.
    Act(ReportedState),
    /// It is held back.
    Held,
    /// It took back what was held back; nothing is done.
    Coalesced,
    /// It is as it was.
    Unchanged,
}

/// The claims about one instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Debounce {
    settled: Option<ReportedState>,
    /// Until when a claim to be primary is held back.
    held_until: Option<Moment>,
    /// Whether more may have been acted on than is known.
    is_coalescing_disabled: bool,
}

impl Debounce {
    /// One of which this was acted on last.
    pub fn settled_as(claim: ReportedState) -> Self {
        Self { settled: Some(claim), held_until: None, is_coalescing_disabled: false }
    }

    /// More may have been acted on than is known: nothing is swallowed until something is acted on.
    pub fn disable_coalescing(&mut self) {
        self.is_coalescing_disabled = true;
    }

    /// What holds; `None` if nothing was ever claimed, or only what was taken back.
    pub fn settled(&self) -> Option<ReportedState> {
        self.settled
    }

    /// Whether a claim to be primary is held back.
    pub fn is_holding(&self) -> bool {
        self.held_until.is_some()
    }

    /// Somebody claims something. `interval` is for how long a primary is held back; zero for not at all.
    pub fn report(
        &mut self,
        claim: ReportedState,
        now: Moment,
        interval: Duration,
    ) -> DebounceDecision {
        match (claim, self.held_until) {
            (ReportedState::Primary, Some(_)) => DebounceDecision::Held,
            (ReportedState::Primary, None) if self.settled == Some(ReportedState::Primary) => {
                DebounceDecision::Unchanged
            }
            (ReportedState::Primary, None) if interval.is_zero() => self.settle(claim),
            (ReportedState::Primary, None) => {
                self.held_until = Some(now + interval);
                DebounceDecision::Held
            }
            (other, Some(_)) => {
                self.held_until = None;
                // Nobody was told of anything yet, so there is nothing to take back.
                if !self.is_coalescing_disabled
                    && self.settled.is_none_or(|settled| settled == other)
                {
                    self.settled = Some(other);
                    return DebounceDecision::Coalesced;
                }
                self.settle(other)
            }
            (other, None) if self.settled == Some(other) => DebounceDecision::Unchanged,
            (other, None) => self.settle(other),
        }
    }

    fn settle(&mut self, claim: ReportedState) -> DebounceDecision {
        (self.settled, self.is_coalescing_disabled) = (Some(claim), false);
        DebounceDecision::Act(claim)
    }

    /// When [`Self::tick`] has something to do.
    pub fn due(&self) -> Option<Moment> {
        self.held_until
    }

    /// What is to be acted on now, if the time has come.
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

    /// What is acted on when claims come at these times, and a long silence follows.
    fn acted(debounce: &mut Debounce, claims: &[(u64, ReportedState)]) -> Vec<ReportedState> {
        let mut acted = Vec::new();
        for (time, claim) in claims {
            acted.extend(debounce.tick(at(*time)));
            if let DebounceDecision::Act(claim) = debounce.report(*claim, at(*time), INTERVAL) {
                acted.push(claim);
            }
        }
        acted.extend(debounce.tick(at(1_000_000)));
        acted
    }

    // Upstream's own cases, by their names: test_agent.py of Neutron.

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
            "and yet it is known what holds"
        );
    }

    #[test]
    fn test_enqueue_state_change_from_none_to_backup_to_primary() {
        let told = acted(
            &mut Debounce::default(),
            &[(0, ReportedState::Backup), (2000, ReportedState::Primary)],
        );
        assert_eq!(told, [ReportedState::Backup, ReportedState::Primary]);
    }

    // What upstream loses.

    #[test]
    fn d41_a_backup_behind_a_repeated_primary_is_not_lost() {
        let claims = [
            (0, ReportedState::Primary),
            (5000, ReportedState::Primary),
            (5200, ReportedState::Backup),
        ];
        assert_eq!(
            acted(&mut Debounce::default(), &claims),
            [ReportedState::Primary, ReportedState::Backup]
        );
    }

    #[test]
    fn d42_a_primary_right_behind_a_backup_is_not_lost() {
        let claims = [(0, ReportedState::Backup), (1, ReportedState::Primary)];
        assert_eq!(
            acted(&mut Debounce::default(), &claims),
            [ReportedState::Backup, ReportedState::Primary]
        );
    }

    #[test]
    fn d43_a_word_of_an_older_monitor_is_understood_and_nonsense_is_not() {
        assert_eq!(ReportedState::parse("master"), Some(ReportedState::Primary));
        for word in ["", "Primary", "boss", "primary ", "active"] {
            assert_eq!(ReportedState::parse(word), None, "{word:?}");
        }
    }

    #[test]
    fn words_are_translated_as_the_server_knows_them() {
        let of = |claim: ReportedState| claim.server_name();
        assert_eq!(of(ReportedState::Primary), "active");
        assert_eq!((of(ReportedState::Backup), of(ReportedState::Fault)), ("standby", "standby"));
        assert_eq!(of(ReportedState::Unknown), "unknown");
    }

    #[test]
    fn a_pair_that_cancels_out_is_swallowed_and_a_longer_reign_is_not() {
        let mut debounce = Debounce::settled_as(ReportedState::Backup);
        assert_eq!(
            acted(&mut debounce, &[(0, ReportedState::Primary), (999, ReportedState::Backup)]),
            []
        );
        let claims = [(0, ReportedState::Primary), (1000, ReportedState::Backup)];
        assert_eq!(acted(&mut debounce, &claims), [ReportedState::Primary, ReportedState::Backup]);
    }

    #[test]
    fn what_may_have_been_told_before_a_restart_is_not_swallowed_after_it() {
        let mut debounce = Debounce::default();
        debounce.disable_coalescing();
        let claims = [(0, ReportedState::Primary), (200, ReportedState::Backup)];
        assert_eq!(acted(&mut debounce, &claims), [ReportedState::Backup]);
        let mut debounce = Debounce::settled_as(ReportedState::Backup);
        debounce.disable_coalescing();
        assert_eq!(acted(&mut debounce, &claims), [ReportedState::Backup]);
        assert_eq!(acted(&mut debounce, &claims), [], "once");
    }

    #[test]
    fn without_an_interval_everything_is_acted_on_at_once() {
        let mut debounce = Debounce::default();
        let verdict = debounce.report(ReportedState::Primary, at(0), Duration::ZERO);
        assert_eq!(verdict, DebounceDecision::Act(ReportedState::Primary));
    }

    proptest! {
        /// For any claims at any times: what holds in the end is what was claimed last, nothing is
        /// acted on twice in a row, and what was acted on last is what holds, unless nobody was ever
        /// told of anything.
        #[test]
        fn what_holds_in_the_end_is_what_was_claimed_last(
            steps in proptest::collection::vec((0_u64..3000, 0_usize..4), 1..40),
        ) {
            let words = [ReportedState::Primary, ReportedState::Backup, ReportedState::Fault, ReportedState::Unknown];
            let mut time = 0;
            let claims: Vec<(u64, ReportedState)> = steps
                .iter()
                .map(|(wait, word)| {
                    time += wait;
                    (time, words[*word])
                })
                .collect();
            let mut debounce = Debounce::default();
            let told = acted(&mut debounce, &claims);
            prop_assert_eq!(debounce.settled(), claims.last().map(|(_, claim)| *claim));
            prop_assert!(told.windows(2).all(|pair| pair[0] != pair[1]));
            if let Some(last) = told.last() {
                prop_assert_eq!(Some(*last), debounce.settled());
            }
        }
    }
}
