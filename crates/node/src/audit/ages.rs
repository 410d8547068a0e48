// SPDX-License-Identifier: Apache-2.0
//! When the fact behind a finding began, where that is known. Otherwise the age of a finding counts from the first audit
//! that has found it.

use std::net::IpAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use vipwatch_core::audit::{AdvertFacts, AuditFacts};
use vipwatch_core::witness::RouterWitness;
use vipwatch_core::{FindingKind, Moment};
use vipwatch_linux::clock;

use super::KnownTimes;
use crate::receiver::ReceiverHandle;
use crate::state::InstanceEntry;
use crate::witness::{InstanceEvidence, WitnessTable};

/// What the ages of the findings about one instance follow from.
#[derive(Debug, Clone, Copy)]
pub(super) struct FactTimes<'a> {
    pub(super) entry: &'a InstanceEntry,
    pub(super) facts: &'a AuditFacts,
    pub(super) known: KnownTimes,
    pub(super) witness: &'a WitnessTable,
    pub(super) receiver_handle: &'a ReceiverHandle,
}

impl FactTimes<'_> {
    /// As [`Self::since`], for a finding that the last run found at `remembered`; `None` if it did not.
    ///
    /// The processes are known since the node started: an earlier end is remembered only.
    pub(super) fn since_with(
        &self,
        kind: FindingKind,
        remembered: Option<SystemTime>,
    ) -> Option<SystemTime> {
        let since = self.since(kind);
        let Some(remembered) = remembered else { return since };
        let is_later = since.is_none_or(|since| since > remembered || since == UNIX_EPOCH);
        let is_better = since.is_none() || (kind.is_of_processes() && is_later);
        if is_better { Some(remembered) } else { since }
    }

    /// When the fact behind a finding of this kind began; `None` if that is not known.
    fn since(&self, kind: FindingKind) -> Option<SystemTime> {
        use FindingKind as Kind;
        match kind {
            Kind::KeepalivedPidFileWrong => self.known.processes.max(self.pid_file_written()),
            // These depend on the role too. A keepalived that has just started or continued changes it before the process
            // is known.
            Kind::KeepalivedGone
            | Kind::KeepalivedGoneAddressLeft
            | Kind::KeepalivedFrozen
            | Kind::KeepalivedFrozenAddressLeft => self.known.processes.max(self.role_since()),
            // The processes are older than the edit.
            Kind::KeepalivedReloadPending => None,
            _ if kind.is_of_processes() => self.known.processes,
            Kind::SyncGroupSplit => self.known.sync_group,
            Kind::NamespaceMissing
            | Kind::LinkFault
            | Kind::PartlyHeld
            | Kind::KernelNotRead
            | Kind::AgentBehind
            | Kind::ReportMissing => self.role_since(),
            // The role and the file, or the report, disagree since the later one of both.
            Kind::StateFileDiffers => self.role_since().max(self.state_file_written()),
            Kind::StateFileNonsense => self.state_file_written(),
            Kind::ReportDiffers => self.role_since().max(self.reported_at()),
            Kind::TwoPrimaries => {
                let since =
                    self.host_since(|facts| facts.second_primary.as_ref()?.source.into())?;
                Some(self.role_since().map_or(since, |role| role.max(since)))
            }
            Kind::NoPrimary => self.last_advert().max(self.role_since()),
            _ => None,
        }
    }

    /// Since when the instance has its role; `None` if that is not known, or if the published role is wrong.
    fn role_since(&self) -> Option<SystemTime> {
        let is_right = self.facts.published.is_none();
        Some(self.entry.since).filter(|since| is_right && *since > UNIX_EPOCH)
    }

    fn state_file_written(&self) -> Option<SystemTime> {
        let file = self.entry.instance.file.with_file_name("state");
        std::fs::metadata(file).and_then(|metadata| metadata.modified()).ok()
    }

    /// When the pid file was written: a process that has just started may not be known yet.
    fn pid_file_written(&self) -> Option<SystemTime> {
        let stranger = self.facts.keepalived.as_ref()?.stranger.as_ref()?;
        std::fs::metadata(&stranger.file).and_then(|metadata| metadata.modified()).ok()
    }

    fn reported_at(&self) -> Option<SystemTime> {
        let status = self.receiver_handle.status()?;
        let view = status.view.lock().ok()?;
        Some(view.instances.get(&self.entry.instance.id)?.at)
    }

    /// When the other host that `source` chooses began to advertise.
    fn host_since(
        &self,
        source: impl FnOnce(&AdvertFacts) -> Option<IpAddr>,
    ) -> Option<SystemTime> {
        let source = source(self.facts.adverts.as_ref()?)?;
        let moment = self.witness.read(&self.entry.instance, |evidence| {
            let mut routers = evidence.witness.both_kinds(evidence.key);
            routers.find_map(|router| {
                let record = router.sources().iter().find(|record| record.source == source);
                record.map(|record| record.since)
            })
        });
        wall_clock(moment.flatten()?)
    }

    /// When the last advert was sent, or else when the capture began.
    fn last_advert(&self) -> Option<SystemTime> {
        self.of_router(|router, capture_since| {
            let last = router.sources().iter().map(|record| record.at).max();
            let last = last.max(router.undecoded().last);
            Some(last.map_or(capture_since, |last| last.max(capture_since)))
        })
    }

    /// The time that `read` finds in the adverts; it also gets the beginning of the capture.
    fn of_router(
        &self,
        read: impl FnOnce(&RouterWitness, Moment) -> Option<Moment>,
    ) -> Option<SystemTime> {
        let moment = self.witness.read(&self.entry.instance, |evidence: InstanceEvidence<'_>| {
            read(evidence.witness.router(evidence.key)?, evidence.witness.since())
        });
        wall_clock(moment.flatten()?)
    }
}

