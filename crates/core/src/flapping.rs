// SPDX-License-Identifier: Apache-2.0
//! Detects instances that flap: they change their role again and again.
//!
//! ```text
//!             MIN_TRANSITIONS within FLAP_SPAN
//!   steady ────────────────────────────────────▶ flapping
//!     ▲                                             │
//!     └───── fewer than that within FLAP_SPAN ──────┘
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::{InstanceId, Moment};

/// The number of transitions within [`FLAP_SPAN`] from which on an instance is flapping.
pub const MIN_TRANSITIONS: usize = 6;

/// The time in which transitions are counted.
pub const FLAP_SPAN: Duration = Duration::from_mins(10);

/// The recent transitions of each instance. An instance without any in the last [`FLAP_SPAN`] has no entry after
/// [`Self::expire`].
#[derive(Debug, Default)]
pub struct FlapDetector {
    instances: BTreeMap<InstanceId, RecentTransitions>,
}

#[derive(Debug, Default)]
struct RecentTransitions {
    /// The times of the last transitions, at most [`MIN_TRANSITIONS`].
    times: VecDeque<Moment>,
    is_flapping: bool,
}

impl FlapDetector {
    /// Counts a transition. Returns true if the instance begins to flap with it.
    pub fn count(&mut self, id: &InstanceId, at: Moment) -> bool {
        // A copy of the id only for a new instance.
        if !self.instances.contains_key(id) {
            self.instances.insert(id.clone(), RecentTransitions::default());
        }
        let Some(recent) = self.instances.get_mut(id) else { return false };
        if recent.times.len() == MIN_TRANSITIONS {
            recent.times.pop_front();
        }
        recent.times.push_back(at);
        let begins = !recent.is_flapping && recent.has_enough(at);
        recent.is_flapping |= begins;
        begins
    }

    /// Forgets old transitions. Returns the instances that have stopped flapping.
    pub fn expire(&mut self, now: Moment) -> Vec<InstanceId> {
        let mut stopped = Vec::new();
        self.instances.retain(|id, recent| {
            recent.times.retain(|at| is_recent(*at, now));
            if recent.is_flapping && !recent.has_enough(now) {
                recent.is_flapping = false;
                stopped.push(id.clone());
            }
            !recent.times.is_empty()
        });
        stopped
    }

    /// Forgets an instance that is no longer configured.
    pub fn forget(&mut self, id: &InstanceId) {
        self.instances.remove(id);
    }
}

impl RecentTransitions {
    fn has_enough(&self, now: Moment) -> bool {
        self.times.iter().filter(|at| is_recent(**at, now)).count() >= MIN_TRANSITIONS
    }
}

fn is_recent(at: Moment, now: Moment) -> bool {
    now.since(at) < FLAP_SPAN
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::new(Duration::from_secs(seconds))
    }

    fn id() -> InstanceId {
        "a".parse().unwrap()
    }

    #[test]
    fn six_transitions_within_ten_minutes_are_flapping_and_are_reported_once() {
        let mut detector = FlapDetector::default();
        let begins: Vec<bool> = (1..=8).map(|n| detector.count(&id(), at(n * 60))).collect();
        assert_eq!(begins, [false, false, false, false, false, true, false, false]);
        assert!(detector.expire(at(700)).is_empty(), "six within the last ten minutes");
        // The third of the last six was at 300 s.
        assert_eq!(detector.expire(at(901)), [id()]);
        assert!(detector.expire(at(902)).is_empty(), "the end is reported once");
    }

    #[test]
    fn slow_transitions_are_not_flapping_and_are_forgotten() {
        let mut detector = FlapDetector::default();
        assert!((1..=20).all(|n| !detector.count(&id(), at(n * 120))));
        assert!(detector.expire(at(20 * 120 + 600)).is_empty());
        assert!(detector.instances.is_empty());
    }

    #[test]
    fn an_instance_can_begin_to_flap_again() {
        let mut detector = FlapDetector::default();
        let count = |detector: &mut FlapDetector, from: u64| {
            (0..6).filter(|n| detector.count(&id(), at(from + n))).count()
        };
        assert_eq!(count(&mut detector, 0), 1);
        assert_eq!(detector.expire(at(700)), [id()]);
        assert_eq!(count(&mut detector, 700), 1);
        detector.forget(&id());
        assert!(detector.expire(at(9000)).is_empty());
    }
}
