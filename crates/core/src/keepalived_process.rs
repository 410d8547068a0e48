// SPDX-License-Identifier: Apache-2.0
//! The keepalived of one instance: from facts about its processes to a state and to findings.
//!
//! ```text
//!   no process uses the configuration ──▶ never seen: NotFound;  seen before: Gone
//!   a parent process exists ──▶ starts again and again: CrashLooping
//!                          ├──▶ no VRRP child: VrrpChildMissing
//!                          ├──▶ the VRRP child does not run: Stopped (signal, tracer) or Frozen (cgroup)
//!                          └──▶ Runs
//! ```
//!
//! The caller finds the processes and passes in the facts. Times are texts, because `core` has no calendar.

use std::time::Duration;

use crate::FindingKind;
use crate::audit::Finding;
use crate::snapshot::KEEPALIVED_PROTOCOL;

/// Starts of a keepalived, or of a VRRP child below one parent, are counted within this time.
pub const CRASH_LOOP_SPAN: Duration = Duration::from_mins(1);

/// From this number of starts within [`CRASH_LOOP_SPAN`] on, keepalived is in a crash loop. A restart by an operator
/// is one start of a parent and one of its child, which count as one.
pub const CRASH_LOOP_STARTS: u32 = 4;

/// Why a process exists and does not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Suspension {
    /// A signal has stopped it: SIGSTOP, SIGTSTP, SIGTTIN or SIGTTOU.
    Signal,
    /// A debugger has stopped it.
    Tracer,
    /// Its cgroup, or one above it, is frozen.
    Freezer,
}

impl Suspension {
    /// A description for texts: "is …".
    fn text(self) -> &'static str {
        match self {
            Self::Signal => "stopped by a signal",
            Self::Tracer => "stopped by a debugger",
            Self::Freezer => "frozen by its cgroup",
        }
    }
}

/// The process of keepalived that sends and receives VRRP adverts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum VrrpChild {
    /// It exists.
    Present {
        /// Its pid.
        pid: u32,
        /// Why it does not run; `None` if it runs.
        suspension: Option<Suspension>,
    },
    /// The parent has no such child.
    Missing,
    /// It is not known which child of several it is.
    Unknown,
}

/// A keepalived with a living parent process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunningKeepalived {
    /// The pid of the parent.
    pub pid: u32,
    /// When the parent started.
    pub since: String,
    /// Why the parent does not run; `None` if it runs.
    pub suspension: Option<Suspension>,
    /// The VRRP child.
    pub vrrp_child: VrrpChild,
    /// When keepalived read its configuration, if the file has changed since; else `None`.
    pub outdated_since: Option<String>,
    /// Whether the changed file is missing, or has problems for which keepalived may end when it reads it.
    pub is_file_refused: bool,
}

/// Whether a process uses the configuration of the instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeepalivedPresence {
    /// It is not known, for this reason. Nothing is concluded.
    Unknown(String),
    /// No process uses the configuration, and none has since this program started.
    NotFound,
    /// A process used the configuration, and has ended.
    Gone {
        /// The pid that the parent had.
        pid: u32,
        /// When the end was noticed.
        at: String,
    },
    /// A process uses the configuration.
    Running(RunningKeepalived),
}

/// A pid file that names a living process which is not this keepalived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PidFileStranger {
    /// The pid file.
    pub file: String,
    /// The pid in it.
    pub pid: u32,
    /// The program of that process.
    pub program: String,
}

/// Whether the kernel has addresses of the instance, and which kind of program added them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeldAddresses {
    /// It has none.
    None,
    /// It has some, and the program that added them is not known.
    Unmarked,
    /// Keepalived added them.
    OfKeepalived,
    /// Another program added them, with this protocol (`IFA_PROTO`).
    OfOther(u8),
}

impl HeldAddresses {
    /// Addresses with this protocol; 0 if it is not known or differs between them.
    pub fn of_protocol(protocol: u8) -> Self {
        match protocol {
            0 => Self::Unmarked,
            KEEPALIVED_PROTOCOL => Self::OfKeepalived,
            other => Self::OfOther(other),
        }
    }

    fn is_any(self) -> bool {
        self != Self::None
    }

    /// The end of a text about a keepalived that does not work.
    fn text(self) -> String {
        match self {
            Self::None => String::new(),
            Self::Unmarked => ", and its address is still here".to_owned(),
            Self::OfKeepalived => {
                ", and the address that keepalived added is still here".to_owned()
            }
            Self::OfOther(protocol) => format!(
                ", and its address is here: another program added it (address protocol {protocol:#04x})"
            ),
        }
    }
}

