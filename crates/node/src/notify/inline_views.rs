// SPDX-License-Identifier: Apache-2.0
//! Counters of the outlets without a queue: state files, announcements and Neutron's agent, each kind as one target.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use vipwatch_api::{FailingDelivery, TargetItem, TargetKind};
use vipwatch_core::{Conclusion, InstanceId};
use vipwatch_history::{DeliverySource, Stage};

use super::notification::DeliveryReport;

/// Maximum number of failing instances in a view.
const MAX_LISTED: usize = 20;

/// The counters of all kinds that are configured.
#[derive(Debug, Default)]
pub(super) struct InlineViews(Mutex<BTreeMap<TargetKind, InlineCounters>>);

#[derive(Debug, Default)]
struct InlineCounters {
    delivered: u64,
    failures: u64,
    /// The error of the last attempt for each instance that does not have its last state.
    failing: BTreeMap<InstanceId, String>,
}

impl InlineViews {
    /// Replaces the configured kinds; those that stay keep their counters.
    pub(super) fn set_configured(&self, kinds: &[TargetKind]) {
        let mut counters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counters.retain(|kind, _| kinds.contains(kind));
        for kind in kinds {
            counters.entry(*kind).or_default();
        }
    }

    /// Counts a delivery, or a failed attempt.
    pub(super) fn count(&self, report: &DeliveryReport) {
        let (Some(kind), Some(instance)) = (kind(report.stage), &report.instance) else { return };
        let mut counters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(counters) = counters.get_mut(&kind) else { return };
        match &report.outcome {
            Ok(()) => {
                counters.delivered += u64::from(report.conclusion == Some(Conclusion::Delivered));
                counters.failing.remove(instance);
            }
            Err(error) => {
                counters.failures += 1;
                let known = counters.failing.entry(instance.clone()).or_default();
                // An empty text stands for the same error as before.
                if !error.is_empty() {
                    known.clone_from(error);
                }
            }
        }
    }

    /// Removes an instance that is no longer configured.
    pub(super) fn forget(&self, id: &InstanceId) {
        let mut counters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for counters in counters.values_mut() {
            counters.failing.remove(id);
        }
    }

    /// One target for each configured kind.
    pub(super) fn views(&self) -> Vec<TargetItem> {
        let counters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counters.iter().map(|(kind, counters)| counters.view(*kind)).collect()
    }
}

impl InlineCounters {
    fn view(&self, kind: TargetKind) -> TargetItem {
        let failing = self.failing.iter().take(MAX_LISTED);
        let failing =
            failing.map(|(id, error)| FailingDelivery { id: id.to_string(), error: error.clone() });
        TargetItem {
            name: kind.word().to_owned(),
            kind,
            source: DeliverySource::Node.as_str().to_owned(),
            pending: self.failing.len() as u64,
            silenced: 0,
            oldest_pending: None,
            delivered: self.delivered,
            failures: self.failures,
            given_up: 0,
            superseded: 0,
            filtered: 0,
            dropped: 0,
            failing: failing.collect(),
        }
    }
}

/// The kind of a stage without a queue.
fn kind(stage: Stage) -> Option<TargetKind> {
    match stage {
        Stage::File => Some(TargetKind::StateFile),
        Stage::Announce => Some(TargetKind::Announce),
        Stage::Agent => Some(TargetKind::Agent),
        Stage::Hook | Stage::Webhook => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_fails_until_it_is_delivered() {
        let views = InlineViews::default();
        let id: InstanceId = "a".parse().unwrap();
        let mut report = DeliveryReport::new(&id, 1, None, Stage::File, "state file");
        views.count(&report);
        assert!(views.views().is_empty(), "no state file is configured");
        views.set_configured(&[TargetKind::StateFile]);
        report.outcome = Err("disk full".to_owned());
        views.count(&report);
        report.outcome = Err(String::new());
        views.count(&report);
        let view = views.views().remove(0);
        assert_eq!(
            (view.pending, view.failures, view.failing[0].error.as_str()),
            (1, 2, "disk full")
        );
        report.outcome = Ok(());
        views.count(&report);
        let view = views.views().remove(0);
        assert_eq!((view.pending, view.delivered), (0, 1));
    }
}
