//! What is to be told to one who is told of many at once: the first at once, and then, at most once in an
//! interval, all that has come since.
//!
//! ```text
//!   put ─▶ waiting ──take──▶ on its way ──delivered──▶ gone; the next not before the interval is over
//!             ▲                   │ failed
//!             └── not overtaken ──┘ the next not before a pause
//! ```
//!
//! Of each key the last value wins, wherever the ones before it are. Nothing that was put is stranded:
//! [`Batch::due`] names a time for as long as something waits.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::Moment;

/// Values by key, with the order in which they came.
type Pile<K, V> = BTreeMap<K, (u64, V)>;

/// What waits, and what is on its way.
#[derive(Debug, Clone)]
pub struct Batch<K, V> {
    waiting: Pile<K, V>,
    on_its_way: Option<Pile<K, V>>,
    count: u64,
    not_before: Moment,
}

impl<K: Ord + Clone, V: Clone> Batch<K, V> {
    /// Nothing.
    pub fn new() -> Self {
        let (waiting, on_its_way) = (BTreeMap::new(), None);
        Self { waiting, on_its_way, count: 0, not_before: Moment::new(Duration::ZERO) }
    }

    /// Something to be told; what waits for `key` is overtaken.
    pub fn put(&mut self, key: K, value: V) {
        self.count += 1;
        self.waiting.insert(key, (self.count, value));
    }

    /// What is to be told now, in the order in which it came; it is on its way then.
    pub fn take(&mut self, now: Moment) -> Option<Vec<(K, V)>> {
        self.due().filter(|due| *due <= now)?;
        let pile = std::mem::take(&mut self.waiting);
        let mut taken: Vec<(u64, K, V)> =
            pile.iter().map(|(key, (order, value))| (*order, key.clone(), value.clone())).collect();
        taken.sort_by_key(|(order, ..)| *order);
        self.on_its_way = Some(pile);
        Some(taken.into_iter().map(|(_, key, value)| (key, value)).collect())
    }

    /// What was on its way has arrived.
    pub fn delivered(&mut self, now: Moment, interval: Duration) {
        self.on_its_way = None;
        self.not_before = now + interval;
    }

    /// The value of `key` that was on its way has arrived, or is given up: [`Self::failed`] leaves it out.
    pub fn concluded(&mut self, key: &K) {
        if let Some(pile) = &mut self.on_its_way {
            pile.remove(key);
        }
    }

    /// What was on its way has not arrived. It waits again, unless it was overtaken.
    pub fn failed(&mut self, now: Moment, pause: Duration) {
        for (key, entry) in self.on_its_way.take().into_iter().flatten() {
            self.waiting.entry(key).or_insert(entry);
        }
        self.not_before = now + pause;
    }

    /// When [`Self::take`] has something to give; `None` if nothing waits, or something is on its way.
    pub fn due(&self) -> Option<Moment> {
        (!self.waiting.is_empty() && self.on_its_way.is_none()).then_some(self.not_before)
    }

    /// How many keys have something that has not arrived.
    pub fn pending(&self) -> usize {
        let is_alone = |key: &&K| !self.waiting.contains_key(key);
        let on_its_way = self.on_its_way.iter().flat_map(BTreeMap::keys).filter(is_alone).count();
        self.waiting.len() + on_its_way
    }
}