/// All facts about the keepalived of one instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeepalivedFacts {
    /// The configuration file; `None` for a Neutron router: its id names the file.
    pub config: Option<String>,
    /// Whether a process uses the configuration.
    pub presence: KeepalivedPresence,
    /// The number of starts within [`CRASH_LOOP_SPAN`]: of the parent or of the VRRP child, the greater of both.
    pub recent_starts: u32,
    /// A pid file with the pid of another process; `None` if there is none.
    pub stranger: Option<PidFileStranger>,
}

/// The state of a keepalived, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::Display)]
#[strum(serialize_all = "kebab-case")]
pub enum KeepalivedState {
    /// It runs.
    Runs,
    /// Its VRRP child is stopped by a signal or a debugger.
    Stopped,
    /// Its VRRP child is frozen by its cgroup.
    Frozen,
    /// It has ended.
    Gone,
    /// It has not been seen since this program started.
    NotFound,
    /// The parent runs without a VRRP child.
    VrrpChildMissing,
    /// It, or its VRRP child, starts again and again.
    CrashLooping,
    /// The processes could not be read.
    Unknown,
}

impl KeepalivedFacts {
    /// The state in one word.
    pub fn state(&self) -> KeepalivedState {
        if self.is_crash_looping() {
            return KeepalivedState::CrashLooping;
        }
        match &self.presence {
            KeepalivedPresence::Unknown(_) => KeepalivedState::Unknown,
            KeepalivedPresence::NotFound => KeepalivedState::NotFound,
            KeepalivedPresence::Gone { .. } => KeepalivedState::Gone,
            KeepalivedPresence::Running(running) => running.state(),
        }
    }

    /// Whether a keepalived runs and works; `None` if that is not known.
    pub fn works(&self) -> Option<bool> {
        match self.state() {
            KeepalivedState::Unknown => None,
            state => Some(state == KeepalivedState::Runs),
        }
    }

    fn is_crash_looping(&self) -> bool {
        self.recent_starts >= CRASH_LOOP_STARTS
    }

    /// Everything that is wrong with the processes.
    pub fn findings(&self, held: HeldAddresses) -> Vec<Finding> {
        let mut findings = Vec::new();
        findings.extend(self.crash_loop_finding());
        match &self.presence {
            KeepalivedPresence::Unknown(reason) => findings.push(Finding::new(
                FindingKind::KeepalivedNotReadable,
                format!("it is not known whether keepalived runs: {reason}"),
            )),
            KeepalivedPresence::NotFound => findings.push(self.not_found_finding(held)),
            KeepalivedPresence::Gone { pid, at } => {
                let config = self.config_text();
                let text = format!("keepalived (pid {pid}{config}) ended at {at}");
                findings.push(gone_finding(text, held));
            }
            KeepalivedPresence::Running(running) => {
                findings.extend(running.child_finding(held));
                findings.extend(running.suspension_finding(held));
                findings.extend(running.outdated_finding(self.config.as_deref()));
            }
        }
        findings.extend(self.stranger_finding());
        findings
    }

    fn config_text(&self) -> String {
        self.config.as_ref().map(|config| format!(", {config}")).unwrap_or_default()
    }

    fn not_found_finding(&self, held: HeldAddresses) -> Finding {
        let text = match &self.config {
            Some(config) => format!("no running keepalived uses {config}"),
            None => "no running keepalived uses the configuration of this router".to_owned(),
        };
        gone_finding(text, held)
    }

    fn crash_loop_finding(&self) -> Option<Finding> {
        let seconds = CRASH_LOOP_SPAN.as_secs();
        let config = self.config.as_ref().map(|config| format!(" ({config})")).unwrap_or_default();
        // The text has no exact number: it would change with each start.
        self.is_crash_looping().then(|| Finding::new(FindingKind::KeepalivedCrashLoop, format!(
                "keepalived{config} started {CRASH_LOOP_STARTS} times or more within {seconds} s"
            )))
    }

    fn stranger_finding(&self) -> Option<Finding> {
        let PidFileStranger { file, pid, program } = self.stranger.as_ref()?;
        Some(Finding::new(
            FindingKind::KeepalivedPidFileWrong,
            format!("the pid file {file} names process {pid}, which is {program}"),
        ))
    }
}

impl RunningKeepalived {
    fn state(&self) -> KeepalivedState {
        let suspension = match self.vrrp_child {
            VrrpChild::Missing => return KeepalivedState::VrrpChildMissing,
            VrrpChild::Present { suspension, .. } => suspension,
            VrrpChild::Unknown => self.suspension,
        };
        match suspension {
            None => KeepalivedState::Runs,
            Some(Suspension::Signal | Suspension::Tracer) => KeepalivedState::Stopped,
            Some(Suspension::Freezer) => KeepalivedState::Frozen,
        }
    }

