// SPDX-License-Identifier: Apache-2.0
//! The inference that a running keepalived is in its state FAULT, or has lowered its priority.
//!
//! keepalived reports its state to its notify scripts, to the single reader of its notify FIFO, and where it is built
//! and configured for that, over D-Bus and SNMP. A second reader of the FIFO would take lines from the first one. So
//! the state is inferred:
//!
//! ```text
//!   backup, keepalived runs, and no node advertises ──▶ a healthy backup would have taken over: in fault
//!   own adverts with less than the configured priority ──▶ a tracked object has failed
//! ```
//!
//! The first one comes together with `no-primary`, which states the observation. `keepalived-fault` adds the probable
//! reason on this node.

use std::time::Duration;

use super::{AdvertSilence, AuditFacts, Finding, SETTLE};
use crate::keepalived_process::{KeepalivedPresence, KeepalivedState, RunningKeepalived};
use crate::{FindingKind, Role};

impl AuditFacts {
    pub(super) fn fault_finding(&self) -> Option<Finding> {
        let keepalived = self.keepalived.as_ref()?;
        let KeepalivedPresence::Running(running) = &keepalived.presence else { return None };
        // A keepalived that is stopped, or has no VRRP child, has a finding of its own.
        if keepalived.state() != KeepalivedState::Runs {
            return None;
        }
        self.silent_finding(running).or_else(|| self.lowered_finding(running))
    }

    fn silent_finding(&self, running: &RunningKeepalived) -> Option<Finding> {
        let AdvertSilence { down_interval, undecoded } = self.adverts.as_ref()?.silence?;
        // keepalived may accept adverts that vipwatch cannot decode.
        let word = if undecoded > 0 { "probable" } else { "inferred" };
        // After its start, keepalived waits for the master-down interval.
        let had_time = self.keepalived_age.is_some_and(|age| age >= down_interval + SETTLE);
        let is_idle = matches!(self.role, Role::Backup | Role::Unknown(_));
        (is_idle && had_time).then(|| Finding::new(FindingKind::KeepalivedFault, format!(
                "{word}: keepalived (pid {}) runs and is probably in fault: no node has advertised for the \
                 master-down interval of {:.1} s, and it has not taken over",
                running.pid,
                down_interval.as_secs_f64()
            )))
    }

    fn lowered_finding(&self, running: &RunningKeepalived) -> Option<Finding> {
        let LoweredPriority { advertised, configured } = self.adverts.as_ref()?.lowered?;
        // keepalived may still have an earlier priority from the file.
        if running.outdated_since.is_some() {
            return None;
        }
        let text = format!(
            "inferred: keepalived (pid {}) advertises the priority {advertised} instead of {configured}: a tracked \
             script, interface, process or file has probably failed",
            running.pid
        );
        let hint = "another node may take over: check track_script, track_interface, track_process and track_file, and \
                    the log of keepalived";
        Some(Finding { hint, ..Finding::new(FindingKind::KeepalivedFault, text).milder() })
    }
}

/// Own adverts with less than the configured priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoweredPriority {
    /// The priority in the own adverts.
    pub advertised: u8,
    /// The priority in the configuration.
    pub configured: u8,
}

impl LoweredPriority {
    /// Whether the priority in own adverts is lower for long enough; `age` is how long it has been the same.
    pub(super) fn of(advertised: u8, configured: u8, age: Duration) -> Option<Self> {
        let is_lower = advertised != 0 && advertised < configured;
        (is_lower && age >= SETTLE).then_some(Self { advertised, configured })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::AdvertFacts;
    use crate::keepalived_process::{KeepalivedFacts, Suspension, VrrpChild};

    fn facts() -> AuditFacts {
        let running = RunningKeepalived {
            pid: 10,
            since: "10:00".to_owned(),
            suspension: None,
            vrrp_child: VrrpChild::Present { pid: 11, suspension: None },
            outdated_since: None,
            is_file_refused: false,
        };
        let mut facts = AuditFacts::new(Role::Backup);
        facts.keepalived = Some(KeepalivedFacts {
            config: None,
            presence: KeepalivedPresence::Running(running),
            recent_starts: 1,
            stranger: None,
        });
        facts.keepalived_age = Some(Duration::from_mins(1));
        facts.adverts = Some(AdvertFacts {
            silence: Some(AdvertSilence {
                down_interval: Duration::from_millis(3_600),
                undecoded: 0,
            }),
            ..AdvertFacts::default()
        });
        facts
    }

    fn names(facts: &AuditFacts) -> Vec<&'static str> {
        facts.findings().iter().map(|finding| finding.kind.name()).collect()
    }

    fn change(facts: &mut AuditFacts, change: impl FnOnce(&mut RunningKeepalived)) {
        if let Some(KeepalivedFacts { presence: KeepalivedPresence::Running(running), .. }) =
            &mut facts.keepalived
        {
            change(running);
        }
    }

    #[test]
    fn a_backup_that_does_not_take_over_is_probably_in_fault() {
        assert_eq!(names(&facts()), ["no-primary", "keepalived-fault"]);
        let finding = facts().findings().pop().unwrap();
        assert!(finding.text.starts_with("inferred: keepalived (pid 10) runs"), "{}", finding.text);
        assert!(!finding.kind.is_of_processes(), "it follows the adverts");
        let mut undecoded = facts();
        let adverts = undecoded.adverts.as_mut().unwrap();
        adverts.silence.as_mut().unwrap().undecoded = 5;
        let text = undecoded.findings().pop().unwrap().text;
        assert!(text.starts_with("probable: keepalived (pid 10) runs"), "{text}");
    }

    #[test]
    fn a_keepalived_that_cannot_take_over_for_another_reason_is_not_in_fault() {
        let mut starting = facts();
        starting.keepalived_age = Some(Duration::from_secs(4));
        assert_eq!(names(&starting), ["no-primary"], "it has just started");
        let mut stopped = facts();
        change(&mut stopped, |running| {
            let suspension = Some(Suspension::Signal);
            running.vrrp_child = VrrpChild::Present { pid: 11, suspension };
        });
        assert_eq!(names(&stopped), ["keepalived-frozen", "no-primary"]);
        let mut unknown = facts();
        unknown.keepalived = None;
        assert_eq!(names(&unknown), ["no-primary"]);
        let mut advertised = facts();
        advertised.adverts = Some(AdvertFacts::default());
        assert_eq!(names(&advertised), [""; 0]);
    }

    #[test]
    fn own_adverts_with_a_lower_priority_are_found_unless_a_reload_is_pending() {
        let mut facts = facts();
        facts.role = Role::Primary;
        let lowered = LoweredPriority::of(100, 150, SETTLE);
        facts.adverts = Some(AdvertFacts { lowered, ..AdvertFacts::default() });
        assert_eq!(names(&facts), ["keepalived-fault"]);
        let text = &facts.findings()[0].text;
        assert!(text.contains("advertises the priority 100 instead of 150"), "{text}");
        change(&mut facts, |running| running.outdated_since = Some("10:00".to_owned()));
        assert_eq!(names(&facts), ["keepalived-reload-pending"]);
        for (advertised, age) in [(150, SETTLE), (200, SETTLE), (0, SETTLE), (100, SETTLE / 2)] {
            assert_eq!(LoweredPriority::of(advertised, 150, age), None);
        }
    }
}
