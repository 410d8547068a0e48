// SPDX-License-Identifier: Apache-2.0
//! Decides what follows from a role that the kernel shows: a transition that must be notified, or nothing new.
//!
//! ```text
//!   role in this run known?
//!     yes ── other role ───────────────▶ Transition, since now
//!         └─ same role, other reason ──▶ Transition, since as before
//!     no, role of the last run known?
//!       no ────────────────────────────▶ Transition, since now
//!       yes ── other role ─────────────▶ Transition from that role, since now
//!           └─ same role ──────────────▶ Unchanged, since as in the last run
//! ```
//!
//! The rules read no clock and no database: the node passes in the time, the role that the last run stored,
//! and the published state.

use std::time::SystemTime;

use strum::{EnumString, IntoStaticStr};

use crate::{Role, RoleKind};

/// The reason why the node read the role of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, EnumString, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum Trigger {
    /// The node follows the instance for the first time in this run, or does not find one of the last run.
    Start,
    /// The kernel reported that an address was added, removed or changed.
    Address,
    /// The kernel reported that a link was added, removed or changed.
    Link,
    /// The namespace was created or deleted.
    Namespace,
    /// Events were lost, so every namespace was read again.
    Resync,
    /// The configuration of the instance changed.
    Config,
    /// The audit found that the node missed a change: a defect of vipwatch or of the kernel.
    Audit,
    /// The adverts of an instance without addresses show another role.
    Advert,
}

impl Trigger {
    /// The word for the trigger in JSON and in the history.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// The role of an instance, as read from the kernel, where it differs from the last role of this run.
#[derive(Debug, Clone, Copy)]
pub struct ObservedRole<'a> {
    /// The role that this run knew before; `None` if it is the first one that is read.
    pub from: Option<&'a Role>,
    /// The role now.
    pub to: &'a Role,
    /// When it was read.
    pub at: SystemTime,
}

/// The role that the last run of the node stored for an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredRole {
    /// The role.
    pub kind: RoleKind,
    /// When the instance took this role.
    pub since: SystemTime,
}

/// What follows from an observed role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reconciled {
    /// The role is new: it must be notified.
    Transition {
        /// The role before; `None` if it is not known.
        from: Option<RoleKind>,
        /// When the instance took its role.
        since: SystemTime,
    },
    /// The role is unchanged since the last run: its timestamp and its transition are kept.
    Unchanged {
        /// When the instance took its role.
        since: SystemTime,
    },
}

impl Reconciled {
    /// The role before; `None` if it is not known, or if the role is unchanged since the last run.
    pub fn previous(&self) -> Option<RoleKind> {
        match self {
            Self::Transition { from, .. } => *from,
            Self::Unchanged { .. } => None,
        }
    }

    /// When the instance took its role.
    pub fn since(&self) -> SystemTime {
        match self {
            Self::Transition { since, .. } | Self::Unchanged { since } => *since,
        }
    }
}

/// Compares an observed role with this run's role and with the last run's.
///
/// `published_since` is the time of the role that this run has published, `None` before the first one.
/// `stored` is `None` if the last run did not know the instance, or stored a word that is no role.
pub fn reconcile(
    observed: &ObservedRole<'_>,
    stored: Option<StoredRole>,
    published_since: Option<SystemTime>,
) -> Reconciled {
    let ObservedRole { from, to, at } = *observed;
    if let Some(from) = from {
        let is_same = from.kind() == to.kind();
        let since = published_since.filter(|_| is_same).unwrap_or(at);
        return Reconciled::Transition { from: Some(from.kind()), since };
    }
    match stored {
        Some(stored) if stored.kind == to.kind() => Reconciled::Unchanged { since: stored.since },
        stored => Reconciled::Transition { from: stored.map(|stored| stored.kind), since: at },
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Fault;

    fn seconds(count: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(count)
    }

    /// The first role that is read after a start, at second 100.
    fn first(to: &Role) -> ObservedRole<'_> {
        ObservedRole { from: None, to, at: seconds(100) }
    }

    fn stored(kind: RoleKind) -> StoredRole {
        StoredRole { kind, since: seconds(7) }
    }

    #[test]
    fn a_role_unchanged_since_the_last_run_keeps_its_timestamp_and_is_no_transition() {
        let reconciled = reconcile(&first(&Role::Primary), Some(stored(RoleKind::Primary)), None);
        assert_eq!(reconciled, Reconciled::Unchanged { since: seconds(7) });
    }

    #[test]
    fn a_role_that_changed_while_the_node_was_down_is_notified() {
        let last = Some(stored(RoleKind::Primary));
        let reconciled = reconcile(&first(&Role::Backup), last, None);
        let from = Some(RoleKind::Primary);
        assert_eq!(reconciled, Reconciled::Transition { from, since: seconds(100) });
    }

    #[test]
    fn an_instance_that_the_last_run_did_not_know_is_notified() {
        let reconciled = reconcile(&first(&Role::Backup), None, None);
        assert_eq!(reconciled, Reconciled::Transition { from: None, since: seconds(100) });
    }

    #[test]
    fn another_reason_for_the_same_role_keeps_the_timestamp() {
        let from = Role::Partial { held: 1, total: 3 };
        let to = Role::Partial { held: 2, total: 3 };
        let observed = ObservedRole { from: Some(&from), to: &to, at: seconds(100) };
        let reconciled = reconcile(&observed, None, Some(seconds(50)));
        let expected = Reconciled::Transition { from: Some(RoleKind::Partial), since: seconds(50) };
        assert_eq!(reconciled, expected);
    }

    #[test]
    fn another_role_in_this_run_gets_a_new_timestamp_whatever_the_last_run_stored() {
        let fault = Role::Fault(Fault::NoNetns);
        let observed = ObservedRole { from: Some(&fault), to: &Role::Primary, at: seconds(100) };
        let last = Some(stored(RoleKind::Primary));
        let reconciled = reconcile(&observed, last, Some(seconds(50)));
        let expected = Reconciled::Transition { from: Some(RoleKind::Fault), since: seconds(100) };
        assert_eq!(reconciled, expected);
    }
}