    fn child_finding(&self, held: HeldAddresses) -> Option<Finding> {
        let Self { pid, since, .. } = self;
        let left = held.text();
        (self.vrrp_child == VrrpChild::Missing).then(|| {
            Finding::new(
                FindingKind::KeepalivedVrrpChildMissing,
                format!("keepalived (pid {pid}, since {since}) has no VRRP child process{left}"),
            )
        })
    }

    fn suspension_finding(&self, held: HeldAddresses) -> Option<Finding> {
        let Self { pid: parent, since, .. } = self;
        let (pid, suspension) = match self.vrrp_child {
            VrrpChild::Present { pid, suspension: Some(suspension) } => (pid, suspension),
            VrrpChild::Present { .. } | VrrpChild::Missing | VrrpChild::Unknown => {
                return self.parent_suspension_finding();
            }
        };
        let how = suspension.text();
        let text = format!(
            "the VRRP process of keepalived (pid {pid}, parent {parent} since {since}) is {how}"
        );
        Some(if held.is_any() {
            Finding::new(FindingKind::KeepalivedFrozenAddressLeft, format!("{text}{}", held.text()))
        } else {
            Finding::new(FindingKind::KeepalivedFrozen, text)
        })
    }

    /// The parent alone does not run: the VRRP child goes on, but it is not started again and not reloaded.
    fn parent_suspension_finding(&self) -> Option<Finding> {
        let Self { pid, since, .. } = self;
        let how = self.suspension?.text();
        Some(Finding::new(
            FindingKind::KeepalivedParentFrozen,
            format!("the parent process of keepalived (pid {pid}, since {since}) is {how}"),
        ))
    }

    fn outdated_finding(&self, config: Option<&str>) -> Option<Finding> {
        let (pid, loaded) = (self.pid, self.outdated_since.as_ref()?);
        let name = config.unwrap_or("its configuration");
        let finding = Finding::new(
            FindingKind::KeepalivedReloadPending,
            format!(
                "keepalived (pid {pid}) read {name} at {loaded}, and the file has changed since"
            ),
        );
        // The file of a router decides at once.
        let hint = if self.is_file_refused {
            "do not reload or restart keepalived: it may end, or lose its addresses, with the file as it is. See configuration-problem, and correct or restore the file first"
        } else if config.is_some() {
            finding.hint
        } else {
            "the edit has no effect yet, but floating addresses and routes are compared with the file: reload keepalived \
             (kill -HUP), or restore the file"
        };
        Some(Finding { hint, ..finding })
    }
}

