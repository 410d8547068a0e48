//! Deliveries that have begun and have not concluded, for each change.
//!
//! A stage of a change (all its hooks, all its webhooks) is complete when every target has concluded. It is
//! recorded as told if none of them was given up. What is not recorded is delivered again by the next node.

use std::collections::BTreeMap;

use vipwatch_core::InstanceId;
use vipwatch_history::Stage;

use crate::notify::keyed_queue::LONGEST;

/// One stage of one change.
#[derive(Debug)]
struct Round {
    seq: i64,
    /// The names of the targets that have not concluded; a name may occur twice.
    targets: Vec<String>,
    /// The names of the targets whose delivery was given up.
    given_up: Vec<String>,
}

/// All of them; for each instance and stage the oldest first.
#[derive(Debug, Default)]
pub(super) struct Outstanding(BTreeMap<(InstanceId, Stage), Vec<Round>>);

impl Outstanding {
    /// A delivery to `target` has begun.
    pub(super) fn begin(&mut self, id: &InstanceId, stage: Stage, seq: i64, target: String) {
        let rounds = self.0.entry((id.clone(), stage)).or_default();
        match rounds.iter_mut().find(|round| round.seq == seq) {
            Some(round) => {
                round.given_up.retain(|name| *name != target);
                round.targets.push(target);
            }
            None => rounds.push(Round { seq, targets: vec![target], given_up: Vec::new() }),
        }
        // No queue holds more; older notifications were dropped from them.
        if rounds.len() > LONGEST {
            rounds.remove(0);
        }
    }

    /// A delivery has concluded, and with it those of older changes to the same target; `is_told` is false if
    /// it was given up. True if it was the last one of its change, and none was given up.
    pub(super) fn conclude(
        &mut self,
        id: &InstanceId,
        stage: Stage,
        seq: i64,
        target: &str,
        is_told: bool,
    ) -> bool {
        let key = (id.clone(), stage);
        let Some(rounds) = self.0.get_mut(&key) else { return false };
        let mut is_complete = false;
        for round in rounds.iter_mut().filter(|round| round.seq <= seq) {
            if let Some(at) = round.targets.iter().position(|name| name == target) {
                let name = round.targets.swap_remove(at);
                if round.seq == seq && !is_told {
                    round.given_up.push(name);
                }
                let is_last = round.seq == seq && round.targets.is_empty();
                is_complete |= is_last && round.given_up.is_empty();
            }
        }
        rounds.retain(|round| !round.targets.is_empty());
        if rounds.is_empty() {
            self.0.remove(&key);
        }
        is_complete
    }

    /// Whether `target` has not concluded every change of the instance yet.
    pub(super) fn is_awaited(&self, id: &InstanceId, stage: Stage, target: &str) -> bool {
        let mut rounds = self.0.get(&(id.clone(), stage)).into_iter().flatten();
        rounds.any(|round| round.targets.iter().any(|name| name == target))
    }

    /// Whether `target` has not concluded change `seq` yet.
    pub(super) fn contains(&self, id: &InstanceId, stage: Stage, seq: i64, target: &str) -> bool {
        let mut rounds = self.0.get(&(id.clone(), stage)).into_iter().flatten();
        rounds.any(|round| round.seq == seq && round.targets.iter().any(|name| name == target))
    }

    /// Forgets the targets of an instance that are not `wanted`; true if there were any.
    pub(super) fn forget(
        &mut self,
        id: &InstanceId,
        stage: Stage,
        is_wanted: impl Fn(&str) -> bool,
    ) -> bool {
        let key = (id.clone(), stage);
        let Some(rounds) = self.0.get_mut(&key) else { return false };
        let count = |rounds: &[Round]| rounds.iter().map(|round| round.targets.len()).sum();
        let before: usize = count(rounds);
        for round in rounds.iter_mut() {
            round.targets.retain(|name| is_wanted(name));
            round.given_up.retain(|name| is_wanted(name));
        }
        let is_fewer = count(rounds) < before;
        rounds.retain(|round| !round.targets.is_empty());
        if rounds.is_empty() {
            self.0.remove(&key);
        }
        is_fewer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begun(deliveries: &[(i64, &str)]) -> (InstanceId, Outstanding) {
        let id: InstanceId = "a".parse().unwrap();
        let mut outstanding = Outstanding::default();
        for (seq, target) in deliveries {
            outstanding.begin(&id, Stage::Webhook, *seq, (*target).to_owned());
        }
        (id, outstanding)
    }

    #[test]
    fn a_stage_is_complete_when_every_target_has_concluded() {
        let (id, mut outstanding) = begun(&[(1, "x"), (1, "y"), (1, "y")]);
        let mut conclude = |target| outstanding.conclude(&id, Stage::Webhook, 1, target, true);
        assert_eq!(["x", "y", "y", "y"].map(&mut conclude), [false, false, true, false]);
        assert!(outstanding.0.is_empty());
    }

    #[test]
    fn a_stage_is_not_told_if_a_delivery_of_its_change_was_given_up() {
        let (id, mut outstanding) = begun(&[(1, "x"), (1, "y"), (2, "y")]);
        assert!(!outstanding.conclude(&id, Stage::Webhook, 1, "x", false));
        assert!(!outstanding.conclude(&id, Stage::Webhook, 1, "y", true));
        assert!(outstanding.conclude(&id, Stage::Webhook, 2, "y", true));
    }

    #[test]
    fn a_target_that_was_given_up_may_begin_again_or_be_removed() {
        let (id, mut outstanding) = begun(&[(1, "x"), (1, "y"), (1, "z")]);
        assert!(!outstanding.conclude(&id, Stage::Webhook, 1, "x", false));
        assert!(!outstanding.conclude(&id, Stage::Webhook, 1, "y", false));
        outstanding.begin(&id, Stage::Webhook, 1, "x".to_owned());
        assert!(!outstanding.forget(&id, Stage::Webhook, |name| name != "y"), "it had concluded");
        assert!(!outstanding.conclude(&id, Stage::Webhook, 1, "x", true));
        assert!(outstanding.conclude(&id, Stage::Webhook, 1, "z", true));
    }

    #[test]
    fn a_newer_change_concludes_the_older_ones_of_the_same_target() {
        let (id, mut outstanding) = begun(&[(1, "x"), (1, "y"), (2, "x"), (2, "y")]);
        assert!(!outstanding.conclude(&id, Stage::Webhook, 2, "x", true));
        assert!(outstanding.conclude(&id, Stage::Webhook, 1, "y", true));
        assert!(outstanding.conclude(&id, Stage::Webhook, 2, "y", true));
        assert!(outstanding.0.is_empty());
    }

    #[test]
    fn a_target_that_is_not_configured_any_more_is_forgotten() {
        let (id, mut outstanding) = begun(&[(1, "x"), (1, "y")]);
        assert!(outstanding.forget(&id, Stage::Webhook, |name| name == "x"));
        assert!(!outstanding.forget(&id, Stage::Webhook, |name| name == "x"));
        assert!(outstanding.contains(&id, Stage::Webhook, 1, "x"));
        assert!(outstanding.conclude(&id, Stage::Webhook, 1, "x", true));
    }
}
