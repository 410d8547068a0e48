// SPDX-License-Identifier: Apache-2.0
//! Whether the captured adverts of an instance come from another node.

use vipwatch_cluster::record::ReceivedAdverts;
use vipwatch_core::witness::{AdvertOrigin, Silence};
use vipwatch_linux::clock;

use crate::discovery::InstanceConfig;
use crate::state::StateStore;
use crate::witness::{
    CaptureStatus, InstanceEvidence, configured_settings, expected_down_interval,
};

/// What the adverts show; `None` if those of this instance are not captured.
pub(super) fn received_adverts(
    store: &StateStore,
    instance: &InstanceConfig,
) -> Option<ReceivedAdverts> {
    store.witness.read(instance, |evidence| judge(instance, evidence))
}

fn judge(instance: &InstanceConfig, evidence: InstanceEvidence<'_>) -> ReceivedAdverts {
    let InstanceEvidence { status, witness, key, .. } = evidence;
    if !matches!(status, CaptureStatus::Running) {
        return ReceivedAdverts::Unknown;
    }
    let now = clock::now();
    let judged_at = witness.judged_at(now);
    let own = configured_settings(instance);
    let is_foreign = witness.router(key).is_some_and(|router| {
        let mut advertising = router.advertising(judged_at);
        advertising.any(|record| record.origin == AdvertOrigin::Foreign && own.concerns(record))
    });
    match witness.silence(key, &own, expected_down_interval(instance), now) {
        _ if is_foreign => ReceivedAdverts::Other,
        // Only this node advertises, or no node.
        Silence::Advertised | Silence::Silent { .. } => ReceivedAdverts::None,
        Silence::Unknown => ReceivedAdverts::Unknown,
    }
}
