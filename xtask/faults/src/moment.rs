// SPDX-License-Identifier: Apache-2.0
//! Times: microseconds of the wall clock since the Unix epoch. All recordings of a run use the clock of one machine.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Microseconds since the Unix epoch, or a number of microseconds.
pub type Micros = i64;

pub const SECOND: Micros = 1_000_000;

/// The time now.
pub fn now() -> Micros {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

/// Parses `2026-11-17T07:44:15.105Z`; the fraction and the `Z` are optional. The time is in UTC.
pub fn parse(text: &str) -> Option<Micros> {
    let time = format!("{}Z", text.trim_end_matches('Z'));
    Some(time.parse::<jiff::Timestamp>().ok()?.as_microsecond())
}

/// Seconds with two digits, relative to `start`.
pub fn relative(at: Micros, start: Micros) -> String {
    let hundredths = (at - start) / 10_000;
    let sign = if hundredths < 0 { "-" } else { "" };
    format!("{sign}{}.{:02}", hundredths.abs() / 100, hundredths.abs() % 100)
}

/// Waits. The hold of a fault is a time that is tested.
pub fn pause(span: Duration) {
    let timeout = rustix::event::Timespec {
        tv_sec: i64::try_from(span.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(span.subsec_nanos()),
    };
    let _ = rustix::event::poll(&mut [], Some(&timeout));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_the_node_and_of_ip_monitor_are_parsed() {
        assert_eq!(parse("1970-01-02T00:00:01.5Z"), Some(86_401_500_000));
        assert_eq!(parse("2026-11-17T07:44:13.705017"), Some(1_794_901_453_705_017));
        assert_eq!(parse("2026-11-17"), None);
    }

    #[test]
    fn relative_times_have_two_digits() {
        assert_eq!(relative(3_456_000, 1_000_000), "2.45");
        assert_eq!(relative(0, 50_000), "-0.05");
    }
}