fn gone_finding(text: String, held: HeldAddresses) -> Finding {
    if held.is_any() {
        Finding::new(FindingKind::KeepalivedGoneAddressLeft, format!("{text}{}", held.text()))
    } else {
        Finding::new(FindingKind::KeepalivedGone, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn running() -> RunningKeepalived {
        RunningKeepalived {
            pid: 10,
            since: "10:00".to_owned(),
            suspension: None,
            vrrp_child: VrrpChild::Present { pid: 11, suspension: None },
            outdated_since: None,
            is_file_refused: false,
        }
    }

    fn facts(presence: KeepalivedPresence) -> KeepalivedFacts {
        let config = Some("/etc/k.conf".to_owned());
        KeepalivedFacts { config, presence, recent_starts: 1, stranger: None }
    }

    fn names(facts: &KeepalivedFacts, is_holding: bool) -> Vec<&'static str> {
        let held = if is_holding { HeldAddresses::Unmarked } else { HeldAddresses::None };
        facts.findings(held).iter().map(|finding| finding.kind.name()).collect()
    }

    #[test]
    fn a_running_keepalived_gives_no_finding() {
        let facts = facts(KeepalivedPresence::Running(running()));
        assert_eq!(facts.state(), KeepalivedState::Runs);
        assert_eq!(names(&facts, true), [""; 0]);
    }

    #[test]
    fn a_keepalived_that_ended_or_never_started_is_found_with_and_without_the_address() {
        let gone = facts(KeepalivedPresence::Gone { pid: 10, at: "10:05".to_owned() });
        let never = facts(KeepalivedPresence::NotFound);
        assert_eq!(
            (gone.state(), never.state()),
            (KeepalivedState::Gone, KeepalivedState::NotFound)
        );
        for facts in [&gone, &never] {
            assert_eq!(names(facts, true), ["keepalived-gone-address-left"]);
            assert_eq!(names(facts, false), ["keepalived-gone"]);
        }
        let text = &gone.findings(HeldAddresses::Unmarked)[0].text;
        assert_eq!(
            text,
            "keepalived (pid 10, /etc/k.conf) ended at 10:05, and its address is still here"
        );
        assert_eq!(
            never.findings(HeldAddresses::None)[0].text,
            "no running keepalived uses /etc/k.conf"
        );
    }

    #[test]
    fn the_address_that_another_program_added_is_not_called_a_remainder_of_keepalived() {
        let gone = facts(KeepalivedPresence::Gone { pid: 10, at: "10:05".to_owned() });
        let text = |protocol| gone.findings(HeldAddresses::of_protocol(protocol))[0].text.clone();
        assert!(text(0).ends_with("and its address is still here"));
        assert!(text(0x12).ends_with("and the address that keepalived added is still here"));
        assert!(text(4).ends_with("another program added it (address protocol 0x04)"));
    }

    #[test]
    fn a_suspended_vrrp_child_is_worse_than_a_suspended_parent() {
        let mut keepalived = running();
        keepalived.suspension = Some(Suspension::Signal);
        let parent_only = facts(KeepalivedPresence::Running(keepalived.clone()));
        assert_eq!(names(&parent_only, true), ["keepalived-parent-frozen"]);
        assert_eq!(parent_only.state(), KeepalivedState::Runs);
        let states = [
            (Suspension::Signal, KeepalivedState::Stopped),
            (Suspension::Tracer, KeepalivedState::Stopped),
            (Suspension::Freezer, KeepalivedState::Frozen),
        ];
        for (suspension, state) in states {
            let suspension = Some(suspension);
            keepalived.vrrp_child = VrrpChild::Present { pid: 11, suspension };
            let facts = facts(KeepalivedPresence::Running(keepalived.clone()));
            assert_eq!(facts.state(), state);
            assert_eq!(names(&facts, true), ["keepalived-frozen-address-left"]);
            assert_eq!(names(&facts, false), ["keepalived-frozen"]);
        }
    }

    #[test]
    fn a_missing_vrrp_child_is_found_and_an_unknown_one_is_not() {
        let mut keepalived = running();
        keepalived.vrrp_child = VrrpChild::Missing;
        let missing = facts(KeepalivedPresence::Running(keepalived.clone()));
        assert_eq!(missing.state(), KeepalivedState::VrrpChildMissing);
        assert_eq!(names(&missing, true), ["keepalived-vrrp-child-missing"]);
        keepalived.vrrp_child = VrrpChild::Unknown;
        let unknown = facts(KeepalivedPresence::Running(keepalived));
        assert_eq!(unknown.state(), KeepalivedState::Runs);
        assert_eq!(names(&unknown, true), [""; 0]);
    }

    #[test]
    fn a_changed_configuration_a_crash_loop_and_a_wrong_pid_file_are_found() {
        let outdated_since = Some("10:00".to_owned());
        let outdated = RunningKeepalived { outdated_since, ..running() };
        let mut facts = facts(KeepalivedPresence::Running(outdated));
        assert_eq!(names(&facts, true), ["keepalived-reload-pending"]);
        let hint = |facts: &KeepalivedFacts| facts.findings(HeldAddresses::None)[0].hint;
        assert!(hint(&facts).contains("roles follow what keepalived has loaded"));
        let router = KeepalivedFacts { config: None, ..facts.clone() };
        assert!(hint(&router).contains("compared with the file"));
        if let KeepalivedPresence::Running(running) = &mut facts.presence {
            running.is_file_refused = true;
        }
        assert!(hint(&facts).contains("do not reload"), "the reload would end it");
        facts.recent_starts = CRASH_LOOP_STARTS;
        let (file, program) = ("/run/k.pid".to_owned(), "sleep".to_owned());
        facts.stranger = Some(PidFileStranger { file, pid: 9, program });
        let expected =
            ["keepalived-crash-loop", "keepalived-reload-pending", "keepalived-pid-file-wrong"];
        assert_eq!(names(&facts, true), expected);
        assert_eq!(facts.state(), KeepalivedState::CrashLooping);
    }

    #[test]
    fn processes_that_cannot_be_read_are_reported_and_prove_nothing() {
        let facts = facts(KeepalivedPresence::Unknown("permission denied".to_owned()));
        assert_eq!(facts.state(), KeepalivedState::Unknown);
        assert_eq!(names(&facts, true), ["keepalived-not-readable"]);
    }
}