fn wall_clock(moment: Moment) -> Option<SystemTime> {
    SystemTime::now().checked_sub(clock::now().since(moment))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use vipwatch_core::Role;
    use vipwatch_core::keepalived_process::{KeepalivedFacts, KeepalivedPresence, PidFileStranger};

    use super::*;

    #[test]
    fn a_pid_file_that_a_starting_keepalived_has_just_written_is_as_old_as_the_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().display().to_string();
        let stranger = PidFileStranger { file: path, pid: 7, program: "keepalived".to_owned() };
        let mut facts = AuditFacts::new(Role::Backup);
        facts.keepalived = Some(KeepalivedFacts {
            config: None,
            presence: KeepalivedPresence::NotFound,
            recent_starts: 0,
            stranger: Some(stranger),
        });
        let instance = Arc::new(crate::discovery::example());
        let entry = InstanceEntry::new(instance, Role::Backup, Arc::from([]));
        let written = file.as_file().metadata().unwrap().modified().unwrap();
        let since = |processes: SystemTime| {
            let known = KnownTimes { processes: Some(processes), sync_group: None };
            let (witness, receiver_handle) = (&WitnessTable::default(), &ReceiverHandle::default());
            let times = FactTimes { entry: &entry, facts: &facts, known, witness, receiver_handle };
            times.since(FindingKind::KeepalivedPidFileWrong).unwrap()
        };
        assert_eq!(since(UNIX_EPOCH), written);
        let later = written + Duration::from_mins(1);
        assert_eq!(since(later), later, "the processes have changed since");
    }

    #[test]
    fn a_role_that_a_starting_keepalived_has_changed_makes_its_absence_a_new_finding() {
        let facts = AuditFacts::new(Role::Backup);
        let instance = Arc::new(crate::discovery::example());
        let mut entry = InstanceEntry::new(instance, Role::Backup, Arc::from([]));
        let ended = UNIX_EPOCH + Duration::from_mins(1);
        let known = KnownTimes { processes: Some(ended), sync_group: None };
        let (witness, receiver_handle) = (&WitnessTable::default(), &ReceiverHandle::default());
        let since = |entry: &InstanceEntry, kind| {
            FactTimes { entry, facts: &facts, known, witness, receiver_handle }.since(kind).unwrap()
        };
        entry.since = ended - Duration::from_secs(5);
        assert_eq!(since(&entry, FindingKind::KeepalivedGone), ended);
        entry.since = ended + Duration::from_secs(10);
        assert_eq!(since(&entry, FindingKind::KeepalivedGone), entry.since);
        assert_eq!(since(&entry, FindingKind::KeepalivedFrozen), entry.since);
        assert_eq!(since(&entry, FindingKind::KeepalivedParentFrozen), ended);
    }
}
