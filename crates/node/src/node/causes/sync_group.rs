// SPDX-License-Identifier: Apache-2.0
//! The causes within a sync group. Keepalived moves all members together: a member without evidence of its own has the
//! cause of a partner that changed its role in the same direction at the same time.

use std::sync::Arc;

use vipwatch_core::cause::ChangeDirection;
use vipwatch_core::{Cause, CauseKind, InstanceId, Moment, Role};

use super::{CAUSE_TIMEOUT, is_certain};
use crate::discovery::InstanceConfig;
use crate::node::Node;
use crate::state::InstanceEntry;
use crate::transition::Transition;

impl Node {
    /// The cause of the current role of a partner, if its role changed with this transition.
    pub(super) fn cause_of_partner(&self, transition: &Transition) -> Option<Arc<Cause>> {
        transition.instance.vrrp.sync_group.as_ref()?;
        let is_same_change = |entry: &&Arc<InstanceEntry>| {
            // The partner may be one step ahead.
            let is_same = match transition.direction {
                ChangeDirection::Gained => !matches!(entry.role, Role::Backup | Role::Fault(_)),
                ChangeDirection::Lost => entry.role != Role::Primary,
            };
            is_same && is_at_same_time(entry.role_since, transition.read_at)
        };
        let view = self.store.view();
        let partners = view.entries.values();
        let partners = partners.filter(|entry| is_partner(&entry.instance, &transition.instance));
        let mut causes = partners.filter(is_same_change).filter_map(|entry| entry.cause.clone());
        causes.find(|cause| is_sufficient(cause))
    }

    /// Gives the cause of a transition to the transitions of its partners that wait: the role of this instance may change
    /// again before they are due. Returns the partners.
    pub(super) fn share_with_partners(
        &mut self,
        transition: &Transition,
        cause: &Arc<Cause>,
    ) -> Vec<InstanceId> {
        let mut partners = Vec::new();
        if transition.instance.vrrp.sync_group.is_none() || !is_sufficient(cause) {
            return partners;
        }
        for pending in self.pending_causes.all_mut() {
            let other = &pending.transition;
            if is_partner(&other.instance, &transition.instance)
                && other.direction == transition.direction
                && is_at_same_time(other.read_at, transition.read_at)
            {
                pending.evidence.of_partner.get_or_insert_with(|| Arc::clone(cause));
                partners.push(pending.transition.instance.id.clone());
            }
        }
        partners
    }
}

/// Whether two different instances are in the same sync group.
fn is_partner(one: &InstanceConfig, other: &InstanceConfig) -> bool {
    let is_other = one.id != other.id && one.file == other.file;
    is_other && one.vrrp.sync_group.is_some() && one.vrrp.sync_group == other.vrrp.sync_group
}

fn is_at_same_time(one: Moment, other: Moment) -> bool {
    one.since(other).max(other.since(one)) <= CAUSE_TIMEOUT
}

/// Whether a partner can take over a cause. One that lost an address by hand has given up the others because of that.
fn is_sufficient(cause: &Cause) -> bool {
    is_certain(cause) || cause.kind == CauseKind::AddressRemoved
}
