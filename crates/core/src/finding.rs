// SPDX-License-Identifier: Apache-2.0
//! The table of all findings: of one node, and about several nodes.
//!
//! Each row has what follows from the name alone. `docs/reference/cli.md` (section "Doctor") and
//! `docs/reference/cluster.md` have the conditions, `docs/operations/finding-tests.md` has the tests; the tests of the
//! command line compare these documents with the table.

mod table;

use strum::{EnumString, IntoStaticStr};

pub use self::table::FindingKind;

/// How serious a finding is; the most serious comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, EnumString, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Severity {
    /// Traffic is lost, or will be lost at the next failover.
    Critical,
    /// A component has recorded or published a wrong state.
    Warning,
    /// Unusual, but without effect on traffic.
    Info,
}

impl Severity {
    /// All severities, the most serious first.
    pub const ALL: [Self; 3] = [Self::Critical, Self::Warning, Self::Info];

    /// The word for the severity in documents, logs and metrics.
    pub fn word(self) -> &'static str {
        self.into()
    }

    /// The severity that `word` stands for; `None` for any other word.
    pub fn from_word(word: &str) -> Option<Self> {
        word.parse().ok()
    }

    /// What it means for an operator.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Critical => "traffic is lost, or will be lost at the next failover",
            Self::Warning => "a component has recorded or published a wrong state",
            Self::Info => "unusual, but without effect on traffic",
        }
    }
}

/// What a finding is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FindingSubject {
    /// An instance on this node.
    Instance,
    /// This node, or a file that it reads.
    Node,
    /// The receiver of monitors' reports.
    Receiver,
    /// The delivery of a transition or of a report.
    Delivery,
    /// A group of the cluster.
    Group,
    /// A node of the cluster.
    ClusterNode,
}

/// What a finding rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FindingEvidence {
    /// What each audit reads anew: the kernel, and files and processes of Neutron.
    Kernel,
    /// Another source states the role differently from the kernel: the state file, the agent, the monitor or this node.
    OtherSource,
    /// The processes of keepalived; the node notices their changes at once.
    Processes,
    /// The processes of keepalived, and what only an audit notices: their files and permissions.
    ProcessesAndFiles,
    /// Captured adverts.
    Adverts,
    /// Configuration files.
    Configuration,
    /// The transitions in the history.
    History,
    /// An attempt of the node: a delivery, a socket, a disk.
    Attempt,
    /// The records of all nodes of the cluster.
    Cluster,
}

/// How long a fact must last before it is a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FindingSettle {
    /// No time, or a time of the fact itself.
    None,
    /// Until the consumers have followed the last transition.
    Transition,
    /// Until the processes have stayed as they are.
    Processes,
    /// Until a second audit has found the same: the sources change one after the other, also without a transition.
    SecondAudit,
    /// The settle time of the cluster.
    Cluster,
    /// The settle time of the cluster, and one advert.
    ClusterAdvert,
    /// The settle time of the cluster, and an election.
    ClusterElection,
    /// The slow settle time of the cluster.
    ClusterSlow,
    /// The settle time of Neutron.
    Neutron,
}

/// What a finding means for taking the node down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DrainEffect {
    /// Nothing.
    None,
    /// Blocks: addresses are here, although the instance is not primary.
    AddressesHere,
    /// Blocks: no node holds the addresses.
    NoPrimary,
    /// Blocks: a consumer has not received the current role.
    ConsumerBehind,
    /// Another role, or another list of instances, is possible.
    Uncertain,
    /// This node cannot take over, so that its absence changes nothing.
    CannotTakeOver,
}

/// One row of the table.
#[derive(Debug)]
struct FindingRow {
    name: &'static str,
    severity: Severity,
    /// The severity of the weaker form; `None` if there is only one form.
    milder: Option<Severity>,
    subject: FindingSubject,
    evidence: FindingEvidence,
    settle: FindingSettle,
    drain: DrainEffect,
    is_text_material: bool,
    hint: &'static str,
}

impl FindingRow {
    const fn new(
        name: &'static str,
        severity: Severity,
        subject: FindingSubject,
        evidence: FindingEvidence,
        hint: &'static str,
    ) -> Self {
        let settle = match evidence {
            FindingEvidence::Kernel | FindingEvidence::OtherSource | FindingEvidence::Adverts => {
                FindingSettle::Transition
            }
            FindingEvidence::Processes | FindingEvidence::ProcessesAndFiles => {
                FindingSettle::Processes
            }
            FindingEvidence::Configuration
            | FindingEvidence::History
            | FindingEvidence::Attempt
            | FindingEvidence::Cluster => FindingSettle::None,
        };
        let (milder, drain, is_text_material) = (None, DrainEffect::None, false);
        Self { name, severity, milder, subject, evidence, settle, drain, is_text_material, hint }
    }
}

impl FindingKind {
    /// How serious it is. A finding of the weaker form has [`Self::milder`] instead.
    pub fn severity(self) -> Severity {
        self.row().severity
    }

    /// The severity of the weaker form; `None` if there is only one form.
    pub fn milder(self) -> Option<Severity> {
        self.row().milder
    }

    /// The stable name, for example `agent-behind`.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// What an operator should do. A finding may have a more specific one.
    pub fn hint(self) -> &'static str {
        self.row().hint
    }

    /// What it is about.
    pub fn subject(self) -> FindingSubject {
        self.row().subject
    }

    /// What it rests on.
    pub fn evidence(self) -> FindingEvidence {
        self.row().evidence
    }

    /// How long the fact must last.
    pub fn settle(self) -> FindingSettle {
        self.row().settle
    }

    /// What it means for taking the node down.
    pub fn drain(self) -> DrainEffect {
        self.row().drain
    }

    /// Whether another text is another fault, and an event. The text of the other findings quotes an error, a count or a
    /// process, which may change again and again while the fault is the same.
    pub fn is_text_material(self) -> bool {
        self.row().is_text_material
    }

    /// Whether it is about several nodes: the reporter of the cluster opens it.
    pub fn is_of_cluster(self) -> bool {
        self.evidence() == FindingEvidence::Cluster
    }

    /// Whether it rests on the processes of keepalived. Such a finding does not follow a transition.
    pub fn is_of_processes(self) -> bool {
        use FindingEvidence::{Processes, ProcessesAndFiles};
        matches!(self.evidence(), Processes | ProcessesAndFiles)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_are_sorted_and_each_is_read_back() {
        assert!(FindingKind::ALL.is_sorted_by(|before, after| before.name() < after.name()));
        assert!(FindingKind::ALL.is_sorted());
        for kind in FindingKind::ALL {
            assert_eq!(FindingKind::from_name(kind.name()), Some(*kind));
            assert_eq!(kind.name().starts_with("cluster-"), kind.is_of_cluster());
            assert!(kind.milder().is_none_or(|milder| milder > kind.severity()));
        }
        assert_eq!(FindingKind::from_name("cluster"), None);
    }
}
