// SPDX-License-Identifier: Apache-2.0
//! What an announcer reports to its caller, and what it counts.

use std::io;

use vipwatch_core::announce::AnnounceRefusal;
use vipwatch_core::announce::AnnounceRound;
use vipwatch_core::snapshot::Mac;
use vipwatch_core::{LinkAddress, LinkName};
use vipwatch_linux::monitor::WatchError;

/// A result of the announcer that its caller may log.
#[derive(Debug)]
pub enum AnnounceNote {
    /// One round of one address was sent.
    Sent {
        /// The announced address.
        target: LinkAddress,
        /// The name of its link.
        link: LinkName,
        /// The MAC that was announced for it.
        mac: Mac,
        /// The number of the round, and whether it is the first one that was sent.
        round: AnnounceRound,
    },
    /// An address is not announced, or not yet. Reported once for each reason.
    Refused {
        /// The address.
        target: LinkAddress,
        /// The name of its link; `None` if the link does not exist.
        link: Option<LinkName>,
        /// Why it is not announced.
        reason: AnnounceRefusal,
    },
    /// The kernel did not send a frame. The announcer retries, and reports each errno once until a round succeeds.
    Failed {
        /// The address.
        target: LinkAddress,
        /// The name of its link.
        link: LinkName,
        /// The error of the kernel.
        error: io::Error,
    },
    /// Another station claims an announced address.
    Duplicate {
        /// The address.
        target: LinkAddress,
        /// The name of the link on which the claim was received.
        link: LinkName,
        /// The MAC of the other station.
        mac: Mac,
    },
    /// The links and addresses could not be read. The announcer retries.
    QueryFailed(WatchError),
    /// The check for duplicates could not start.
    ListenFailed(io::Error),
    /// No announcement is left; the counts since the last such note.
    Ended(AnnounceCounts),
}

/// Counters of an announcer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AnnounceCounts {
    /// Rounds that were sent completely, of all addresses.
    pub announcements: u64,
    /// Frames of those rounds.
    pub frames: u64,
    /// Rounds that the kernel did not send.
    pub failed: u64,
    /// Other stations that were found to hold an announced address.
    pub duplicates: u64,
    /// Answers of further stations, after the list of a check was full.
    pub unlisted_answers: u64,
    pub(super) refused: [u64; AnnounceRefusal::ALL.len()],
}

impl AnnounceCounts {
    /// How many addresses were refused for this reason.
    pub fn refused(&self, reason: AnnounceRefusal) -> u64 {
        self.refused[reason as usize]
    }

    /// The reasons for which addresses were refused, each with its count; without the reasons that are expected (the
    /// watched link and the loopback link).
    pub fn refusals(&self) -> impl Iterator<Item = (AnnounceRefusal, u64)> {
        AnnounceRefusal::ALL
            .into_iter()
            .filter(|reason| !is_expected(*reason))
            .map(|reason| (reason, self.refused(reason)))
            .filter(|(_, count)| *count > 0)
    }

    pub(super) fn is_worth_reporting(&self) -> bool {
        let Self { announcements, failed, duplicates, .. } = self;
        announcements + failed + duplicates > 0 || self.refusals().next().is_some()
    }
}

/// Whether an address with this refusal is left out on purpose, so that no report is needed.
pub(super) fn is_expected(reason: AnnounceRefusal) -> bool {
    matches!(reason, AnnounceRefusal::WatchedLink | AnnounceRefusal::Loopback)
}
