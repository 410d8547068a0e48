// SPDX-License-Identifier: Apache-2.0
//! Compares all sources that state the role of an instance: the kernel, the state file, the agent, the
//! monitor's reports, keepalived's configuration and the processes that should run.
//!
//! The kernel is the truth. Each [`Finding`] names one disagreement, describes it and says what to do.
//! The caller keeps the age of each finding.

mod adverts;
mod duplicates;
mod fault;
mod routing;
mod split;
mod sync_group;

use std::time::Duration;

use ipnet::IpNet;

pub use self::adverts::{
    AdvertDisturbance, AdvertFacts, AdvertQuestion, AdvertSilence, OtherHost, SETTLE,
};
pub use self::fault::LoweredPriority;
pub use self::routing::RoutingFacts;
pub use self::split::SplitWatch;
pub use self::sync_group::{SyncGroupFacts, SyncMember, SyncState};
use crate::announce::DuplicateHolder;
use crate::debounce::ReportedState;
use crate::keepalived_process::{HeldAddresses, KeepalivedFacts};
use crate::role::AddressState;
use crate::{Fault, FindingKind, NeutronState, Role, Severity};

/// The content of a state file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StateFileContent {
    /// A state in any spelling of Neutron's.
    NeutronState(NeutronState),
    /// Text that is not a state.
    Invalid(String),
    /// The file does not exist.
    Missing,
    /// The file cannot be read; the text is the error.
    Unreadable(String),
}

/// Whether a process that should run does run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Process {
    /// The process with the pid of the pid file exists.
    Runs,
    /// No process has the pid of the pid file.
    Gone,
    /// There is no pid file.
    Unknown,
}

/// All facts about one instance that the audit compares.
#[derive(Debug, Clone)]
pub struct AuditFacts {
    /// The role that the kernel shows.
    pub role: Role,
    /// The role that the node has published; `None` if it equals `role`.
    pub published: Option<Role>,
    /// Whether adverts show the role, because the instance has no address.
    pub is_advert_role: bool,
    /// The state file of Neutron's monitor; `None` where no state file is expected.
    pub file: Option<StateFileContent>,
    /// The delivery to the agent; `None` where the node does not notify an agent.
    pub agent: Option<AgentKnowledge>,
    /// The last report of the instance's monitor; `None` where no monitor reports to this node.
    pub reported: Option<MonitorReport>,
    /// keepalived's processes; `None` where they are not examined.
    pub keepalived: Option<KeepalivedFacts>,
    /// How long keepalived's processes have been as they are; `None` if it is not known.
    pub keepalived_age: Option<Duration>,
    /// The process of Neutron's monitor.
    pub monitor: Process,
    /// Addresses that decide the role and are not as configured, each with its place.
    pub misplaced: Vec<(IpNet, AddressState)>,
    /// The kind of program that added the held addresses ([`AddressFacts::protocol`](crate::snapshot::AddressFacts)); 0 if
    /// it is not known, or differs between them.
    pub protocol: u8,
    /// The facts from captured adverts; `None` if adverts are not captured.
    pub adverts: Option<AdvertFacts>,
    /// Other stations that claim an address of the instance, by the announcer's check.
    pub duplicates: Vec<DuplicateHolder>,
    /// Floating addresses: number of held ones, and number of all.
    pub floating: (usize, usize),
    /// The sync group of the instance; `None` if it is in none, or if another member stands for the group.
    pub sync_group: Option<SyncGroupFacts>,
    /// Virtual routes and rules that the kernel does not have.
    pub routing: RoutingFacts,
}

/// The last report of a monitor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MonitorReport {
    /// The monitor has never reported.
    Nothing,
    /// The monitor has reported a state.
    State {
        /// The reported state.
        state: ReportedState,
        /// Whether the report is younger than the instance's current role.
        is_current: bool,
    },
}

/// The state that the agent knows.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AgentKnowledge {
    /// The last state that the agent acknowledged; `None` if it has acknowledged none.
    pub acknowledged: Option<NeutronState>,
    /// The error of the last delivery; `None` if it succeeded.
    pub failing: Option<String>,
}

