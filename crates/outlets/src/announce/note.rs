//! What an announcer has to tell, and what it counts.

use std::io;

use vipwatch_core::announce::AnnounceRefusal;
use vipwatch_core::announce::AnnounceRound;
use vipwatch_core::snapshot::Mac;
use vipwatch_core::{LinkAddress, LinkName};
use vipwatch_linux::monitor::WatchError;

/// Something worth telling about an announcement.
#[derive(Debug)]
pub enum AnnounceNote {
    /// A round has gone out.
    Sent {
        /// The address.
        target: LinkAddress,
        /// Its link.
        link: LinkName,
        /// Who it is said to be at.
        mac: Mac,
        /// Which round, and whether it is the first that went out.
        round: AnnounceRound,
    },
    /// It is not announced, or not yet; said once per reason.
    Refused {
        /// The address.
        target: LinkAddress,
        /// Its link, if there is one.
        link: Option<LinkName>,
        /// Why.
        reason: AnnounceRefusal,
    },
    /// The kernel did not take it; tried again, and said once per kind of failure.
    Failed {
        /// The address.
        target: LinkAddress,
        /// Its link.
        link: LinkName,
        /// What the kernel said.
        error: io::Error,
    },
    /// Another station says that it has the address too.
    Duplicate {
        /// The address.
        target: LinkAddress,
        /// Its link.
        link: LinkName,
        /// The other station.
        mac: Mac,
    },
    /// The kernel could not be asked; tried again.
    Blind(WatchError),
    /// Nobody can be asked whether they hold an address too.
    Deaf(io::Error),
    /// Nothing is left to be announced; what was done since the last time.
    Ended(AnnounceCounts),
}

/// What was done, in numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AnnounceCounts {
    /// Rounds of all addresses that went out whole.
    pub announcements: u64,
    /// Frames of those.
    pub frames: u64,
    /// Rounds that the kernel did not take.
    pub failed: u64,
    /// Stations found that hold an address of ours.
    pub duplicates: u64,
    /// Answers of further stations, beyond those that a check lists.
    pub unlisted_answers: u64,
    pub(super) refused: [u64; AnnounceRefusal::ALL.len()],
}

impl AnnounceCounts {
    /// How many were refused for `reason`.
    pub fn refused(&self, reason: AnnounceRefusal) -> u64 {
        self.refused[reason as usize]
    }

    /// Why anything was refused that might have been expected, and how often.
    pub fn refusals(&self) -> impl Iterator<Item = (AnnounceRefusal, u64)> {
        AnnounceRefusal::ALL
            .into_iter()
            .filter(|reason| !is_expected(*reason))
            .map(|reason| (reason, self.refused(reason)))
            .filter(|(_, count)| *count > 0)
    }

    /// Whether there is anything to tell.
    pub(super) fn is_worth_telling(&self) -> bool {
        let Self { announcements, failed, duplicates, .. } = self;
        announcements + failed + duplicates > 0 || self.refusals().next().is_some()
    }
}

/// These are left out on purpose, and nobody misses them.
pub(super) fn is_expected(reason: AnnounceRefusal) -> bool {
    matches!(reason, AnnounceRefusal::WatchedLink | AnnounceRefusal::Loopback)
}
