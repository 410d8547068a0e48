//! Who disagrees about an instance: the kernel, the state file, the agent, keepalived's
//! configuration, and the processes that should be there.
//!
//! The kernel is the truth. Each [`Finding`] names one disagreement, explains it, and says what to
//! do; how old it is, is for whoever keeps the time.

use ipnet::IpNet;

use crate::debounce::ReportedState;
use crate::role::AddressState;
use crate::{Fault, NeutronState, Role};

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Traffic is lost, or will be.
    Broken,
    /// Somebody believes what is not so.
    Wrong,
    /// Worth knowing.
    Odd,
}

impl Severity {
    /// One word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Broken => "broken",
            Self::Wrong => "wrong",
            Self::Odd => "odd",
        }
    }
}

/// What a state file says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StateFileContent {
    /// A word that means this role.
    NeutronState(NeutronState),
    /// Something else.
    Nonsense(String),
    /// There is none.
    Missing,
    /// It cannot be read, for this reason.
    Unreadable(String),
}

/// What is known of a process that should run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Process {
    /// It runs.
    Runs,
    /// Its pid file names nobody who runs.
    Gone,
    /// There is no pid file.
    Unknown,
}

/// Everything that is known of an instance.
#[derive(Debug, Clone)]
pub struct AuditFacts {
    /// Where it stands, by what the kernel holds.
    pub role: Role,
    /// What we had believed, if that is another thing.
    pub believed: Option<Role>,
    /// What the state file of Neutron's monitor says; `None` where none is expected.
    pub file: Option<StateFileContent>,
    /// What the agent has acknowledged, and why it has not the rest; `None` where we do not tell it.
    pub agent: Option<AgentKnowledge>,
    /// What its monitor has reported to us; `None` where nobody is expected to.
    pub claim: Option<MonitorReport>,
    /// keepalived's process.
    pub keepalived: Process,
    /// Neutron's monitor.
    pub monitor: Process,
    /// Addresses that decide the role and are not where they should be.
    pub misplaced: Vec<(IpNet, AddressState)>,
    /// Floating addresses: how many are held, of how many.
    pub floating: (usize, usize),
}

/// What a monitor has reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MonitorReport {
    /// Nothing, ever.
    Nothing,
    /// This; and whether it has said so since the role is as it is.
    State(ReportedState, bool),
}

/// What the agent knows.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AgentKnowledge {
    /// What it has acknowledged last.
    pub acknowledged: Option<NeutronState>,
    /// Why it cannot be told.
    pub failing: Option<String>,
}

/// One disagreement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What it is called; never changes.
    pub name: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// What is so.
    pub text: String,
    /// What to do.
    pub hint: &'static str,
}

impl AuditFacts {
    /// Nothing known but where it stands.
    pub fn new(role: Role) -> Self {
        Self {
            role,
            believed: None,
            file: None,
            agent: None,
            claim: None,
            keepalived: Process::Unknown,
            monitor: Process::Unknown,
            misplaced: Vec::new(),
            floating: (0, 0),
        }
    }

    /// Everything that does not fit together.
    pub fn findings(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        self.kernel(&mut findings);
        self.processes(&mut findings);
        self.file(&mut findings);
        self.agent(&mut findings);
        self.claim(&mut findings);
        findings
    }

    /// The role, where there is one that others could know.
    fn role(&self) -> Option<NeutronState> {
        neutron_state_of(&self.role)
    }

    fn kernel(&self, findings: &mut Vec<Finding>) {
        use Severity::{Broken, Wrong};
        if let Some(believed) = &self.believed {
            let text = format!(
                "we believed {}, the kernel says {}",
                believed.as_str(),
                self.role.as_str()
            );
            findings.push(finding(
                "view-behind",
                Wrong,
                text,
                "this is a defect of vipwatch: please report it with the log",
            ));
        }
        match &self.role {
            Role::Fault(fault @ Fault::NoNetns) => findings.push(finding(
                "namespace-missing",
                Broken,
                fault.to_string(),
                "the agent makes it; if the router was deleted, its directory is a leftover",
            )),
            Role::Fault(fault) => findings.push(finding(
                "link-fault",
                Broken,
                fault.to_string(),
                "keepalived cannot become primary over it: look at the port and its wiring",
            )),
            Role::Partial { held, all } => findings.push(finding(
                "partly-held",
                Broken,
                format!("{held} of {all} addresses are held"),
                "somebody removed addresses by hand, or keepalived could not add them: see its log",
            )),
            Role::Unknown(why) => findings.push(finding(
                "kernel-not-asked",
                Wrong,
                why.clone(),
                "vipwatch needs CAP_NET_ADMIN here, or root",
            )),
            Role::Primary | Role::Backup => {}
        }
        for (cidr, holding) in &self.misplaced {
            findings.push(finding(
                "address-misplaced", Wrong, format!("{cidr} is {holding}"),
                "keepalived's configuration and the kernel disagree: reload keepalived, or remove the address",
            ));
        }
        let (held, all) = self.floating;
        match self.role {
            Role::Primary if held < all => findings.push(finding(
                "floating-missing",
                Broken,
                format!("{} of {all} floating addresses are not held", all - held),
                "keepalived has not added them: see its log; a reload adds them again",
            )),
            Role::Backup | Role::Fault(_) if held > 0 => findings.push(finding(
                "floating-left",
                Broken,
                format!("it is not primary, and holds {held} floating addresses"),
                "another node may hold them too: remove them, or restart keepalived here",
            )),
            _ => {}
        }
    }

