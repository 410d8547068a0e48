// SPDX-License-Identifier: Apache-2.0
//! When to announce an address to its network, and whether it may be announced.
//!
//! An announcement is a gratuitous ARP or an unsolicited neighbour advertisement. One address is
//! announced in rounds:
//!
//! ```text
//!   start        gap      gap              second burst   gap      gap          refresh
//!     ▼           ▼        ▼                    ▼          ▼        ▼              ▼
//!     1 ───────── 2 ────── 3 ────── … ───────── 1 ──────── 2 ────── 3 ─── … ────── 1 ── …
//! ```
//!
//! The gap is longer than one second because Linux before 4.12 ignores a second announcement for an
//! address within its ARP lock time (`locktime`, one second). The first announcement may be lost, so a
//! second one that comes too early would be useless.
//!
//! [`announce_source`] checks whether the kernel holds an address and may announce it. [`Schedule`]
//! decides when. The frames are built and sent by the crates `linux` and `outlets`.

mod doubts;
mod schedule;
mod source;

use std::time::Duration;

pub use doubts::{DuplicateHolder, EndedDoubt, HolderDoubts};
pub use schedule::{AnnounceRound, DueAnnouncement, Schedule};
pub use source::{AnnounceRefusal, AnnounceSource, announce_source};

use crate::RateLimit;

/// The number, the times and the rate of announcements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnnouncePlan {
    /// Number of rounds in a burst. The first round starts at once; 0 counts as 1.
    pub count: u16,
    /// Time between two rounds of a burst.
    pub gap: Duration,
    /// Time between the first and the second burst; `None` for no second burst.
    pub second_burst: Option<Duration>,
    /// Interval of single rounds after the bursts, while this node is primary; `None` for no refresh.
    pub refresh: Option<Duration>,
    /// The limit for announcements of all addresses together.
    pub rate: RateLimit,
    /// How long to listen for other hosts with the address after the first burst; `None` for no check.
    pub check: Option<Duration>,
}

impl AnnouncePlan {
    /// The default after this node became primary: a gap above the ARP lock time, and a second burst for
    /// ports that are connected late.
    pub const PRIMARY: Self = Self {
        count: 3,
        gap: Duration::from_millis(1100),
        second_burst: Some(Duration::from_secs(10)),
        refresh: None,
        rate: RateLimit::DEFAULT,
        check: None,
    };

    /// The plan of Neutron's monitor in releases 10 to 17: three rounds, two seconds apart.
    pub const LEGACY: Self =
        Self { gap: Duration::from_secs(2), second_burst: None, ..Self::PRIMARY };

    /// The wait after round number `round` (1 is the first); `None` after the last round.
    fn wait_after(&self, round: u16, is_refreshing: bool) -> Option<Duration> {
        let count = self.count.max(1);
        match self.second_burst {
            _ if round < count => Some(self.gap),
            Some(pause) if round == count => Some(pause),
            Some(_) if round < count.saturating_mul(2) => Some(self.gap),
            Some(_) | None => self.refresh.filter(|_| is_refreshing),
        }
    }

    /// Whether `round` (1 is the first) is the last of the first burst.
    pub fn ends_first_burst(&self, round: u16) -> bool {
        round == self.count.max(1)
    }
}
