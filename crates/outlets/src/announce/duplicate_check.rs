// SPDX-License-Identifier: Apache-2.0
//! The check for duplicates: after the first rounds of an announcement, the announcer asks whether other stations hold
//! the same addresses, and records the answers.

use vipwatch_core::snapshot::Mac;
use vipwatch_core::{LinkAddress, LinkIndex, LinkName, Moment};

/// Maximum number of other holders that a check lists for one address, and in total. Any station on the link can answer
/// with any number of MACs.
const MAX_HOLDERS_OF_ADDRESS: usize = 4;
const MAX_HOLDERS: usize = 64;

/// A check ends after this many answers: more of them add no information and only cost CPU.
const MAX_ANSWERS: u32 = 4096;

/// A check that is under way.
#[derive(Debug)]
pub(super) struct DuplicateCheck {
    pub(super) ends_at: Moment,
    /// The addresses that were probed, with the names of their links; sorted by address.
    pub(super) probed: Vec<(LinkAddress, LinkName)>,
    /// The MACs of the links of this namespace.
    pub(super) own_macs: Vec<(LinkIndex, Mac)>,
    /// The holders that are listed so far.
    holders: Vec<(LinkAddress, Mac)>,
    /// The number of answers about probed addresses, listed or not.
    answers: u32,
}

/// What a check does with the holder that an answer names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Listing {
    /// It is a new holder of this address on this link, and was listed.
    New(LinkName),
    /// It is listed already, or the answer is not about a probed address or comes from this namespace.
    Ignored,
    /// It is a new holder, but the list is full.
    Full,
}

impl DuplicateCheck {
    pub(super) fn new(ends_at: Moment) -> Self {
        Self { ends_at, probed: Vec::new(), own_macs: Vec::new(), holders: Vec::new(), answers: 0 }
    }

    /// Whether enough answers were read.
    pub(super) fn is_complete(&self) -> bool {
        self.answers >= MAX_ANSWERS
    }

    /// Adds addresses to those that were probed.
    pub(super) fn add(&mut self, probed: Vec<(LinkAddress, LinkName)>) {
        self.probed.extend(probed);
        self.probed.sort_unstable_by_key(|(target, _)| *target);
        self.probed.dedup_by_key(|(target, _)| *target);
    }

    /// Forgets the holders of `target`: the next claim of each is [`Listing::New`] again.
    pub(super) fn forget_holders(&mut self, target: LinkAddress) {
        self.holders.retain(|(held, _)| *held != target);
    }

    /// Records that the station `mac` claims to hold `target`.
    pub(super) fn record(&mut self, target: LinkAddress, mac: Mac) -> Listing {
        let Ok(at) = self.probed.binary_search_by_key(&target, |(probed, _)| *probed) else {
            return Listing::Ignored;
        };
        if self.is_own(target.link, mac) {
            return Listing::Ignored;
        }
        self.answers += 1;
        if self.holders.contains(&(target, mac)) {
            return Listing::Ignored;
        }
        let of_address = self.holders.iter().filter(|(held, _)| *held == target).count();
        if of_address >= MAX_HOLDERS_OF_ADDRESS || self.holders.len() >= MAX_HOLDERS {
            return Listing::Full;
        }
        self.holders.push((target, mac));
        Listing::New(self.probed[at].1)
    }

    /// Whether `mac` belongs to another link of this namespace, in the same network: there the kernel answers for every
    /// address it has. The MAC of the link itself is not excluded: an answer with it comes from another node and is the
    /// worst duplicate, because in Neutron the port of a router has the same MAC on every node.
    fn is_own(&self, link: LinkIndex, mac: Mac) -> bool {
        self.own_macs.iter().any(|(own, own_mac)| *own != link && *own_mac == mac)
    }
}
