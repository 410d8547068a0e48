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

use crate::{Moment, Role};

/// What is claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Claim {
    /// It is primary.
    Primary,
    /// It is backup.
    Backup,
    /// It could not be primary.
    Fault,
    /// Nobody knows.
    Unknown,
}

impl Claim {
    /// The word for it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Primary => "primary",
            Self::Backup => "backup",
            Self::Fault => "fault",
            Self::Unknown => "unknown",
        }
    }

    /// What a word of any release means; `None` if it means nothing.
    pub fn of_word(word: &str) -> Option<Self> {
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
    pub fn role(self) -> Option<Role> {
        match self {
            Self::Primary => Some(Role::Primary),
            Self::Backup | Self::Fault => Some(Role::Backup),
            Self::Unknown => None,
        }
    }

    /// What Neutron's server calls it.
    pub fn translated(self) -> &'static str {
        match self {
            Self::Primary => "active",
            Self::Backup | Self::Fault => "standby",
            Self::Unknown => "unknown",
        }
    }
}

/// What a claim leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Act on it, now.
    Act(Claim),
    /// It is held back.
    Held,
    /// It took back what was held back; nothing is done.
    Swallowed,
    /// It is as it was.
    Known,
}

/// The claims about one instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Docket {
    settled: Option<Claim>,
    /// Until when a claim to be primary is held back.
    held_until: Option<Moment>,
    /// Whether more may have been acted on than is known.
    is_doubtful: bool,
}

impl Docket {
    /// One of which this was acted on last.
    pub fn settled_as(claim: Claim) -> Self {
        Self { settled: Some(claim), held_until: None, is_doubtful: false }
    }

    /// More may have been acted on than is known: nothing is swallowed until something is acted on.
    pub fn doubt(&mut self) {
        self.is_doubtful = true;
    }

    /// What holds; `None` if nothing was ever claimed, or only what was taken back.
    pub fn settled(&self) -> Option<Claim> {
        self.settled
    }

    /// Whether a claim to be primary is held back.
    pub fn is_holding(&self) -> bool {
        self.held_until.is_some()
    }

    /// Somebody claims something. `interval` is for how long a primary is held back; zero for not at all.
    pub fn hear(&mut self, claim: Claim, now: Moment, interval: Duration) -> Verdict {
        match (claim, self.held_until) {
            (Claim::Primary, Some(_)) => Verdict::Held,
            (Claim::Primary, None) if self.settled == Some(Claim::Primary) => Verdict::Known,
            (Claim::Primary, None) if interval.is_zero() => self.settle(claim),
            (Claim::Primary, None) => {
                self.held_until = Some(now + interval);
                Verdict::Held
            }
            (other, Some(_)) => {
                self.held_until = None;
                // Nobody was told of anything yet, so there is nothing to take back.
                if !self.is_doubtful && self.settled.is_none_or(|settled| settled == other) {
                    self.settled = Some(other);
                    return Verdict::Swallowed;
                }
                self.settle(other)
            }
            (other, None) if self.settled == Some(other) => Verdict::Known,
            (other, None) => self.settle(other),
        }
    }

    fn settle(&mut self, claim: Claim) -> Verdict {
        (self.settled, self.is_doubtful) = (Some(claim), false);
        Verdict::Act(claim)
    }

    /// When [`Self::tick`] has something to do.
    pub fn due(&self) -> Option<Moment> {
        self.held_until
    }

