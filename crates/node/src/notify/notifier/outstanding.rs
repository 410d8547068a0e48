//! The deliveries to hooks and webhooks that have begun and have not concluded, for each transition.
//!
//! A stage of a transition (all its hooks, or all its webhooks) is complete when the delivery to every target has
//! concluded. The history records it as delivered if none of them was given up. A stage that is not recorded is
//! delivered again after a restart of the node.

use std::collections::BTreeMap;

use vipwatch_core::InstanceId;
use vipwatch_history::Stage;

use crate::notify::keyed_queue::MAX_QUEUED_PER_KEY;

/// The deliveries of one transition to the targets of one stage.
#[derive(Debug)]
struct StageDeliveries {
    seq: i64,
    /// The names of the targets that have not concluded; a name may occur twice.
    targets: Vec<String>,
    /// The names of the targets to which the delivery was given up.
    given_up: Vec<String>,
}

/// The outstanding deliveries of each instance and stage, oldest first.
#[derive(Debug, Default)]
pub(super) struct Outstanding(BTreeMap<(InstanceId, Stage), Vec<StageDeliveries>>);

impl Outstanding {
    /// Records that a delivery to `target` has begun.
    pub(super) fn begin(&mut self, id: &InstanceId, stage: Stage, seq: i64, target: String) {
        let stages = self.0.entry((id.clone(), stage)).or_default();
        match stages.iter_mut().find(|deliveries| deliveries.seq == seq) {
            Some(deliveries) => {
                deliveries.given_up.retain(|name| *name != target);
                deliveries.targets.push(target);
            }
            None => {
                stages.push(StageDeliveries { seq, targets: vec![target], given_up: Vec::new() });
            }
        }
        // No queue holds more notifications of one instance: it has dropped the older ones.
        if stages.len() > MAX_QUEUED_PER_KEY {
            stages.remove(0);
        }
    }

    /// Records that a delivery has concluded, and with it those of older transitions to the same target;
    /// `is_delivered` is false if it was given up. Returns true if it was the last one of its transition, and none was
    /// given up.
    pub(super) fn conclude(
        &mut self,
        id: &InstanceId,
        stage: Stage,
        seq: i64,
        target: &str,
        is_delivered: bool,
    ) -> bool {
        let key = (id.clone(), stage);
        let Some(stages) = self.0.get_mut(&key) else { return false };
        let mut is_complete = false;
        for deliveries in stages.iter_mut().filter(|deliveries| deliveries.seq <= seq) {
            if let Some(at) = deliveries.targets.iter().position(|name| name == target) {
                let name = deliveries.targets.swap_remove(at);
                if deliveries.seq == seq && !is_delivered {
                    deliveries.given_up.push(name);
                }
                let is_last = deliveries.seq == seq && deliveries.targets.is_empty();
                is_complete |= is_last && deliveries.given_up.is_empty();
            }
        }
        stages.retain(|deliveries| !deliveries.targets.is_empty());
        if stages.is_empty() {
            self.0.remove(&key);
        }
        is_complete
    }

    /// Whether a delivery of any transition of the instance to `target` has not concluded yet.
    pub(super) fn is_awaited(&self, id: &InstanceId, stage: Stage, target: &str) -> bool {
        let mut stages = self.0.get(&(id.clone(), stage)).into_iter().flatten();
        stages.any(|deliveries| deliveries.targets.iter().any(|name| name == target))
    }

    /// Whether the delivery of transition `seq` to `target` has not concluded yet.
    pub(super) fn contains(&self, id: &InstanceId, stage: Stage, seq: i64, target: &str) -> bool {
        let mut stages = self.0.get(&(id.clone(), stage)).into_iter().flatten();
        stages.any(|deliveries| {
            deliveries.seq == seq && deliveries.targets.iter().any(|name| name == target)
        })
    }

    /// Removes the deliveries to targets that are not wanted any more; returns true if any was outstanding.
    pub(super) fn forget(
        &mut self,
        id: &InstanceId,
        stage: Stage,
        is_wanted: impl Fn(&str) -> bool,
    ) -> bool {
        let key = (id.clone(), stage);
        let Some(stages) = self.0.get_mut(&key) else { return false };
        let count = |stages: &[StageDeliveries]| {
            stages.iter().map(|deliveries| deliveries.targets.len()).sum()
        };
        let before: usize = count(stages);
        for deliveries in stages.iter_mut() {
            deliveries.targets.retain(|name| is_wanted(name));
            deliveries.given_up.retain(|name| is_wanted(name));
        }
        let is_fewer = count(stages) < before;
        stages.retain(|deliveries| !deliveries.targets.is_empty());
        if stages.is_empty() {
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
    fn a_stage_is_not_delivered_if_one_delivery_of_its_transition_was_given_up() {
        let (id, mut outstanding) = begun(&[(1, "x"), (1, "y"), (2, "y")]);
        assert!(!outstanding.conclude(&id, Stage::Webhook, 1, "x", false));
        assert!(!outstanding.conclude(&id, Stage::Webhook, 1, "y", true));
        assert!(outstanding.conclude(&id, Stage::Webhook, 2, "y", true));
    }

    #[test]
    fn a_delivery_that_was_given_up_may_begin_again_or_its_target_be_removed() {
        let (id, mut outstanding) = begun(&[(1, "x"), (1, "y"), (1, "z")]);
        assert!(!outstanding.conclude(&id, Stage::Webhook, 1, "x", false));
        assert!(!outstanding.conclude(&id, Stage::Webhook, 1, "y", false));
        outstanding.begin(&id, Stage::Webhook, 1, "x".to_owned());
        assert!(
            !outstanding.forget(&id, Stage::Webhook, |name| name != "y"),
            "the delivery had concluded"
        );
        assert!(!outstanding.conclude(&id, Stage::Webhook, 1, "x", true));
        assert!(outstanding.conclude(&id, Stage::Webhook, 1, "z", true));
    }

    #[test]
    fn a_newer_transition_concludes_the_older_ones_of_the_same_target() {
        let (id, mut outstanding) = begun(&[(1, "x"), (1, "y"), (2, "x"), (2, "y")]);
        assert!(!outstanding.conclude(&id, Stage::Webhook, 2, "x", true));
        assert!(outstanding.conclude(&id, Stage::Webhook, 1, "y", true));
        assert!(outstanding.conclude(&id, Stage::Webhook, 2, "y", true));
        assert!(outstanding.0.is_empty());
    }

    #[test]
    fn deliveries_to_a_target_that_is_not_configured_any_more_are_removed() {
        let (id, mut outstanding) = begun(&[(1, "x"), (1, "y")]);
        assert!(outstanding.forget(&id, Stage::Webhook, |name| name == "x"));
        assert!(!outstanding.forget(&id, Stage::Webhook, |name| name == "x"));
        assert!(outstanding.contains(&id, Stage::Webhook, 1, "x"));
        assert!(outstanding.conclude(&id, Stage::Webhook, 1, "x", true));
    }
}
