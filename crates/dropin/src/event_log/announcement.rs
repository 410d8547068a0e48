// SPDX-License-Identifier: Apache-2.0
//! Log lines about announcements.

use vipwatch_core::announce::AnnounceRefusal;
use vipwatch_core::{ErrorChain, LinkAddress, LinkName};
use vipwatch_outlets::announce::{AnnounceCounts, AnnounceNote};

use super::RouterEventLog;
use crate::log::Level;

impl RouterEventLog {
    pub(super) fn announcement_reported(&mut self, note: &AnnounceNote) {
        let Self { output, router, .. } = self;
        match note {
            // One line for each address, as in Neutron; the later rounds are counted at the end.
            AnnounceNote::Sent { target, link, round, .. } if round.is_first => {
                output.line(Level::Debug, format_args!("Sent GARP to {} from {link}", target.ip));
            }
            AnnounceNote::Sent { .. } => {}
            AnnounceNote::Refused { target, link, reason } => {
                self.announcement_refused(target, *link, *reason);
            }
            AnnounceNote::Failed { target, link, error } => output.line(
                Level::Warning,
                format_args!(
                    "Failed to announce {} on {link} of router {router}: {error}; retrying",
                    target.ip
                ),
            ),
            AnnounceNote::Duplicate { target, link, mac } => output.line(
                Level::Error,
                format_args!(
                    "Duplicate holder: {} of router {router} is also at {mac}, seen on {link}",
                    target.ip
                ),
            ),
            AnnounceNote::QueryFailed(error) => output.line(
                Level::Warning,
                format_args!(
                    "Cannot announce the addresses of router {router}: {}; retrying",
                    ErrorChain(error)
                ),
            ),
            AnnounceNote::ListenFailed(error) => output.line(
                Level::Warning,
                format_args!(
                    "Cannot check for other holders of the addresses of router {router}: {error}"
                ),
            ),
            AnnounceNote::Ended(counts) => self.announcements_ended(counts),
        }
    }

    fn announcement_refused(
        &mut self,
        target: &LinkAddress,
        link: Option<LinkName>,
        reason: AnnounceRefusal,
    ) {
        let Self { output, router, .. } = self;
        let ip = target.ip;
        let link = link.map_or_else(|| "no link".to_owned(), |link| link.to_string());
        let retry = if reason.is_temporary() { "; waiting until this changes" } else { "" };
        output.line(
            Level::Info,
            format_args!(
                "Address {ip} on {link} of router {router} is not announced: {reason}{retry}"
            ),
        );
    }

    fn announcements_ended(&mut self, counts: &AnnounceCounts) {
        let Self { output, router, .. } = self;
        let AnnounceCounts { announcements, frames, failed, duplicates, .. } = counts;
        let refused = refusals(counts);
        let unlisted = match counts.unlisted_answers {
            0 => String::new(),
            count => format!(" ({count} more answers not listed)"),
        };
        output.line(
            Level::Info,
            format_args!(
                "Announced addresses of router {router}: {announcements} announcements in {frames} \
                 frames, {failed} failed, {duplicates} duplicate holders{unlisted}, refused: {refused}"
            ),
        );
    }
}

/// `none`, or how many announcements were refused for each reason.
fn refusals(counts: &AnnounceCounts) -> String {
    let each: Vec<String> =
        counts.refusals().map(|(reason, count)| format!("{count} because {reason}")).collect();
    if each.is_empty() { "none".to_owned() } else { each.join(", ") }
}