    /// What is to be acted on now, if the time has come.
    pub fn tick(&mut self, now: Moment) -> Option<Claim> {
        self.held_until.filter(|until| *until <= now)?;
        *self = Self::settled_as(Claim::Primary);
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
    fn acted(docket: &mut Docket, claims: &[(u64, Claim)]) -> Vec<Claim> {
        let mut acted = Vec::new();
        for (time, claim) in claims {
            acted.extend(docket.tick(at(*time)));
            if let Verdict::Act(claim) = docket.hear(*claim, at(*time), INTERVAL) {
                acted.push(claim);
            }
        }
        acted.extend(docket.tick(at(1_000_000)));
        acted
    }

    // Upstream's own cases, by their names: test_agent.py of Neutron.

    #[test]
    fn test_enqueue_state_change_from_none_to_primary() {
        assert_eq!(acted(&mut Docket::default(), &[(0, Claim::Primary)]), [Claim::Primary]);
    }

    #[test]
    fn test_enqueue_state_change_from_none_to_backup() {
        assert_eq!(acted(&mut Docket::default(), &[(0, Claim::Backup)]), [Claim::Backup]);
    }

    #[test]
    fn test_enqueue_state_change_from_none_to_primary_to_backup() {
        let mut docket = Docket::default();
        assert_eq!(acted(&mut docket, &[(0, Claim::Primary), (200, Claim::Backup)]), []);
        assert_eq!(docket.settled(), Some(Claim::Backup), "and yet it is known what holds");
    }

    #[test]
    fn test_enqueue_state_change_from_none_to_backup_to_primary() {
        let told = acted(&mut Docket::default(), &[(0, Claim::Backup), (2000, Claim::Primary)]);
        assert_eq!(told, [Claim::Backup, Claim::Primary]);
    }

    // What upstream loses.

    #[test]
    fn d41_a_backup_behind_a_repeated_primary_is_not_lost() {
        let claims = [(0, Claim::Primary), (5000, Claim::Primary), (5200, Claim::Backup)];
        assert_eq!(acted(&mut Docket::default(), &claims), [Claim::Primary, Claim::Backup]);
    }

    #[test]
    fn d42_a_primary_right_behind_a_backup_is_not_lost() {
        let claims = [(0, Claim::Backup), (1, Claim::Primary)];
        assert_eq!(acted(&mut Docket::default(), &claims), [Claim::Backup, Claim::Primary]);
    }

    #[test]
    fn d43_a_word_of_an_older_monitor_is_understood_and_nonsense_is_not() {
        assert_eq!(Claim::of_word("master"), Some(Claim::Primary));
        for word in ["", "Primary", "boss", "primary ", "active"] {
            assert_eq!(Claim::of_word(word), None, "{word:?}");
        }
    }

    #[test]
    fn words_are_translated_as_the_server_knows_them() {
        let of = |claim: Claim| claim.translated();
        assert_eq!(of(Claim::Primary), "active");
        assert_eq!((of(Claim::Backup), of(Claim::Fault)), ("standby", "standby"));
        assert_eq!(of(Claim::Unknown), "unknown");
    }

    #[test]
    fn a_pair_that_cancels_out_is_swallowed_and_a_longer_reign_is_not() {
        let mut docket = Docket::settled_as(Claim::Backup);
        assert_eq!(acted(&mut docket, &[(0, Claim::Primary), (999, Claim::Backup)]), []);
        let claims = [(0, Claim::Primary), (1000, Claim::Backup)];
        assert_eq!(acted(&mut docket, &claims), [Claim::Primary, Claim::Backup]);
    }

    #[test]
    fn what_may_have_been_told_before_a_restart_is_not_swallowed_after_it() {
        let mut docket = Docket::default();
        docket.doubt();
        let claims = [(0, Claim::Primary), (200, Claim::Backup)];
        assert_eq!(acted(&mut docket, &claims), [Claim::Backup]);
        let mut docket = Docket::settled_as(Claim::Backup);
        docket.doubt();
        assert_eq!(acted(&mut docket, &claims), [Claim::Backup]);
        assert_eq!(acted(&mut docket, &claims), [], "once");
    }

    #[test]
    fn without_an_interval_everything_is_acted_on_at_once() {
        let mut docket = Docket::default();
        let verdict = docket.hear(Claim::Primary, at(0), Duration::ZERO);
        assert_eq!(verdict, Verdict::Act(Claim::Primary));
    }

    proptest! {
        /// For any claims at any times: what holds in the end is what was claimed last, nothing is
        /// acted on twice in a row, and what was acted on last is what holds, unless nobody was ever
        /// told of anything.
        #[test]
        fn what_holds_in_the_end_is_what_was_claimed_last(
            steps in proptest::collection::vec((0_u64..3000, 0_usize..4), 1..40),
        ) {
            let words = [Claim::Primary, Claim::Backup, Claim::Fault, Claim::Unknown];
            let mut time = 0;
            let claims: Vec<(u64, Claim)> = steps
                .iter()
                .map(|(wait, word)| {
                    time += wait;
                    (time, words[*word])
                })
                .collect();
            let mut docket = Docket::default();
            let told = acted(&mut docket, &claims);
            prop_assert_eq!(docket.settled(), claims.last().map(|(_, claim)| *claim));
            prop_assert!(told.windows(2).all(|pair| pair[0] != pair[1]));
            if let Some(last) = told.last() {
                prop_assert_eq!(Some(*last), docket.settled());
            }
        }
    }
}
