//! Collects values for a consumer that takes many at once: the first value is sent without delay, later
//! ones together, at most once per interval.
//!
//! ```text
//!   put ─▶ waiting ──take──▶ in flight ──delivered──▶ removed; next batch after the interval
//!             ▲                   │ failed
//!             └── not replaced ───┘ next batch after a pause
//! ```
//!
//! For each key the latest value replaces the older ones, waiting or in flight. No value is forgotten:
//! [`Batch::due`] returns a time as long as a value waits and no batch is in flight.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::Moment;

/// Values by key, each with its sequence number.
type Entries<K, V> = BTreeMap<K, (u64, V)>;

/// The waiting values, and the batch in flight.
#[derive(Debug, Clone)]
pub struct Batch<K, V> {
    waiting: Entries<K, V>,
    in_flight: Option<Entries<K, V>>,
    /// The sequence number of the last value that was put.
    last_sequence: u64,
    /// The earliest time of the next batch.
    not_before: Moment,
}

impl<K: Ord + Clone, V: Clone> Batch<K, V> {
    /// A batch without values.
    pub fn new() -> Self {
        Self {
            waiting: BTreeMap::new(),
            in_flight: None,
            last_sequence: 0,
            not_before: Moment::new(Duration::ZERO),
        }
    }

    /// Adds a value; it replaces the waiting value of `key`.
    pub fn put(&mut self, key: K, value: V) {
        self.last_sequence += 1;
        self.waiting.insert(key, (self.last_sequence, value));
    }

    /// Takes all waiting values, in the order in which they were put, if a batch is due. They are in flight
    /// until [`Self::delivered`] or [`Self::failed`].
    pub fn take(&mut self, now: Moment) -> Option<Vec<(K, V)>> {
        self.due().filter(|due| *due <= now)?;
        let entries = std::mem::take(&mut self.waiting);
        let mut taken: Vec<(&K, &(u64, V))> = entries.iter().collect();
        taken.sort_by_key(|(_, (sequence, _))| *sequence);
        let values =
            taken.into_iter().map(|(key, (_, value))| (key.clone(), value.clone())).collect();
        self.in_flight = Some(entries);
        Some(values)
    }

    /// Records that the batch in flight arrived. The next one is due after `interval`.
    pub fn delivered(&mut self, now: Moment, interval: Duration) {
        self.in_flight = None;
        self.not_before = now + interval;
    }

    /// Removes the value of `key` from the batch in flight: it arrived or is given up, and
    /// [`Self::failed`] does not put it back.
    pub fn concluded(&mut self, key: &K) {
        if let Some(entries) = &mut self.in_flight {
            entries.remove(key);
        }
    }

    /// Records that the batch in flight did not arrive. Its values wait again, unless a newer value of the
    /// same key waits. The next batch is due after `pause`.
    pub fn failed(&mut self, now: Moment, pause: Duration) {
        for (key, entry) in self.in_flight.take().into_iter().flatten() {
            self.waiting.entry(key).or_insert(entry);
        }
        self.not_before = now + pause;
    }

    /// When to call [`Self::take`]; `None` if no value waits, or a batch is in flight.
    pub fn due(&self) -> Option<Moment> {
        (!self.waiting.is_empty() && self.in_flight.is_none()).then_some(self.not_before)
    }

    /// The number of keys with a value that waits or is in flight.
    pub fn pending(&self) -> usize {
        let is_not_waiting = |key: &&K| !self.waiting.contains_key(key);
        let in_flight =
            self.in_flight.iter().flat_map(BTreeMap::keys).filter(is_not_waiting).count();
        self.waiting.len() + in_flight
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

    // The cases of Neutron's test_batch_notifier.py, under their names there.

    #[test]
    fn test_queue_event_no_event() {
        let mut batch: Batch<u32, &str> = Batch::new();
        assert_eq!((batch.take(at(9999)), batch.due(), batch.pending()), (None, None, 0));
    }

    #[test]
    fn test_queue_event_first_event() {
        let mut batch = Batch::new();
        batch.put(1, "active");
        assert_eq!(batch.take(at(0)), Some(vec![(1, "active")]), "without delay");
        batch.put(2, "active");
        assert_eq!(batch.take(at(0)), None, "one batch at a time");
    }

    #[test]
    fn test_queue_event_multiple_events() {
        let mut batch = Batch::new();
        let events: Vec<(u32, u32)> = (0..20).map(|number| (97 - number, number)).collect();
        let mut sent = Vec::new();
        let mut time = 0;
        for (key, value) in &events {
            batch.put(*key, *value);
            if let Some(taken) = batch.take(at(time)) {
                sent.extend(taken);
                batch.delivered(at(time), INTERVAL);
            }
            time += 300;
        }
        sent.extend(batch.take(at(time + 2000)).unwrap());
        assert_eq!(sent, events, "in the order in which they were put");
    }

    #[test]
    fn the_first_value_is_sent_at_once_and_later_ones_once_per_interval() {
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
        assert!(batch.take(at(9000)).is_some(), "without delay after a pause");
    }

    #[test]
    fn d44_a_failed_value_is_sent_again_unless_a_newer_one_waits() {
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
    fn a_concluded_value_is_not_sent_again() {
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
        /// For any order of values and failures, the last value that arrived for each key is the last one that
        /// was put, and no value is left over.
        #[test]
        fn the_last_value_of_every_key_arrives(
            steps in proptest::collection::vec((0_u8..4, 0_u8..8, 0_u64..5000), 1..100),
        ) {
            let mut batch = Batch::new();
            let mut wanted = BTreeMap::new();
            let mut arrived = BTreeMap::new();
            let mut in_flight: Option<Vec<(u8, u64)>> = None;
            let mut time = 0;
            for (number, (step, key, wait)) in steps.iter().enumerate() {
                time += wait;
                match (step, in_flight.take()) {
                    (0 | 1, batch_in_flight) => {
                        in_flight = batch_in_flight;
                        wanted.insert(*key, number as u64);
                        batch.put(*key, number as u64);
                    }
                    (2, Some(values)) => {
                        arrived.extend(values);
                        batch.delivered(at(time), INTERVAL);
                    }
                    (_, Some(_)) => batch.failed(at(time), INTERVAL),
                    (_, None) => {}
                }
                in_flight = in_flight.or_else(|| batch.take(at(time)));
            }
            if let Some(values) = in_flight {
                arrived.extend(values);
                batch.delivered(at(time), INTERVAL);
            }
            if let Some(due) = batch.due() {
                arrived.extend(batch.take(due).unwrap());
                batch.delivered(due, INTERVAL);
            }
            prop_assert_eq!(arrived, wanted);
            prop_assert_eq!(batch.pending(), 0);
        }
    }
}
