//! When to announce an address to its network, and whether we may.
//!
//! ```text
//!   start        gap      gap              second burst   gap      gap          refresh
//!     ▼           ▼        ▼                    ▼          ▼        ▼              ▼
//!     1 ───────── 2 ────── 3 ────── … ───────── 1 ──────── 2 ────── 3 ─── … ────── 1 ── …
//! ```
//!
//! The gap is above one second because Linux, before 4.12, takes no second announcement for
//! an address within its ARP lock time, and the first one may have been lost: two that come
//! too close are as good as one.
//!
//! [`crate::Snapshot::announce_source`] decides whether the kernel holds the address and may announce it.
//! [`Schedule`] holds the times.

mod schedule;

use std::time::Duration;

pub use schedule::{AnnounceRound, DueAnnouncement, Schedule};

use crate::RateLimit;

/// How often, how far apart, and how many at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnnouncePlan {
    /// Rounds of a burst; the first one comes at once.
    pub count: u16,
    /// Between two rounds of a burst.
    pub gap: Duration,
    /// How long after the first burst the second one comes; `None` for no second burst.
    pub second_burst: Option<Duration>,
    /// How often to repeat one round for as long as the address is ours; `None` for never.
    pub refresh: Option<Duration>,
    /// Announcements of all addresses together.
    pub rate: RateLimit,
    /// How long to listen for other holders after the first burst; `None` for no check.
    pub check: Option<Duration>,
}

impl AnnouncePlan {
    /// On becoming primary: above the lock time, and once more for a port that was wired late.
    pub const PRIMARY: Self = Self {
        count: 3,
        gap: Duration::from_millis(1100),
        second_burst: Some(Duration::from_secs(10)),
        refresh: None,
        rate: RateLimit::DEFAULT,
        check: None,
    };

    /// As Neutron's monitor did in releases 10 to 17.
    pub const LEGACY: Self =
        Self { gap: Duration::from_secs(2), second_burst: None, ..Self::PRIMARY };

    /// How long after its `round`-th round an address is due again; `None` if that was all.
    fn wait_after(&self, round: u16, is_refreshing: bool) -> Option<Duration> {
        let count = self.count.max(1);
        match self.second_burst {
            _ if round < count => Some(self.gap),
            Some(pause) if round == count => Some(pause),
            Some(_) if round < count.saturating_mul(2) => Some(self.gap),
            Some(_) | None => self.refresh.filter(|_| is_refreshing),
        }
    }

    /// Whether the first burst ends with this round.
    pub fn ends_first_burst(&self, round: u16) -> bool {
        round == self.count.max(1)
    }
}
