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

/// The targets of settled reports; empty without a receiver.
pub(super) fn of_receiver(receiver_handle: &ReceiverHandle) -> Vec<TargetItem> {
    let Some(status) = receiver_handle.status() else { return Vec::new() };
    let targets = status.notifier.views().into_iter();
    targets.filter(|target| target.source == DeliverySource::Receiver.as_str()).collect()
}
