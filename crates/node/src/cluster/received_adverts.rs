// SPDX-License-Identifier: Apache-2.0
//! Whether the captured adverts of an instance come from another node.

use vipwatch_cluster::record::ReceivedAdverts;
use vipwatch_core::Moment;
use vipwatch_core::witness::{AdvertOrigin, Silence};
use vipwatch_linux::clock;

use crate::discovery::InstanceConfig;
use crate::processes::ProcessView;
use crate::state::StateStore;
use crate::witness::{
    CaptureStatus, InstanceEvidence, configured_settings, expected_down_interval,
};

/// What the adverts show; `None` if those of this instance are not captured.
pub(super) fn received_adverts(
    store: &StateStore,
    instance: &InstanceConfig,
) -> Option<ReceivedAdverts> {
    let processes = store.processes();
    store
        .witness
        .read(instance, |evidence| judge(instance, evidence, processes.as_deref(), clock::now()))
}

/// Whether adverts of another node arrive; `None` if that is not known.
pub(crate) fn hears_other(store: &StateStore, instance: &InstanceConfig) -> Option<bool> {
    match received_adverts(store, instance)? {
        ReceivedAdverts::Other => Some(true),
        ReceivedAdverts::None => Some(false),
        ReceivedAdverts::Unknown => None,
    }
}

fn judge(
    instance: &InstanceConfig,
    evidence: InstanceEvidence<'_>,
    processes: Option<&ProcessView>,
    now: Moment,
) -> ReceivedAdverts {
    let InstanceEvidence { status, witness, key, .. } = evidence;
    if !matches!(status, CaptureStatus::Running) {
        return ReceivedAdverts::Unknown;
    }
    let judged_at = witness.judged_at(now);
    let (own, expected) = (configured_settings(instance), expected_down_interval(instance));
    let is_foreign = witness.router(key).is_some_and(|router| {
        router.sources().iter().any(|record| {
            record.origin == AdvertOrigin::Foreign && own.waits_for(record, expected, judged_at)
        })
    });
    match evidence.silence(instance, processes, now) {
        _ if is_foreign => ReceivedAdverts::Other,
        // Only this node advertises, or no node.
        Silence::Advertised | Silence::Silent { .. } => ReceivedAdverts::None,
        Silence::Unknown => ReceivedAdverts::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use vipwatch_core::witness::{LinkWitness, RoutedAdverts};

    use super::*;
    use crate::discovery;
    use crate::witness::router_key;

    #[test]
    fn without_membership_and_keepalived_the_absence_of_adverts_is_unknown() {
        let instance = discovery::example();
        let key = router_key(&instance).unwrap();
        let at = |seconds| Moment::new(Duration::from_secs(seconds));
        let mut witness = LinkWitness::new(at(0));
        witness.follow([(key, RoutedAdverts::Refused)]);
        witness.drained(at(60), 0);
        let judge = |has_membership, processes: Option<&ProcessView>| {
            let (status, has_sent) = (&CaptureStatus::Running, true);
            let evidence =
                InstanceEvidence { status, has_sent, has_membership, witness: &witness, key };
            (
                judge(&instance, evidence, processes, at(60)),
                evidence.silence(&instance, processes, at(60)),
            )
        };
        // No keepalived has been seen.
        let ended = ProcessView::default();
        let running = ProcessView::running_since(&instance.file, Duration::ZERO, Duration::ZERO);
        let silent = Silence::Silent { time: Duration::from_mins(1), is_probable: false };
        assert_eq!(judge(true, Some(&ended)), (ReceivedAdverts::None, silent));
        assert_eq!(judge(false, Some(&running)), (ReceivedAdverts::None, silent));
        assert_eq!(judge(false, None), (ReceivedAdverts::None, silent));
        assert_eq!(judge(false, Some(&ended)), (ReceivedAdverts::Unknown, Silence::Unknown));
    }

    #[test]
    fn a_switch_may_pass_no_advert_of_a_group_that_only_keepalived_has_reported() {
        let instance = discovery::example();
        let judge = |group: &str, processes: ProcessView| {
            let mut instance = instance.clone();
            let vrrp = Arc::make_mut(&mut instance.vrrp);
            vrrp.multicast_group = Some(group.parse().unwrap());
            let key = router_key(&instance).unwrap();
            let at = |seconds| Moment::new(Duration::from_secs(seconds));
            let mut witness = LinkWitness::new(at(0));
            witness.follow([(key, RoutedAdverts::Refused)]);
            witness.drained(at(60), 0);
            let (status, witness) = (&CaptureStatus::Running, &witness);
            let (has_sent, has_membership) = (true, true);
            let evidence = InstanceEvidence { status, has_sent, has_membership, witness, key };
            judge(&instance, evidence, Some(&processes), at(60))
        };
        assert_eq!(judge("224.0.0.18", ProcessView::default()), ReceivedAdverts::None);
        for group in ["239.1.2.3", "ff02::12"] {
            assert_eq!(judge(group, ProcessView::default()), ReceivedAdverts::Unknown);
            let running =
                ProcessView::running_since(&instance.file, Duration::ZERO, Duration::ZERO);
            assert_eq!(judge(group, running), ReceivedAdverts::None);
        }
    }
}