    fn processes(&self, findings: &mut Vec<Finding>) {
        use Severity::{Broken, Wrong};
        let holds = matches!(self.role, Role::Primary | Role::Partial { .. });
        if self.keepalived == Process::Gone && holds {
            findings.push(finding(
                "keepalived-gone-address-left", Broken,
                "keepalived does not run, and its address is still here".to_owned(),
                "another node will take the address and both will hold it: start keepalived, or remove the address",
            ));
        } else if self.keepalived == Process::Gone {
            findings.push(finding(
                "keepalived-gone",
                Broken,
                "keepalived does not run".to_owned(),
                "this node cannot take over: the agent starts it again, or has lost track of it",
            ));
        }
        if self.monitor == Process::Gone {
            findings.push(finding(
                "monitor-gone", Wrong, "Neutron's monitor does not run".to_owned(),
                "nobody tells the agent about this router: the agent starts it again, or has lost track of it",
            ));
        }
    }

    fn file(&self, findings: &mut Vec<Finding>) {
        use Severity::{Odd, Wrong};
        let hint = "the monitor is deaf or gone: restart the agent's monitor of this router";
        match (&self.file, self.role()) {
            (Some(StateFileContent::NeutronState(said)), Some(role)) if *said != role => findings
                .push(finding(
                    "state-file-differs",
                    Wrong,
                    format!(
                        "the state file says {}, the kernel says {}",
                        said.as_str(),
                        role.as_str()
                    ),
                    hint,
                )),
            (Some(StateFileContent::Nonsense(said)), _) => findings.push(finding(
                "state-file-nonsense",
                Wrong,
                format!("the state file says {said:?}"),
                hint,
            )),
            (Some(StateFileContent::Unreadable(why)), _) => findings.push(finding(
                "state-file-unreadable",
                Odd,
                format!("the state file cannot be read: {why}"),
                "vipwatch needs CAP_DAC_READ_SEARCH here, or root",
            )),
            (Some(StateFileContent::Missing), Some(_)) => findings.push(finding(
                "state-file-missing",
                Wrong,
                "there is no state file".to_owned(),
                hint,
            )),
            _ => {}
        }
    }

    fn agent(&self, findings: &mut Vec<Finding>) {
        let Some(AgentKnowledge { acknowledged, failing }) = &self.agent else { return };
        if self.role().is_none() || *acknowledged == self.role() {
            return;
        }
        let knows = acknowledged.map_or("nothing", NeutronState::as_str);
        let why = failing.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
        findings.push(finding(
            "agent-behind",
            Severity::Wrong,
            format!(
                "the agent has acknowledged {knows}, the kernel says {}{why}",
                self.role.as_str()
            ),
            "the agent is down or does not listen; it is told again until it acknowledges",
        ));
    }
}

impl AuditFacts {
    fn claim(&self, findings: &mut Vec<Finding>) {
        let (Some(reported), Some(role)) = (self.claim, self.role()) else { return };
        let (name, severity, text) = match reported {
            MonitorReport::Nothing => {
                ("monitor-silent", Severity::Odd, "its monitor has never reported here".to_owned())
            }
            MonitorReport::State(claim, _) if claim.neutron_state() == Some(role) => return,
            MonitorReport::State(claim, false) => (
                "monitor-silent",
                Severity::Wrong,
                format!(
                    "it is {} by now, and the last that its monitor said is {}",
                    role.as_str(),
                    claim.as_str()
                ),
            ),
            MonitorReport::State(claim, true) => (
                "monitor-lies",
                Severity::Wrong,
                format!("its monitor claims {}, the kernel says {}", claim.as_str(), role.as_str()),
            ),
        };
        findings.push(finding(
            name,
            severity,
            text,
            "the kernel is right: restart the monitor of this router, and see its log",
        ));
    }
}