/// One disagreement between the kernel and another source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What it states; the rest follows from it, except for a weaker form and a more specific hint.
    pub kind: FindingKind,
    /// How serious the finding is.
    pub severity: Severity,
    /// A description with the observed values.
    pub text: String,
    /// What an operator should do.
    pub hint: &'static str,
}

impl Finding {
    /// A finding with the severity and the hint of its kind.
    pub fn new(kind: FindingKind, text: String) -> Self {
        Self { kind, severity: kind.severity(), text, hint: kind.hint() }
    }

    /// The same in the weaker form of its kind.
    fn milder(self) -> Self {
        Self { severity: self.kind.milder().unwrap_or(self.severity), ..self }
    }
}

impl AuditFacts {
    /// Facts with a role only; every other source is absent or unknown.
    pub fn new(role: Role) -> Self {
        Self {
            role,
            published: None,
            is_advert_role: false,
            file: None,
            agent: None,
            reported: None,
            keepalived: None,
            keepalived_age: None,
            monitor: Process::Unknown,
            misplaced: Vec::new(),
            protocol: 0,
            adverts: None,
            duplicates: Vec::new(),
            floating: (0, 0),
            sync_group: None,
            routing: RoutingFacts::default(),
        }
    }

    /// All disagreements, in the order kernel, processes, state file, agent, monitor.
    pub fn findings(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        findings.extend(self.published_finding());
        findings.extend(self.role_finding());
        findings.extend(self.misplaced_findings());
        findings.extend(self.floating_finding());
        findings.extend(self.sync_group.as_ref().and_then(SyncGroupFacts::finding));
        if self.role == Role::Primary {
            findings.extend(self.routing.findings());
        }
        findings.extend(self.keepalived_findings());
        findings.extend(self.adverts.iter().flat_map(|facts| facts.findings(self.is_advert_role)));
        findings.extend(duplicates::finding(&self.role, &self.duplicates));
        findings.extend(self.fault_finding());
        findings.extend(self.monitor_process_finding());
        findings.extend(self.state_file_finding());
        findings.extend(self.agent_finding());
        findings.extend(self.report_finding());
        explain_second_primary(&mut findings);
        findings
    }

    fn published_finding(&self) -> Option<Finding> {
        let published = self.published.as_ref()?.as_str();
        Some(Finding::new(
            FindingKind::PublishedRoleWrong,
            format!("the node published {published}, the kernel says {}", self.role.as_str()),
        ))
    }

    fn role_finding(&self) -> Option<Finding> {
        Some(match &self.role {
            Role::Primary | Role::Backup => return None,
            Role::Unknown(_) if self.is_advert_role => return None,
            Role::Fault(fault @ Fault::NoNetns) => {
                Finding::new(FindingKind::NamespaceMissing, fault.to_string())
            }
            Role::Fault(fault) => Finding::new(FindingKind::LinkFault, fault.to_string()),
            Role::Partial { held, total } => Finding::new(
                FindingKind::PartlyHeld,
                format!("{held} of {total} addresses are held"),
            ),
            Role::Unknown(reason) => Finding::new(FindingKind::KernelNotRead, reason.clone()),
        })
    }

    fn misplaced_findings(&self) -> impl Iterator<Item = Finding> {
        self.misplaced.iter().map(|(cidr, state)| {
            Finding::new(FindingKind::AddressMisplaced, format!("{cidr} is {state}"))
        })
    }

    fn floating_finding(&self) -> Option<Finding> {
        let (held, total) = self.floating;
        match self.role {
            Role::Primary if held < total => Some(Finding::new(
                FindingKind::FloatingMissing,
                format!("{} of {total} floating addresses are not held", total - held),
            )),
            Role::Backup | Role::Fault(_) if held > 0 => Some(Finding::new(
                FindingKind::FloatingLeft,
                format!("the instance is not primary, but holds {held} floating addresses"),
            )),
            _ => None,
        }
    }

    fn keepalived_findings(&self) -> Vec<Finding> {
        let held = match self.role {
            Role::Primary | Role::Partial { .. } if !self.is_advert_role => {
                HeldAddresses::of_protocol(self.protocol)
            }
            _ => HeldAddresses::None,
        };
        self.keepalived.as_ref().map(|facts| facts.findings(held)).unwrap_or_default()
    }

    fn monitor_process_finding(&self) -> Option<Finding> {
        (self.monitor == Process::Gone).then(|| {
            Finding::new(FindingKind::MonitorGone, "Neutron's monitor does not run".to_owned())
        })
    }

