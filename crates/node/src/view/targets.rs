//! The targets and their deliveries.

use vipwatch_api::{FailingDelivery, Schema, TargetItem, TargetKind, TargetList};

use super::ApiContext;
use crate::notify::report_notifier::ReportTargetView;

/// Maximum number of failing deliveries of one target in a document.
const MAX_FAILING: usize = 20;

/// All targets of this process.
pub fn targets(context: &ApiContext) -> TargetList {
    let mut items = of_receiver(context);
    items.sort_by(|a, b| (&a.source, &a.name).cmp(&(&b.source, &b.name)));
    TargetList { schema: Schema::Targets, node: context.node.to_string(), items }
}

/// The targets of settled reports; empty without a receiver.
pub(super) fn of_receiver(context: &ApiContext) -> Vec<TargetItem> {
    let Some(status) = context.receiver_handle.status() else { return Vec::new() };
    let targets = status.deliveries.targets();
    targets.iter().map(|(name, target)| item(name, target)).collect()
}

fn item(name: &str, target: &ReportTargetView) -> TargetItem {
    let failing = target
        .failing
        .iter()
        .take(MAX_FAILING)
        .map(|(id, error)| FailingDelivery { id: id.to_string(), error: error.clone() });
    TargetItem {
        name: name.to_owned(),
        kind: kind(name),
        source: "receiver".to_owned(),
        pending: target.pending.len() as u64,
        oldest_pending: None,
        delivered: target.delivered,
        failures: target.failures,
        given_up: 0,
        superseded: target.superseded,
        filtered: 0,
        dropped: 0,
        failing: failing.collect(),
    }
}

/// The kind of a target of the receiver, whose name begins with it.
fn kind(name: &str) -> TargetKind {
    let kinds = [TargetKind::Webhook, TargetKind::Upstream, TargetKind::Ipv6];
    let has_name = |kind: &TargetKind| name.starts_with(kind.word());
    kinds.into_iter().find(has_name).unwrap_or(TargetKind::Hook)
}
