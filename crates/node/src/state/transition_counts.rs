// SPDX-License-Identifier: Apache-2.0
//! How often the role of an instance has changed.

use vipwatch_core::RoleKind;

/// The transitions of one instance since the node started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TransitionCounts {
    /// The number of transitions to each role, in the order of [`RoleKind::ALL`].
    to: [u32; RoleKind::ALL.len()],
    /// The number of transitions from `primary` to another role.
    pub from_primary: u32,
    /// How often the instance began to flap.
    pub flaps: u32,
}

impl TransitionCounts {
    /// Counts a transition. `from` is the role before; `None` if it is not known.
    #[must_use]
    pub fn with(mut self, from: Option<RoleKind>, to: RoleKind) -> Self {
        let count = &mut self.to[to as usize];
        *count = count.saturating_add(1);
        if from == Some(RoleKind::Primary) && to != RoleKind::Primary {
            self.from_primary = self.from_primary.saturating_add(1);
        }
        self
    }

    /// The number of transitions to this role.
    pub fn to(&self, role: RoleKind) -> u32 {
        self.to[role as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transitions_are_counted_by_their_new_role() {
        let counts = TransitionCounts::default()
            .with(None, RoleKind::Backup)
            .with(Some(RoleKind::Backup), RoleKind::Primary)
            .with(Some(RoleKind::Primary), RoleKind::Fault);
        let by_role = RoleKind::ALL.map(|role| counts.to(role));
        assert_eq!(by_role, [1, 0, 0, 1, 1]);
        assert_eq!((counts.from_primary, counts.flaps), (1, 0));
    }
}
