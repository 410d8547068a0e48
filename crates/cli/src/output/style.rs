// SPDX-License-Identifier: Apache-2.0
//! How values are written for people: times with their zone, ages, latencies and counts.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use vipwatch_api::{FindingItem, LatencyMap, Severity};
use vipwatch_history::Stage;

/// The settings for text.
#[derive(Debug, Clone)]
pub(crate) struct Style {
    /// Whether all details are printed (`-o wide`).
    pub(crate) is_wide: bool,
    /// The time from which ages are counted.
    pub(crate) now: Timestamp,
    /// The time zone of the machine.
    pub(crate) zone: TimeZone,
}

impl Style {
    /// The default style, at the current time in the zone of the machine.
    pub(crate) fn new() -> Self {
        Self { is_wide: false, now: Timestamp::now(), zone: TimeZone::system() }
    }

    /// A time with its offset from UTC: `2026-11-16 15:00:00+01:00`.
    pub(crate) fn time(&self, time: Timestamp) -> String {
        time.to_zoned(self.zone.clone()).strftime("%Y-%m-%d %H:%M:%S%:z").to_string()
    }

    /// As [`Self::time`], with milliseconds.
    pub(crate) fn precise_time(&self, time: Timestamp) -> String {
        time.to_zoned(self.zone.clone()).strftime("%Y-%m-%d %H:%M:%S%.3f%:z").to_string()
    }

    /// The time since `time` with one unit: `45s`, `5m`, `3h`, `12d`.
    pub(crate) fn age(&self, time: Timestamp) -> String {
        match self.now.duration_since(time).as_secs().max(0) {
            seconds @ 0..60 => format!("{seconds}s"),
            seconds @ 60..3600 => format!("{}m", seconds / 60),
            seconds @ 3600..86_400 => format!("{}h", seconds / 3600),
            seconds => format!("{}d", seconds / 86_400),
        }
    }
}

/// A number with a noun: `1 finding`, `2 findings`.
pub(crate) fn count(number: usize, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

/// The number of findings of each severity, without zeros: `1 critical, 2 info`.
pub(crate) fn severity_counts(findings: &[FindingItem]) -> String {
    let number = |one| findings.iter().filter(|finding| finding.severity == one).count();
    let numbers = Severity::ALL.map(|one| (number(one), one.word()));
    let texts = numbers.iter().filter(|(number, _)| *number > 0);
    texts.map(|(number, word)| format!("{number} {word}")).collect::<Vec<_>>().join(", ")
}

/// The latencies of the stages, in the order of delivery.
pub(crate) fn latencies(latencies: &LatencyMap) -> String {
    let known = Stage::ALL.iter().filter_map(|stage| {
        Some(format!("{} {}", stage.word(), latency(*latencies.get(stage.word())?)))
    });
    known.collect::<Vec<_>>().join(", ")
}

/// A number of microseconds with a unit.
pub(crate) fn latency(micros: i64) -> String {
    if micros < 1_000_000 {
        format!("{}.{:02} ms", micros / 1000, micros % 1000 / 10)
    } else {
        format!("{}.{} s", micros / 1_000_000, micros % 1_000_000 / 100_000)
    }
}

#[cfg(test)]
impl Style {
    /// A fixed time and zone, so that the output of tests does not change.
    pub(crate) fn of_tests() -> Self {
        Self {
            is_wide: false,
            now: "2026-11-16T15:00:00Z".parse().unwrap(),
            zone: jiff::tz::offset(1).to_time_zone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_its_zone_and_an_age_has_one_unit() {
        let style = Style::of_tests();
        let time: Timestamp = "2026-11-16T13:58:59.5004Z".parse().unwrap();
        assert_eq!(style.time(time), "2026-11-16 14:58:59+01:00");
        assert_eq!(style.precise_time(time), "2026-11-16 14:58:59.500+01:00");
        assert_eq!(style.age(time), "1h");
        for (seconds, age) in
            [(0, "0s"), (59, "59s"), (60, "1m"), (86_399, "23h"), (172_800, "2d"), (-5, "0s")]
        {
            assert_eq!(style.age(style.now - jiff::SignedDuration::from_secs(seconds)), age);
        }
    }

    #[test]
    fn one_finding_is_singular() {
        assert_eq!(
            (count(1, "finding"), count(2, "finding")),
            ("1 finding".into(), "2 findings".into())
        );
    }

    #[test]
    fn latencies_are_in_the_order_of_delivery() {
        let map = LatencyMap::from([("webhook".to_owned(), 1_250_000), ("file".to_owned(), 4_321)]);
        assert_eq!(latencies(&map), "file 4.32 ms, webhook 1.2 s");
    }
}