    fn state_file_finding(&self) -> Option<Finding> {
        let expected = self.role.neutron_state();
        let (kind, text) = match (self.file.as_ref()?, expected) {
            (StateFileContent::NeutronState(written), Some(expected)) if *written != expected => {
                let (written, expected) = (written.as_str(), expected.as_str());
                let text = format!("the state file says {written}, the kernel says {expected}");
                (FindingKind::StateFileDiffers, text)
            }
            (StateFileContent::Invalid(text), _) => {
                let text = format!("the state file says {text:?}");
                (FindingKind::StateFileNonsense, text)
            }
            (StateFileContent::Unreadable(error), _) => {
                let text = format!("the state file cannot be read: {error}");
                (FindingKind::StateFileUnreadable, text)
            }
            (StateFileContent::Missing, Some(_)) => {
                let text = "there is no state file".to_owned();
                (FindingKind::StateFileMissing, text)
            }
            (StateFileContent::NeutronState(_) | StateFileContent::Missing, _) => return None,
        };
        Some(Finding::new(kind, text))
    }

    fn agent_finding(&self) -> Option<Finding> {
        let AgentKnowledge { acknowledged, failing } = self.agent.as_ref()?;
        let expected = self.role.neutron_state()?;
        if *acknowledged == Some(expected) {
            return None;
        }
        let acknowledged = acknowledged.map_or("nothing", NeutronState::as_str);
        let error = failing.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
        let role = self.role.as_str();
        Some(Finding::new(
            FindingKind::AgentBehind,
            format!("the agent has acknowledged {acknowledged}, the kernel says {role}{error}"),
        ))
    }

    fn report_finding(&self) -> Option<Finding> {
        let expected = self.role.neutron_state()?;
        let kernel = expected.as_str();
        let (kind, text) = match self.reported? {
            MonitorReport::Nothing => {
                let text = "the monitor has never reported to this node".to_owned();
                return Some(Finding::new(FindingKind::ReportMissing, text).milder());
            }
            MonitorReport::State { state, .. } if state.neutron_state() == Some(expected) => {
                return None;
            }
            MonitorReport::State { state, is_current: false } => {
                let text = format!(
                    "the kernel says {kernel}, the monitor's last report is older and says {}",
                    state.as_str()
                );
                (FindingKind::ReportMissing, text)
            }
            MonitorReport::State { state, is_current: true } => {
                let text =
                    format!("the monitor reports {}, the kernel says {kernel}", state.as_str());
                (FindingKind::ReportDiffers, text)
            }
        };
        Some(Finding::new(kind, text))
    }
}

