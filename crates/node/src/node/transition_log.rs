// SPDX-License-Identifier: Apache-2.0
//! The log lines about roles: each transition, and the beginning and the end of flapping.
//!
//! A role in which an instance cannot take over (`fault`) or is not known (`unknown`) is a warning; its end is
//! information.

use vipwatch_core::flapping::{FLAP_SPAN, FlapDetector, MIN_TRANSITIONS};
use vipwatch_core::{Cause, InstanceId, Moment, RoleKind, Trigger};

use crate::log::{addresses, netns_name};
use crate::state::StateStore;
use crate::transition::Transition;

/// Logs transitions, and remembers which instances flap.
#[derive(Debug, Default)]
pub(super) struct TransitionLog {
    flaps: FlapDetector,
}

impl TransitionLog {
    /// Logs a transition. Returns true if the instance begins to flap with it.
    pub(super) fn log(&mut self, transition: &Transition) -> bool {
        log_role(transition, transition.from);
        // With several addresses, most transitions have a step to `partial`.
        let is_change = transition.trigger != Trigger::Start
            && transition.from.is_some()
            && transition.to.kind() != RoleKind::Partial;
        let id = &transition.instance.id;
        let begins_to_flap = is_change && self.flaps.count(id, transition.read_at);
        if begins_to_flap {
            let netns = netns_name(&transition.instance);
            let address = addresses(&transition.instance);
            let (transitions, minutes) = (MIN_TRANSITIONS, FLAP_SPAN.as_secs() / 60);
            tracing::warn!(
                instance = %id, netns, address, transitions, minutes, "instance began to flap"
            );
        }
        begins_to_flap
    }

    /// Logs the instances that have stopped flapping.
    pub(super) fn tick(&mut self, now: Moment, store: &StateStore) {
        for id in self.flaps.expire(now) {
            let minutes = FLAP_SPAN.as_secs() / 60;
            let entry = store.entry(&id);
            let instance = entry.as_ref().map(|entry| &*entry.instance);
            let (netns, address) = (instance.map(netns_name), instance.map(addresses));
            tracing::info!(instance = %id, netns, address, minutes, "instance stopped flapping");
        }
    }

    /// Forgets an instance that is no longer configured.
    pub(super) fn forget(&mut self, id: &InstanceId) {
        self.flaps.forget(id);
    }
}

/// Logs the role of an instance that is unchanged since the last run of the node.
pub(super) fn log_unchanged(transition: &Transition) {
    log_role(transition, None);
}

/// Logs the cause of a transition that was logged without it.
pub(super) fn log_cause(transition: &Transition, cause: &Cause) {
    let Transition { seq, instance, from, to, .. } = transition;
    let (netns, address) = (netns_name(instance), addresses(instance));
    let from = from.map_or("-", RoleKind::word);
    let (to, cause, detail) = (to.as_str(), cause.kind.as_str(), cause.to_string());
    let id = &instance.id;
    tracing::info!(
        seq, instance = %id, netns, address, from, to, cause, detail, "cause of a transition"
    );
}

/// `from` is the role before, if this run has read it or the role has changed since the last run.
fn log_role(transition: &Transition, from: Option<RoleKind>) {
    let Transition { seq, instance, to, trigger, cause, .. } = transition;
    let message = message(from, to.kind());
    let (netns, address) = (netns_name(instance), addresses(instance));
    let from = from.map_or("-", RoleKind::word);
    let (role, to, reason, trigger) = (to.kind(), to.as_str(), to.reason(), trigger.as_str());
    let detail = cause.as_ref().map_or_else(|| "not known yet".to_owned(), ToString::to_string);
    let cause = cause.as_ref().map_or("-", |cause| cause.kind.as_str());
    let id = &instance.id;
    match role {
        RoleKind::Fault | RoleKind::Unknown => tracing::warn!(
            seq, instance = %id, netns, address, from, to, trigger, reason, cause, detail,
            "{message}"
        ),
        RoleKind::Primary | RoleKind::Partial | RoleKind::Backup => tracing::info!(
            seq, instance = %id, netns, address, from, to, trigger, reason, cause, detail,
            "{message}"
        ),
    }
}

/// The sentence about a transition. Without `from` the role is the first one that this run reads, or it is unchanged.
fn message(from: Option<RoleKind>, to: RoleKind) -> &'static str {
    match (from, to) {
        (None, RoleKind::Primary) => "instance is primary",
        (None, RoleKind::Partial) => "instance holds only some of its addresses",
        (None, RoleKind::Backup) => "instance is backup",
        (Some(RoleKind::Fault), RoleKind::Primary) => "fault is over: instance became primary",
        (Some(RoleKind::Fault), RoleKind::Backup) => "fault is over: instance became backup",
        (Some(_), RoleKind::Primary) => "instance became primary",
        (Some(_), RoleKind::Partial) => "instance now holds only some of its addresses",
        (Some(_), RoleKind::Backup) => "instance became backup",
        (_, RoleKind::Fault) => "instance has a fault",
        (_, RoleKind::Unknown) => "role of the instance is unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_fault_is_named() {
        assert_eq!(message(Some(RoleKind::Backup), RoleKind::Primary), "instance became primary");
        let over = message(Some(RoleKind::Fault), RoleKind::Backup);
        assert_eq!(over, "fault is over: instance became backup");
        assert_eq!(message(None, RoleKind::Fault), "instance has a fault");
    }
}
