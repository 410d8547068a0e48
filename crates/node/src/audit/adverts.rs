// SPDX-License-Identifier: Apache-2.0
//! The facts about one instance that captured adverts show.

use vipwatch_core::audit::{AdvertFacts, AdvertQuestion, AdvertSilence};
use vipwatch_core::{Moment, Role};
use vipwatch_linux::clock;

use crate::processes::ProcessView;
use crate::state::InstanceEntry;
use crate::witness::{
    CaptureStatus, InstanceEvidence, WitnessTable, configured_settings, expected_down_interval,
};

/// Gathers the facts about an instance with this role; `processes` are those of this moment, if they are read. `None` if its
/// adverts are not captured.
pub(super) fn gather(
    witness: &WitnessTable,
    entry: &InstanceEntry,
    role: &Role,
    processes: Option<&ProcessView>,
) -> Option<AdvertFacts> {
    let gather =
        |evidence: InstanceEvidence<'_>| facts(entry, role, evidence, processes, clock::now());
    witness.read(&entry.instance, gather).flatten()
}

/// The facts from this evidence, without the silence of a link that may pass no advert up, or of a keepalived that still waits
/// after its start; `None` if the capture does not run.
pub(crate) fn facts(
    entry: &InstanceEntry,
    role: &Role,
    evidence: InstanceEvidence<'_>,
    processes: Option<&ProcessView>,
    now: Moment,
) -> Option<AdvertFacts> {
    let instance = &entry.instance;
    let mut facts = ask(entry, role, evidence, now, AdvertFacts::of)?;
    let is_held_back = || processes.is_some_and(|view| view.is_held_back(instance));
    let is_shown =
        |_: &AdvertSilence| evidence.shows_silence(instance, processes) && !is_held_back();
    facts.silence = facts.silence.filter(is_shown);
    Some(facts)
}

/// Calls `answer` with the question about an instance; `None` if the capture does not run.
pub(crate) fn ask<T>(
    entry: &InstanceEntry,
    role: &Role,
    evidence: InstanceEvidence<'_>,
    now: Moment,
    answer: impl FnOnce(&AdvertQuestion<'_>) -> T,
) -> Option<T> {
    let InstanceEvidence { status, witness, key, .. } = evidence;
    (*status == CaptureStatus::Running).then(|| {
        answer(&AdvertQuestion {
            witness,
            key,
            own: &configured_settings(&entry.instance),
            priority: entry.instance.vrrp.priority,
            down_interval: expected_down_interval(&entry.instance),
            role,
            role_since: entry.role_since,
            now,
        })
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;

    use vipwatch_core::keepalived::StartupDelay;
    use vipwatch_core::witness::{LinkWitness, RoutedAdverts};
    use vipwatch_linux::process_table::since_boot;

    use super::*;
    use crate::discovery;
    use crate::witness::router_key;

    /// Whether the audit finds silence where no advert has arrived for a minute.
    fn is_silent(
        delay: StartupDelay,
        has_membership: bool,
        view: impl Fn(&Path) -> ProcessView,
    ) -> bool {
        let mut instance = discovery::example();
        Arc::make_mut(&mut instance.vrrp).startup_delay = delay;
        let key = router_key(&instance).unwrap();
        let at = |seconds| Moment::new(Duration::from_secs(seconds));
        let mut witness = LinkWitness::new(at(0));
        witness.follow([(key, RoutedAdverts::Refused)]);
        witness.drained(at(60), 0);
        let view = view(&instance.file);
        let entry = InstanceEntry::new(Arc::new(instance), Role::Backup, Arc::from([]));
        let status = &CaptureStatus::Running;
        let evidence =
            InstanceEvidence { status, has_sent: true, has_membership, witness: &witness, key };
        let facts = facts(&entry, &Role::Backup, evidence, Some(&view), at(60));
        facts.unwrap().silence.is_some()
    }

    #[test]
    fn the_silence_of_a_link_without_membership_and_keepalived_is_not_known() {
        let is_silent = |has_membership| {
            is_silent(StartupDelay::default(), has_membership, |_| ProcessView::default())
        };
        assert!(is_silent(true) && !is_silent(false));
    }

    #[test]
    fn there_is_no_silence_while_keepalived_holds_its_instances_back() {
        const SHORT: Duration = Duration::from_millis(1);
        const LONG: Duration = Duration::from_hours(1);
        let up = since_boot();
        let is_silent = |after_start, after_boot, parent, child| {
            let delay = StartupDelay { after_start, after_boot };
            is_silent(delay, true, |file| ProcessView::running_since(file, parent, child))
        };
        let never = Duration::ZERO;
        assert!(is_silent(never, never, up, up), "no delay");
        assert!(!is_silent(LONG, never, up, up), "keepalived has just started");
        assert!(is_silent(SHORT, SHORT, never, never), "it started long ago");
        // A child that started later waits again.
        assert!(is_silent(up / 4, never, never, never) && !is_silent(up / 4, never, never, up));
        assert!(!is_silent(never, up + LONG, never, never), "the machine has just started");
    }
}