/// Names the cause of two primaries if it is here: an address that a dead or stopped keepalived has left. A firewall or
/// the network is then not to blame.
fn explain_second_primary(findings: &mut [Finding]) {
    let is_cause = |finding: &Finding| {
        use FindingKind::{
            KeepalivedFrozenAddressLeft, KeepalivedGoneAddressLeft, KeepalivedVrrpChildMissing,
        };
        matches!(
            finding.kind,
            KeepalivedGoneAddressLeft | KeepalivedFrozenAddressLeft | KeepalivedVrrpChildMissing
        )
    };
    if !findings.iter().any(is_cause) {
        return;
    }
    for finding in findings.iter_mut().filter(|finding| finding.kind == FindingKind::TwoPrimaries) {
        finding.hint = "keepalived does not work here, so the other node took over: start or continue keepalived here, \
                        or remove the address from the link (ip address del)";
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keepalived_process::KeepalivedPresence;

    fn names(facts: &AuditFacts) -> Vec<&'static str> {
        facts.findings().iter().map(|finding| finding.kind.name()).collect()
    }

    #[test]
    fn sources_that_agree_give_no_finding() {
        for role in [Role::Primary, Role::Backup] {
            let state = role.neutron_state();
            let mut facts = AuditFacts::new(role);
            assert_eq!(names(&facts), [""; 0]);
            facts.file = state.map(StateFileContent::NeutronState);
            facts.agent = Some(AgentKnowledge { acknowledged: state, failing: None });
            facts.monitor = Process::Runs;
            assert_eq!(names(&facts), [""; 0]);
        }
    }

    #[test]
    fn a_state_file_or_an_agent_with_an_old_state_is_found() {
        let mut facts = AuditFacts::new(Role::Primary);
        facts.file = Some(StateFileContent::NeutronState(NeutronState::Backup));
        facts.agent =
            Some(AgentKnowledge { acknowledged: None, failing: Some("no listener".to_owned()) });
        assert_eq!(names(&facts), ["state-file-differs", "agent-behind"]);
        let agent = &facts.findings()[1];
        assert_eq!(
            agent.text,
            "the agent has acknowledged nothing, the kernel says primary: no listener"
        );
        facts.file = Some(StateFileContent::Missing);
        assert_eq!(names(&facts)[0], "state-file-missing");
        facts.file = Some(StateFileContent::Invalid("boss".to_owned()));
        assert_eq!(names(&facts)[0], "state-file-nonsense");
    }

    #[test]
    fn a_monitor_with_a_wrong_or_missing_report_is_found() {
        let reported = |state, is_current| Some(MonitorReport::State { state, is_current });
        let mut facts = AuditFacts::new(Role::Primary);
        facts.reported = reported(ReportedState::Primary, false);
        assert_eq!(names(&facts), [""; 0]);
        facts.reported = reported(ReportedState::Backup, true);
        assert_eq!(names(&facts), ["report-differs"]);
        facts.reported = reported(ReportedState::Backup, false);
        assert_eq!(names(&facts), ["report-missing"]);
        facts.reported = Some(MonitorReport::Nothing);
        assert_eq!(names(&facts), ["report-missing"]);
        facts.role = Role::Backup;
        facts.reported = reported(ReportedState::Fault, true);
        assert_eq!(names(&facts), [""; 0], "for Neutron, a fault is backup");
        facts.reported = reported(ReportedState::Unknown, true);
        assert_eq!(names(&facts), ["report-differs"]);
    }

    #[test]
    fn an_address_that_a_stopped_keepalived_left_behind_has_its_own_finding() {
        let mut facts = AuditFacts::new(Role::Primary);
        facts.keepalived = Some(KeepalivedFacts {
            config: None,
            presence: KeepalivedPresence::NotFound,
            recent_starts: 0,
            stranger: None,
        });
        assert_eq!(names(&facts), ["keepalived-gone-address-left"]);
        facts.role = Role::Backup;
        assert_eq!(names(&facts), ["keepalived-gone"]);
    }

    #[test]
    fn the_hint_about_two_primaries_names_a_dead_keepalived_and_else_dropped_adverts() {
        let mut facts = AuditFacts::new(Role::Primary);
        let source = std::net::IpAddr::from([192, 0, 2, 11]);
        let host = OtherHost { source, priority: 100, age: std::time::Duration::ZERO };
        facts.adverts = Some(AdvertFacts { second_primary: Some(host), ..AdvertFacts::default() });
        assert!(facts.findings()[0].hint.contains("keepalived here drops them"));
        facts.keepalived = Some(KeepalivedFacts {
            config: None,
            presence: KeepalivedPresence::NotFound,
            recent_starts: 0,
            stranger: None,
        });
        assert_eq!(names(&facts), ["keepalived-gone-address-left", "two-primaries"]);
        assert!(facts.findings()[1].hint.contains("start or continue keepalived here"));
    }

    #[test]
    fn floating_addresses_belong_to_the_primary() {
        let mut facts = AuditFacts::new(Role::Primary);
        facts.floating = (1, 3);
        assert_eq!(facts.findings()[0].text, "2 of 3 floating addresses are not held");
        facts.role = Role::Backup;
        assert_eq!(names(&facts), ["floating-left"]);
        facts.floating = (0, 3);
        assert_eq!(names(&facts), [""; 0]);
    }

    #[test]
    fn in_fault_the_state_file_must_say_backup() {
        let mut facts = AuditFacts::new(Role::Fault(Fault::NoNetns));
        facts.file = Some(StateFileContent::NeutronState(NeutronState::Backup));
        assert_eq!(names(&facts), ["namespace-missing"]);
        facts.file = Some(StateFileContent::NeutronState(NeutronState::Primary));
        assert_eq!(names(&facts), ["namespace-missing", "state-file-differs"]);
    }
}
