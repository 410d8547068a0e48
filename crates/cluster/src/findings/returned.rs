// SPDX-License-Identifier: Apache-2.0
//! Nodes that were away and came back. The findings of their groups end when their keepalived or agent has started; those that
//! stay open become messages of their own later.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use vipwatch_core::Moment;

/// The time that a machine gets to start its keepalived, or Neutron's agent.
const RETURN_TIME: Duration = Duration::from_mins(5);

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

    /// The nodes that came back less than [`RETURN_TIME`] ago.
    pub(super) fn update(&mut self, away: &BTreeSet<String>, now: Moment) -> BTreeSet<String> {
        let back = self.away.difference(away).map(|node| (node.clone(), now + RETURN_TIME));
        self.until.extend(back.collect::<Vec<_>>());
        self.until.retain(|node, until| *until > now && !away.contains(node));
        self.away.clone_from(away);
        self.until.keys().cloned().collect()
    }
}
