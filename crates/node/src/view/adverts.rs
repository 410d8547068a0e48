// SPDX-License-Identifier: Apache-2.0
//! The captured adverts of one instance.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use vipwatch_api::{
    AdvertPresence, AdvertSignature, AdvertSourceItem, AdvertsItem, CaptureState, Timestamp,
};
use vipwatch_core::Moment;
use vipwatch_core::vrrp::AdvertKind;
use vipwatch_core::witness::{
    AdvertOrigin, LinkWitness, OwnSettings, RouterWitness, Silence, SourceRecord, differences,
};
use vipwatch_linux::clock;

use super::timestamp;
use crate::discovery::InstanceConfig;
use crate::processes::ProcessView;
use crate::state::StateStore;
use crate::witness::{CaptureStatus, InstanceEvidence, configured_settings};

/// The captured adverts of an instance; `None` if they are not captured.
pub(super) fn adverts(store: &StateStore, instance: &InstanceConfig) -> Option<AdvertsItem> {
    let processes = store.processes();
    store
        .witness
        .read(instance, |evidence| item(instance, evidence, processes.as_deref(), &Now::read()))
}

/// The same moment on both clocks.
struct Now {
    monotonic: Moment,
    real: SystemTime,
}

impl Now {
    fn read() -> Self {
        Self { monotonic: clock::now(), real: SystemTime::now() }
    }

    fn timestamp(&self, moment: Moment) -> Timestamp {
        let age = self.monotonic.since(moment);
        timestamp(self.real.checked_sub(age).unwrap_or(SystemTime::UNIX_EPOCH))
    }
}

fn item(
    instance: &InstanceConfig,
    evidence: InstanceEvidence<'_>,
    processes: Option<&ProcessView>,
    now: &Now,
) -> AdvertsItem {
    let InstanceEvidence { status, has_sent, witness, key, .. } = evidence;
    let (capture, error) = capture_state(status);
    let own = configured_settings(instance);
    let silence = match capture {
        CaptureState::Running => evidence.silence(instance, processes, now.monotonic),
        _ => Silence::Unknown,
    };
    let (presence, silent) = match silence {
        Silence::Advertised => (AdvertPresence::Advertised, None),
        Silence::Silent { time, .. } => (AdvertPresence::Silent, Some(time)),
        Silence::Unknown => (AdvertPresence::Unknown, None),
    };
    let undecoded = witness.router(key).map(RouterWitness::undecoded).unwrap_or_default();
    let sources = witness.both_kinds(key).flat_map(|router| {
        let kind = router.key().kind;
        router.sources().iter().map(move |record| (kind, record))
    });
    let mut sources: Vec<(AdvertKind, &SourceRecord)> = sources.collect();
    sources.sort_by_key(|(_, record)| std::cmp::Reverse(record.at));
    AdvertsItem {
        link: instance.vrrp.interface_name(),
        capture,
        error,
        sent: has_sent,
        since: now.timestamp(witness.since()),
        presence,
        silent_ms: silent.map(millis),
        sources: sources
            .into_iter()
            .map(|(kind, record)| AdvertSourceItem {
                unicast: kind == AdvertKind::Unicast,
                ..source(record, &own, witness, now)
            })
            .collect(),
        undecoded: undecoded.count,
        last_undecoded_at: undecoded.last.map(|at| now.timestamp(at)),
        bad: bad_counts(witness),
        last_bad_at: witness.bad().last.map(|last| now.timestamp(last.at)),
        dropped: witness.overrun().map_or(0, |overrun| overrun.total_dropped),
        overrun_at: witness.overrun().map(|overrun| now.timestamp(overrun.to)),
        other_vrids: witness.other_vrids(),
    }
}

fn capture_state(status: &CaptureStatus) -> (CaptureState, Option<String>) {
    match status {
        CaptureStatus::Running => (CaptureState::Running, None),
        CaptureStatus::NoNetns => (CaptureState::NoNamespace, None),
        CaptureStatus::NoLink => (CaptureState::NoLink, None),
        CaptureStatus::LinkDown => (CaptureState::LinkDown, None),
        CaptureStatus::Refused(error) => (CaptureState::Refused, Some(error.clone())),
        CaptureStatus::Failed(error) => (CaptureState::Failed, Some(error.clone())),
    }
}

fn source(
    record: &SourceRecord,
    own: &OwnSettings,
    witness: &LinkWitness,
    now: &Now,
) -> AdvertSourceItem {
    let is_own = record.origin == AdvertOrigin::Own;
    AdvertSourceItem {
        source: record.source.to_string(),
        own: is_own,
        advertising: !record.is_ended(witness.judged_at(now.monotonic)),
        priority: record.priority,
        previous_priority: record.previous_priority.map(|(priority, _)| priority),
        interval_ms: millis(record.interval),
        version: record.version.number(),
        authentication: record.authentication.word().to_owned(),
        signature: record.signature.map(|signature| AdvertSignature {
            key_id: signature.key_id,
            clock_difference_ms: signature.difference.as_millis(),
        }),
        unicast: false,
        addresses: record.addresses().map(|ip| ip.to_string()).collect(),
        at: now.timestamp(record.at),
        age_ms: millis(now.monotonic.since(record.at)),
        since: now.timestamp(record.since),
        adverts: record.adverts,
        lost: record.lost,
        jitter_us: u64::try_from(record.jitter.as_micros()).unwrap_or(u64::MAX),
        differences: if is_own { Vec::new() } else { differences(own, record) },
    }
}

/// The packets that were not believed, by the word for their error.
fn bad_counts(witness: &LinkWitness) -> BTreeMap<String, u64> {
    let bad = witness.bad();
    let by_error =
        bad.by_error().map(|(error, count)| (error.as_ref().to_owned(), u64::from(count)));
    let routed = (bad.routed > 0).then(|| ("routed".to_owned(), u64::from(bad.routed)));
    by_error.chain(routed).collect()
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
