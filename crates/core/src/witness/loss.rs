// SPDX-License-Identifier: Apache-2.0
//! Missing adverts of one source within the last minute.
//!
//! Two periods are counted, the current one and the one before it, so that a record needs few bytes: a node has
//! thousands of records.

use std::time::Duration;

use super::SourceRecord;
use crate::Moment;

/// The length of one period.
const PERIOD: Duration = Duration::from_secs(30);

/// The longest time that [`SourceRecord::recent_loss`] covers.
pub const LOSS_SPAN: Duration = Duration::from_mins(1);

/// From this number of missing adverts on, they are a disturbance: a restart or a short pause of the sender loses fewer.
const MIN_LOST: u32 = 3;

/// From this share of missing adverts on, they are a disturbance: one of this many.
const MAX_SHARE: u32 = 10;

/// Jitter is a disturbance above an interval divided by this number. An advert that is late by half an interval or more
/// counts as missing, so that greater values cannot occur.
const JITTER_SHARE: u32 = 4;

/// Jitter below this time is no disturbance, however short the interval is: any host may be late by so much.
const MIN_JITTER: Duration = Duration::from_millis(100);

/// The number of received and of missing adverts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LossCounts {
    /// Received adverts.
    pub received: u16,
    /// Missing adverts.
    pub lost: u16,
}

impl LossCounts {
    fn add(&mut self, lost: u64) {
        self.received = self.received.saturating_add(1);
        self.lost = self.lost.saturating_add(u16::try_from(lost).unwrap_or(u16::MAX));
    }

    /// The number of adverts that the source should have sent.
    pub fn expected(self) -> u32 {
        u32::from(self.received) + u32::from(self.lost)
    }

    fn is_disturbed(self) -> bool {
        let lost = u32::from(self.lost);
        lost >= MIN_LOST && lost * MAX_SHARE >= self.expected()
    }
}

/// The counters of the last two periods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct LossWindow {
    /// The number of the current period.
    period: u32,
    current: LossCounts,
    previous: LossCounts,
}

impl LossWindow {
    /// Counts an advert, and the missing ones before it.
    pub(super) fn add(&mut self, at: Moment, lost: u64) {
        *self = self.at(at);
        self.current.add(lost);
    }

    /// The counters as they are at this time, when a period may have ended.
    fn at(self, now: Moment) -> Self {
        let period = period(now);
        match period.saturating_sub(self.period) {
            0 => self,
            1 => Self { period, current: LossCounts::default(), previous: self.current },
            _ => Self { period, ..Self::default() },
        }
    }

    fn counts(self, now: Moment) -> LossCounts {
        let Self { current, previous, .. } = self.at(now);
        LossCounts {
            received: current.received.saturating_add(previous.received),
            lost: current.lost.saturating_add(previous.lost),
        }
    }
}

fn period(at: Moment) -> u32 {
    let seconds = at.since(Moment::new(Duration::ZERO)).as_secs();
    u32::try_from(seconds / PERIOD.as_secs()).unwrap_or(u32::MAX)
}

impl SourceRecord {
    /// The adverts of the last 30 to 60 s if too many are missing: three or more, and a tenth or more. Else `None`.
    pub fn recent_loss(&self, now: Moment) -> Option<LossCounts> {
        Some(self.window.counts(now)).filter(|counts| counts.is_disturbed())
    }

    /// The jitter if it is too great: above a quarter of the interval, and above 100 ms. Else `None`.
    pub fn high_jitter(&self) -> Option<Duration> {
        Some(self.jitter).filter(|jitter| *jitter > (self.interval / JITTER_SHARE).max(MIN_JITTER))
    }

    /// Whether too many adverts are missing, or their jitter is too great.
    pub fn is_disturbed(&self, now: Moment) -> bool {
        self.recent_loss(now).is_some() || self.high_jitter().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::new(Duration::from_secs(seconds))
    }

    /// Adverts every second in this time; `lost` are missing before each one of the last `lossy` of them.
    fn window(seconds: std::ops::Range<u64>, lossy: u64, lost: u64) -> LossWindow {
        let mut window = LossWindow::default();
        for second in seconds.clone() {
            let is_lossy = second + lossy >= seconds.end;
            window.add(at(second), if is_lossy { lost } else { 0 });
        }
        window
    }

    #[test]
    fn three_missing_adverts_and_a_tenth_are_a_disturbance() {
        let is_disturbed = |window: LossWindow, now| window.counts(at(now)).is_disturbed();
        assert!(!is_disturbed(window(900..910, 2, 1), 910), "two are missing");
        assert!(is_disturbed(window(900..910, 3, 1), 910));
        assert!(!is_disturbed(window(900..930, 3, 1), 930), "3 of 33 are less than a tenth");
        assert!(is_disturbed(window(900..927, 3, 1), 927), "3 of 30");
    }

    #[test]
    fn a_loss_is_forgotten_after_one_minute_at_most() {
        let window = window(900..930, 4, 1);
        assert_eq!(window.counts(at(930)), LossCounts { received: 30, lost: 4 });
        assert_eq!(window.counts(at(959)).lost, 4);
        assert_eq!(window.counts(at(960)), LossCounts::default());
        let mut later = window;
        later.add(at(990), 0);
        assert_eq!(later.counts(at(990)), LossCounts { received: 1, lost: 0 });
    }

    #[test]
    fn the_window_is_small_and_does_not_overflow() {
        assert!(size_of::<LossWindow>() <= 12);
        let mut window = LossWindow::default();
        window.add(at(u64::MAX), u64::MAX);
        window.add(at(0), u64::MAX);
        assert_eq!(window.counts(at(u64::MAX)).lost, u16::MAX);
    }
}
