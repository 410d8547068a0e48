// SPDX-License-Identifier: Apache-2.0
//! Repeats the check for duplicates for some addresses.
//!
//! `vipwatch_core::announce::HolderDoubts` decides which addresses are probed again, and when.

use vipwatch_core::announce::{AnnounceSource, announce_source};
use vipwatch_core::{LinkAddress, LinkName, Moment, Snapshot};
use vipwatch_linux::announce::probe;

use super::{AnnounceNote, Announcer, family_of};

/// The result for one address that should be probed again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbeOutcome {
    /// The probe was sent, and claims are received for the time in the plan.
    Sent,
    /// The probe could not be sent now: the rate limit is reached, the link has no carrier, or the kernel refused it.
    NotYet,
    /// The kernel does not hold the address any more, or it cannot be announced.
    Dropped,
}

impl Announcer {
    /// Whether a check for duplicates is under way.
    pub fn is_checking(&self) -> bool {
        self.check.is_some()
    }

    /// Asks again whether other stations hold `targets`, and receives claims for the time in the plan. Each station that
    /// claims one of them is reported, also if it was reported before. The rate limit of the plan includes the probes.
    pub fn probe_again(
        &mut self,
        targets: &[LinkAddress],
        now: Moment,
        notes: &mut Vec<AnnounceNote>,
    ) -> Vec<(LinkAddress, ProbeOutcome)> {
        let all = |outcome| targets.iter().map(|target| (*target, outcome)).collect();
        let Some(duration) = self.plan.check else { return all(ProbeOutcome::Dropped) };
        let Some(snapshot) = self.snapshot(now, notes) else { return all(ProbeOutcome::NotYet) };
        let mut outcomes = Vec::with_capacity(targets.len());
        let sources = self.probe_sources(targets, &snapshot, now, &mut outcomes);
        let probed: Vec<(LinkAddress, LinkName)> =
            sources.iter().map(|(target, source)| (*target, source.name)).collect();
        if probed.is_empty() {
            return outcomes;
        }
        if let Err(error) = self.socket.start_listening(family_of(&probed)) {
            notes.push(AnnounceNote::ListenFailed(error));
            outcomes.extend(probed.iter().map(|(target, _)| (*target, ProbeOutcome::NotYet)));
            return outcomes;
        }
        // ORDER: earlier claims are forgotten before the probes are sent, so that each answer is reported.
        if let Some(check) = &mut self.check {
            for (target, _) in &probed {
                check.forget_holders(*target);
            }
        }
        let frames =
            sources.iter().map(|(target, source)| (target.link, probe(target.ip, source.mac)));
        let frames: Vec<_> = frames.collect();
        // Fewer results than probes: the send queue of the link is full.
        let mut results = self.socket.send(&frames).into_iter();
        for (target, _) in &probed {
            let is_sent = results.next().is_some_and(|result| result.is_ok());
            let outcome = if is_sent { ProbeOutcome::Sent } else { ProbeOutcome::NotYet };
            outcomes.push((*target, outcome));
        }
        self.extend_check(probed, &snapshot, now + duration);
        outcomes
    }
    /// The addresses that may be probed now; the others get their result in `outcomes`.
    fn probe_sources(
        &mut self,
        targets: &[LinkAddress],
        snapshot: &Snapshot,
        now: Moment,
        outcomes: &mut Vec<(LinkAddress, ProbeOutcome)>,
    ) -> Vec<(LinkAddress, AnnounceSource)> {
        let mut sources = Vec::with_capacity(targets.len());
        for target in targets {
            match announce_source(snapshot, *target, self.watched_link) {
                Err(reason) if !reason.is_temporary() => {
                    outcomes.push((*target, ProbeOutcome::Dropped));
                }
                Ok(source) if self.schedule.allow(now) => sources.push((*target, source)),
                Ok(_) | Err(_) => outcomes.push((*target, ProbeOutcome::NotYet)),
            }
        }
        sources
    }
}