/// The role that others are told: whoever holds nothing is backup, whatever the reason. An
/// instance that holds some of its addresses is neither, and nobody is told anything new.
pub fn neutron_state_of(role: &Role) -> Option<NeutronState> {
    match role {
        Role::Primary => Some(NeutronState::Primary),
        Role::Backup | Role::Fault(_) => Some(NeutronState::Backup),
        Role::Partial { .. } | Role::Unknown(_) => None,
    }
}

fn finding(name: &'static str, severity: Severity, text: String, hint: &'static str) -> Finding {
    Finding { name, severity, text, hint }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(facts: &AuditFacts) -> Vec<&'static str> {
        facts.findings().iter().map(|finding| finding.name).collect()
    }

    #[test]
    fn what_fits_together_is_not_worth_a_word() {
        for role in [Role::Primary, Role::Backup] {
            let state = neutron_state_of(&role);
            let mut facts = AuditFacts::new(role);
            assert_eq!(names(&facts), [""; 0]);
            facts.file = state.map(StateFileContent::NeutronState);
            facts.agent = Some(AgentKnowledge { acknowledged: state, failing: None });
            (facts.keepalived, facts.monitor) = (Process::Runs, Process::Runs);
            assert_eq!(names(&facts), [""; 0]);
        }
    }

    #[test]
    fn a_file_or_an_agent_that_is_behind_is_found() {
        let mut facts = AuditFacts::new(Role::Primary);
        facts.file = Some(StateFileContent::NeutronState(NeutronState::Backup));
        facts.agent =
            Some(AgentKnowledge { acknowledged: None, failing: Some("nobody".to_owned()) });
        assert_eq!(names(&facts), ["state-file-differs", "agent-behind"]);
        let agent = &facts.findings()[1];
        assert_eq!(
            agent.text,
            "the agent has acknowledged nothing, the kernel says primary: nobody"
        );
        facts.file = Some(StateFileContent::Missing);
        assert_eq!(names(&facts)[0], "state-file-missing");
        facts.file = Some(StateFileContent::Nonsense("boss".to_owned()));
        assert_eq!(names(&facts)[0], "state-file-nonsense");
    }

    #[test]
    fn a_monitor_that_lies_or_is_silent_is_found() {
        let mut facts = AuditFacts::new(Role::Primary);
        facts.claim = Some(MonitorReport::State(ReportedState::Primary, false));
        assert_eq!(names(&facts), [""; 0]);
        facts.claim = Some(MonitorReport::State(ReportedState::Backup, true));
        assert_eq!(names(&facts), ["monitor-lies"]);
        facts.claim = Some(MonitorReport::State(ReportedState::Backup, false));
        assert_eq!(names(&facts), ["monitor-silent"]);
        facts.claim = Some(MonitorReport::Nothing);
        assert_eq!(names(&facts), ["monitor-silent"]);
        facts.role = Role::Backup;
        facts.claim = Some(MonitorReport::State(ReportedState::Fault, true));
        assert_eq!(names(&facts), [""; 0], "whoever cannot be primary is backup");
        facts.claim = Some(MonitorReport::State(ReportedState::Unknown, true));
        assert_eq!(names(&facts), ["monitor-lies"]);
    }

    #[test]
    fn an_address_without_a_keepalived_is_worse_than_a_keepalived_that_is_gone() {
        let mut facts = AuditFacts::new(Role::Primary);
        facts.keepalived = Process::Gone;
        assert_eq!(names(&facts), ["keepalived-gone-address-left"]);
        facts.role = Role::Backup;
        assert_eq!(names(&facts), ["keepalived-gone"]);
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
    fn a_fault_is_backup_for_others_and_half_an_instance_is_nothing() {
        let fault = Role::Fault(Fault::NoNetns);
        assert_eq!(neutron_state_of(&fault), Some(NeutronState::Backup));
        assert_eq!(neutron_state_of(&Role::Partial { held: 1, all: 2 }), None);
        let mut facts = AuditFacts::new(fault);
        facts.file = Some(StateFileContent::NeutronState(NeutronState::Backup));
        assert_eq!(names(&facts), ["namespace-missing"]);
        facts.file = Some(StateFileContent::NeutronState(NeutronState::Primary));
        assert_eq!(names(&facts), ["namespace-missing", "state-file-differs"]);
    }
}
