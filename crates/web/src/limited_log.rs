// SPDX-License-Identifier: Apache-2.0
//! Limits log lines that a client on the network can cause.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Minimum time between two lines.
const INTERVAL: Duration = Duration::from_secs(10);

/// One kind of log line.
#[derive(Debug, Default)]
pub(crate) struct LimitedLog(Mutex<LastLine>);

#[derive(Debug, Default)]
struct LastLine {
    at: Option<Instant>,
    /// Number of lines that were left out since.
    left_out: u64,
}

impl LimitedLog {
    /// Counts a line. If it may be written now, returns how many were left out since the last one.
    pub(crate) fn count(&self, now: Instant) -> Option<u64> {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if last.at.is_some_and(|at| now.saturating_duration_since(at) < INTERVAL) {
            last.left_out += 1;
            return None;
        }
        last.at = Some(now);
        Some(std::mem::take(&mut last.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_in_ten_seconds_has_the_number_of_those_left_out() {
        let log = LimitedLog::default();
        let start = Instant::now();
        assert_eq!(log.count(start), Some(0));
        assert_eq!(log.count(start), None);
        assert_eq!(log.count(start + INTERVAL / 2), None);
        assert_eq!(log.count(start + INTERVAL), Some(2));
        assert_eq!(log.count(start + 2 * INTERVAL), Some(0));
    }
}
