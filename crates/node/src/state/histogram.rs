// SPDX-License-Identifier: Apache-2.0
//! Histograms of durations: fixed buckets of atomic counters, so that an observation never waits.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use vipwatch_history::{Latencies, Stage};

/// The upper bounds of the buckets, in seconds. A last bucket without a bound follows.
pub const BUCKET_SECONDS: [f64; 18] = [
    0.0001, 0.000_25, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0, 30.0, 60.0,
];

/// The same bounds in microseconds.
const BUCKET_MICROS: [u64; 18] = [
    100, 250, 500, 1000, 2500, 5000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    2_500_000, 5_000_000, 10_000_000, 30_000_000, 60_000_000,
];

/// A histogram of durations.
#[derive(Debug, Default)]
pub struct DurationHistogram {
    /// The number of durations in each bucket alone; the last one has no upper bound.
    buckets: [AtomicU64; BUCKET_MICROS.len() + 1],
    /// The sum of all durations, in microseconds.
    micros: AtomicU64,
}

/// The content of a histogram at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct HistogramValue {
    /// The upper bound of each bucket in seconds, and the number of durations in this bucket alone.
    pub buckets: Vec<(f64, u64)>,
    /// The number of all durations.
    pub count: u64,
    /// The sum of all durations, in seconds.
    pub sum: f64,
}

impl DurationHistogram {
    /// Counts a duration.
    pub fn observe(&self, duration: Duration) {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let bucket = BUCKET_MICROS.partition_point(|bound| *bound < micros);
        self.micros.fetch_add(micros, Ordering::Relaxed);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
    }

    /// The content at this moment.
    pub fn value(&self) -> HistogramValue {
        let bounds = BUCKET_SECONDS.into_iter().chain([f64::INFINITY]);
        let counts = self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed));
        let buckets: Vec<(f64, u64)> = bounds.zip(counts).collect();
        HistogramValue {
            count: buckets.iter().map(|(_, count)| count).sum(),
            sum: Duration::from_micros(self.micros.load(Ordering::Relaxed)).as_secs_f64(),
            buckets,
        }
    }
}

/// The latencies of all deliveries, by stage: from the kernel's event to the end of the delivery.
#[derive(Debug, Default)]
pub struct StageHistograms([DurationHistogram; Stage::ALL.len()]);

impl StageHistograms {
    /// Counts the latency of one delivery, in microseconds.
    pub fn observe(&self, stage: Stage, micros: i64) {
        let micros = u64::try_from(micros).unwrap_or(0);
        self.of(stage).observe(Duration::from_micros(micros));
    }

    /// Counts the latencies of all stages that have delivered.
    pub fn observe_all(&self, latencies: &Latencies) {
        for stage in Stage::ALL {
            if let Some(micros) = latencies.of(stage) {
                self.observe(stage, micros);
            }
        }
    }

    /// The histogram of one stage.
    pub fn of(&self, stage: Stage) -> &DurationHistogram {
        &self.0[stage as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_counted_in_the_first_bucket_that_holds_it() {
        let histogram = DurationHistogram::default();
        for micros in [0, 100, 101, 60_000_000, 60_000_001] {
            histogram.observe(Duration::from_micros(micros));
        }
        let value = histogram.value();
        let filled: Vec<(f64, u64)> =
            value.buckets.iter().copied().filter(|(_, count)| *count > 0).collect();
        assert_eq!(filled, [(0.0001, 2), (0.000_25, 1), (60.0, 1), (f64::INFINITY, 1)]);
        assert_eq!(value.count, 5);
        assert!((value.sum - 120.000_202).abs() < 1e-9, "{}", value.sum);
    }

    #[test]
    fn both_lists_of_bounds_are_the_same() {
        for (seconds, micros) in BUCKET_SECONDS.into_iter().zip(BUCKET_MICROS) {
            assert_eq!(Duration::from_secs_f64(seconds), Duration::from_micros(micros));
        }
    }

    #[test]
    fn each_stage_has_a_histogram_of_its_own() {
        let stages = StageHistograms::default();
        stages.observe(Stage::Hook, 1500);
        stages.observe(Stage::Hook, -1);
        assert_eq!(stages.of(Stage::Hook).value().count, 2);
        assert_eq!(stages.of(Stage::File).value().count, 0);
    }
}