impl<K: Ord + Clone, V: Clone> Default for Batch<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const INTERVAL: Duration = Duration::from_secs(2);

    fn at(millis: u64) -> Moment {
        Moment::new(Duration::from_millis(millis))
    }

    // Upstream's own cases, by their names: test_batch_notifier.py of Neutron.

    #[test]
    fn test_queue_event_no_event() {
        let mut batch: Batch<u32, &str> = Batch::new();
        assert_eq!((batch.take(at(9999)), batch.due(), batch.pending()), (None, None, 0));
    }

    #[test]
    fn test_queue_event_first_event() {
        let mut batch = Batch::new();
        batch.put(1, "active");
        assert_eq!(batch.take(at(0)), Some(vec![(1, "active")]), "at once");
        batch.put(2, "active");
        assert_eq!(batch.take(at(0)), None, "one sender");
    }

    #[test]
    fn test_queue_event_multiple_events() {
        let mut batch = Batch::new();
        let events: Vec<(u32, u32)> = (0..20).map(|number| (97 - number, number)).collect();
        let mut told = Vec::new();
        let mut time = 0;
        for (key, value) in &events {
            batch.put(*key, *value);
            if let Some(taken) = batch.take(at(time)) {
                told.extend(taken);
                batch.delivered(at(time), INTERVAL);
            }
            time += 300;
        }
        told.extend(batch.take(at(time + 2000)).unwrap());
        assert_eq!(told, events, "in the order in which they came");
    }

    #[test]
    fn the_first_goes_at_once_and_the_others_once_in_an_interval() {
        let mut batch = Batch::new();
        batch.put(1, "active");
        assert!(batch.take(at(0)).is_some());
        batch.delivered(at(10), INTERVAL);
        batch.put(1, "standby");
        batch.put(2, "active");
        batch.put(1, "active");
        assert_eq!((batch.due(), batch.take(at(2009))), (Some(at(2010)), None));
        assert_eq!(batch.take(at(2010)), Some(vec![(2, "active"), (1, "active")]));
        batch.delivered(at(2010), INTERVAL);
        batch.put(3, "active");
        assert!(batch.take(at(9000)).is_some(), "after a long silence, at once");
    }

    #[test]
    fn d44_what_did_not_arrive_is_told_again_unless_it_was_overtaken() {
        let mut batch = Batch::new();
        batch.put(1, "active");
        batch.put(2, "active");
        assert!(batch.take(at(0)).is_some());
        batch.put(2, "standby");
        assert_eq!(batch.pending(), 2);
        batch.failed(at(0), Duration::from_millis(250));
        assert_eq!(batch.take(at(250)), Some(vec![(1, "active"), (2, "standby")]));
    }

    #[test]
    fn a_value_that_was_concluded_is_not_told_again() {
        let mut batch = Batch::new();
        batch.put(1, "active");
        batch.put(2, "active");
        assert!(batch.take(at(0)).is_some());
        batch.concluded(&1);
        assert_eq!(batch.pending(), 1);
        batch.failed(at(0), Duration::from_millis(250));
        assert_eq!(batch.take(at(250)), Some(vec![(2, "active")]));
    }

    proptest! {
        /// Whatever comes, in whatever order, and however often it does not arrive: what arrived last
        /// for each key is what was put last, and nothing is stranded.
        #[test]
        fn everybody_hears_the_last_value_of_every_key(
            steps in proptest::collection::vec((0_u8..4, 0_u8..8, 0_u64..5000), 1..100),
        ) {
            let mut batch = Batch::new();
            let (mut wanted, mut known) = (BTreeMap::new(), BTreeMap::new());
            let mut on_its_way: Option<Vec<(u8, u64)>> = None;
            let mut time = 0;
            for (number, (step, key, wait)) in steps.iter().enumerate() {
                time += wait;
                match (step, on_its_way.take()) {
                    (0 | 1, way) => {
                        on_its_way = way;
                        wanted.insert(*key, number as u64);
                        batch.put(*key, number as u64);
                    }
                    (2, Some(arrived)) => {
                        known.extend(arrived);
                        batch.delivered(at(time), INTERVAL);
                    }
                    (_, Some(_)) => batch.failed(at(time), INTERVAL),
                    (_, None) => {}
                }
                on_its_way = on_its_way.or_else(|| batch.take(at(time)));
            }
            if let Some(arrived) = on_its_way {
                known.extend(arrived);
                batch.delivered(at(time), INTERVAL);
            }
            if let Some(due) = batch.due() {
                known.extend(batch.take(due).unwrap());
                batch.delivered(due, INTERVAL);
            }
            prop_assert_eq!(known, wanted);
            prop_assert_eq!(batch.pending(), 0);
        }
    }
}
