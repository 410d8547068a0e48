// SPDX-License-Identifier: Apache-2.0
//! The changes that the watches deliver.

use std::collections::BTreeSet;

use super::conflict::Conflicts;
use super::counters::add;
use super::publish::OwnRoleChange;
use super::registration::RegistrationLoss;
use super::worker::{SessionLink, Worker};
use crate::etcd::EtcdError;
use crate::follow::{Followed, read, revision_of, write};
use crate::key::{Bucket, ClusterKey, ClusterName};
use crate::view::{ClusterView, ViewChange};

/// The number of changes after which readers get the view.
const CHANGES_AT_ONCE: usize = 20;

/// What the changes are about.
#[derive(Debug, Default)]
struct AppliedChanges {
    /// Buckets with a changed role.
    buckets: BTreeSet<Bucket>,
    /// Whether a node became live, stopped or lost.
    is_node_changed: bool,
    /// Whether the view has changed in any way but by a heartbeat.
    is_view_changed: bool,
    /// The greatest revision of a change of this node's own key, and whether that was a deletion.
    own_key: Option<OwnKeyChange>,
    /// Whether the record of this node's membership was deleted.
    is_membership_gone: bool,
}

#[derive(Debug, Clone, Copy)]
struct OwnKeyChange {
    revision: i64,
    is_deletion: bool,
}

impl Worker {
    /// Applies the changes to the view.
    pub(super) async fn apply(
        &mut self,
        link: &mut SessionLink<'_>,
        followed: Followed,
    ) -> Result<(), EtcdError> {
        match followed {
            Followed::Nothing => Ok(()),
            Followed::MustRead => {
                add(&self.shared.counters.resyncs, 1);
                tracing::info!("etcd has compacted the position: all ranges are read again");
                self.sync(link).await?;
                self.compare_findings();
                self.check_membership();
                Ok(())
            }
            Followed::Changes(changes) => {
                add(&self.shared.counters.watch_events, changes.len());
                self.apply_changes(changes);
                Ok(())
            }
        }
    }

    /// Looks for the own membership after a read: its deletion was not an event.
    pub(super) fn check_membership(&mut self) {
        if !self.has_membership() && self.registration.is_some() {
            self.lose_registration(RegistrationLoss::MembershipGone);
        }
    }

    fn apply_changes(&mut self, changes: Vec<ViewChange>) {
        let mut applied = AppliedChanges::default();
        let shared = self.shared.clone();
        let mut changes = changes.into_iter().peekable();
        while changes.peek().is_some() {
            // Readers of the view come between the parts of a long message, and see each transaction as a whole.
            let mut view = write(&shared.view);
            let mut count = 0;
            while let Some(change) = changes.next() {
                let revision = revision_of(&change);
                self.revision = self.revision.max(revision);
                self.apply_change(&mut view, change, &mut applied);
                count += 1;
                let is_whole = changes.peek().is_none_or(|next| revision_of(next) != revision);
                if count >= CHANGES_AT_ONCE && is_whole {
                    break;
                }
            }
        }
        let view = read(&shared.view);
        for bucket in &applied.buckets {
            self.conflicts.check(&view, &self.settings.node, bucket);
        }
        drop(view);
        if applied.is_node_changed {
            self.check_all_conflicts();
        }
        // A heartbeat of another node can confirm a claim.
        if applied.is_view_changed || !self.conflicts.is_empty() {
            self.view_changed();
        }
        if let Some(change) = applied.own_key {
            self.own_key_changed(change);
        }
        if applied.is_membership_gone && self.registration.is_some() {
            self.lose_registration(RegistrationLoss::MembershipGone);
        }
    }

    fn apply_change(
        &mut self,
        view: &mut ClusterView,
        change: ViewChange,
        applied: &mut AppliedChanges,
    ) {
        let (text, value, revision) = match &change {
            ViewChange::Put(value) => (&value.key, Some(value), value.mod_revision),
            ViewChange::Deleted { key, mod_revision } => (key, None, *mod_revision),
        };
        let key = view.keys().parse(text);
        match &key {
            Some(ClusterKey::Role(key)) => {
                if key.node == self.settings.node {
                    self.published.observe(key.clone(), OwnRoleChange { value, revision });
                }
                applied.buckets.insert(key.bucket.clone());
            }
            Some(ClusterKey::Node(node)) if *node == self.settings.node => {
                applied.own_key = Some(OwnKeyChange { revision, is_deletion: value.is_none() });
            }
            Some(ClusterKey::Member(node)) if *node == self.settings.node => {
                // An operator has deleted the membership.
                applied.is_membership_gone = value.is_none();
            }
            Some(ClusterKey::Finding(id)) => {
                if let Some(work) = &mut self.reporter {
                    work.observe(id, revision);
                }
            }
            Some(ClusterKey::Closed(id)) if value.is_none() => {
                if let Some(work) = &mut self.reporter {
                    work.forget_ended(id);
                }
            }
            _ => {}
        }
        let name = match key {
            Some(ClusterKey::Node(name) | ClusterKey::Member(name)) => Some(name),
            _ => None,
        };
        let before = name.as_ref().map(|name| state_of(view, name));
        let is_changed = view.apply(change);
        match name {
            Some(name) if before.as_ref() == Some(&state_of(view, &name)) => {}
            Some(_) => {
                applied.is_node_changed = true;
                applied.is_view_changed = true;
            }
            None => applied.is_view_changed |= is_changed,
        }
    }

    /// The key of this node has changed in etcd.
    fn own_key_changed(&mut self, change: OwnKeyChange) {
        match &self.registration {
            // The next heartbeat finds out whether the lease has ended or another process has the name.
            Some(registration) if registration.is_foreign(change.revision) => {
                self.heartbeat.make_due();
            }
            None if change.is_deletion => self.resume_writes(),
            _ => {}
        }
    }

    /// Whether the view has the membership of this node.
    fn has_membership(&self) -> bool {
        let view = self.shared.view.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        view.node(&self.settings.node).is_some_and(|node| node.member.is_some())
    }

    /// On the reporter, after all findings were read again.
    pub(super) fn compare_findings(&mut self) {
        let view = self.shared.view.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(work) = &mut self.reporter {
            work.compare(&view);
        }
    }

    /// Looks for conflicts in all buckets of this node, after a read or after a node became live or was lost.
    pub(super) fn check_all_conflicts(&mut self) {
        let shared = self.shared.clone();
        let view = shared.view.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        self.conflicts = Conflicts::default();
        for bucket in self.published.buckets() {
            self.conflicts.check(&view, &self.settings.node, bucket);
        }
    }

    pub(super) fn view_revision(&self) -> i64 {
        let view = self.shared.view.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        view.revision()
    }
}

/// The state of a node, and the epoch of its process.
fn state_of(
    view: &ClusterView,
    name: &ClusterName,
) -> Option<(vipwatch_api::ClusterNodeState, String)> {
    let node = view.node(name)?;
    Some((node.state, node.epoch().to_owned()))
}
