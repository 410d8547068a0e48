// SPDX-License-Identifier: Apache-2.0
//! The targets and their deliveries.

use vipwatch_api::{Schema, TargetItem, TargetList};
use vipwatch_history::DeliverySource;

use super::ApiContext;
use crate::receiver::ReceiverHandle;

/// All targets of this process.
pub fn targets(context: &ApiContext) -> TargetList {
    let items = match &context.notifier {
        Some(notifier) => notifier.views(),
        None => of_receiver(&context.receiver_handle),
    };
    TargetList { schema: Schema::Targets, node: context.node.to_string(), items }
}

/// The name and the value of every metric of the targets.
pub(super) fn metrics(targets: &[TargetItem]) -> [(&'static str, u64); 5] {
    let sum = |of: fn(&TargetItem) -> u64| targets.iter().map(of).sum::<u64>();
    [
        ("vipwatch_outlet_pending", sum(|target| target.pending)),
        ("vipwatch_outlet_superseded_total", sum(|target| target.superseded)),
        ("vipwatch_outlet_given_up_total", sum(|target| target.given_up)),
        ("vipwatch_outlet_dropped_total", sum(|target| target.dropped)),
        ("vipwatch_outlet_failures_total", sum(|target| target.failures)),
    ]
}

/// The targets of settled reports; empty without a receiver.
pub(super) fn of_receiver(receiver_handle: &ReceiverHandle) -> Vec<TargetItem> {
    let Some(status) = receiver_handle.status() else { return Vec::new() };
    let targets = status.notifier.views().into_iter();
    targets.filter(|target| target.source == DeliverySource::Receiver.as_str()).collect()
}
