// SPDX-License-Identifier: Apache-2.0
//! Nodes that were away and came back. The findings of their groups end with the next roles; those that stay open become
//! messages of their own one lease later.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use vipwatch_core::Moment;

/// Until when each node counts as just returned.
#[derive(Debug, Default)]
pub(super) struct ReturnedNodes {
    away: BTreeSet<String>,
    until: BTreeMap<String, Moment>,
}

impl ReturnedNodes {
    pub(super) fn next_check(&self) -> Option<Moment> {
        self.until.values().min().copied()
    }

    /// The nodes that came back less than `grace` ago.
    pub(super) fn update(
        &mut self,
        away: &BTreeSet<String>,
        now: Moment,
        grace: Duration,
    ) -> BTreeSet<String> {
        let back = self.away.difference(away).map(|node| (node.clone(), now + grace));
        self.until.extend(back.collect::<Vec<_>>());
        self.until.retain(|node, until| *until > now && !away.contains(node));
        self.away.clone_from(away);
        self.until.keys().cloned().collect()
    }
}
