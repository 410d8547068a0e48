// SPDX-License-Identifier: Apache-2.0
//! The cluster: `GET /v1/cluster`, `/v1/cluster/groups`, `/v1/cluster/nodes`, `/v1/cluster/findings` and
//! `/v1/cluster/history`; and the answers of `vipwatch --etcd URL cluster`, which reads etcd without a node.

mod neutron;
#[cfg(test)]
pub(crate) mod sample;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use strum::{EnumString, IntoStaticStr};

pub use self::neutron::{ClusterNeutron, NeutronRouterSummary};
use crate::{RoleKind, Schema, Severity};

/// The origin of an answer about the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum ClusterSource {
    /// The view of a running node.
    Node,
    /// etcd, which the command has read itself.
    Etcd,
}

/// The connection of a node to etcd.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum ClusterConnectionState {
    /// No cluster is configured.
    Off,
    /// The node has not read etcd since it started.
    Connecting,
    /// The view follows etcd.
    Connected,
    /// The connection is lost, and the view is old.
    Stale,
}

/// Which groups a view contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum ClusterScope {
    /// The groups of the node's own instances.
    Own,
    /// All groups of the domain.
    Full,
}

/// What an answer rests on; every document about the cluster has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ClusterBasis {
    /// The node that answers; null for an answer from etcd.
    pub node: Option<String>,
    /// The origin of the answer.
    pub source: ClusterSource,
    /// The domain; null if no cluster is configured.
    pub domain: Option<String>,
    /// Which groups the answer contains.
    pub scope: ClusterScope,
    /// The connection to etcd.
    pub connection: ClusterConnectionState,
    /// The endpoint of etcd in use; null if there is none.
    pub endpoint: Option<String>,
    /// Since when the view is old, by the clock of the answering node; null if it is not.
    pub stale_since: Option<Timestamp>,
    /// The error of the last attempt to connect; null if there is none.
    pub error: Option<String>,
    /// The revision of etcd that the view has reached; 0 before the first answer of etcd.
    pub revision: i64,
    /// What this answer cannot know, a sentence each.
    pub unknown: Vec<String>,
}

/// Whether a node is alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[derive(EnumString, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum ClusterNodeState {
    /// The lease of its process has ended, and the node was not stopped.
    Lost,
    /// The node was stopped in an orderly way.
    Stopped,
    /// The lease of its process is valid.
    Live,
}

impl ClusterNodeState {
    /// All states.
    pub const ALL: [Self; 3] = [Self::Live, Self::Lost, Self::Stopped];

    /// The state with this word; `None` if there is none.
    pub fn from_word(word: &str) -> Option<Self> {
        word.parse().ok()
    }

    /// The state as it is written in documents.
    pub fn word(self) -> &'static str {
        self.into()
    }
}

/// Whether a group has exactly one primary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[derive(EnumString, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum GroupState {
    /// Two live nodes hold an address of the group, and both have confirmed it.
    TwoPrimaries,
    /// All nodes of the group are live, and none of them holds an address.
    NoPrimary,
    /// It is not clear which instances belong together.
    Ambiguous,
    /// No live node holds an address, and at least one node of the group is lost or stopped; or two nodes claim to hold it,
    /// and one of them has not confirmed it.
    Unknown,
    /// Exactly one live node holds the addresses.
    OnePrimary,
}

impl GroupState {
    /// All states, the most serious first.
    pub const ALL: [Self; 5] =
        [Self::TwoPrimaries, Self::NoPrimary, Self::Ambiguous, Self::Unknown, Self::OnePrimary];

    /// The state with this word; `None` if there is none.
    pub fn from_word(word: &str) -> Option<Self> {
        word.parse().ok()
    }

    /// The state as it is written in documents.
    pub fn word(self) -> &'static str {
        self.into()
    }
}

/// An instance of a group on one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ClusterMemberItem {
    /// The node.
    pub node: String,
    /// Whether the node is alive. The role of a node that is not is its last known role.
    pub node_state: ClusterNodeState,
    /// The id of the instance on that node.
    pub instance: String,
    /// The role.
    pub role: RoleKind,
    /// Details of the role; null if there are none.
    pub reason: Option<String>,
    /// When the instance took this role, by the clock of its node; null if that is not known.
    pub since: Option<Timestamp>,
    /// The sequence number of its last transition on that node.
    pub seq: i64,
    /// Why the role changed; null if that is not known.
    pub cause: Option<String>,
    /// The priority; null if it is not known.
    pub priority: Option<u8>,
    /// The network namespace; null for the node's own.
    pub netns: Option<String>,
    /// The interface.
    pub interface: String,
    /// The names of the node's own findings about the instance.
    pub findings: Vec<String>,
    /// Whether the node has confirmed the role after etcd had it: a live node that is cut off from etcd has not.
    #[serde(default)]
    pub confirmed: bool,
    /// Whether its keepalived runs and works; null if that is not known.
    #[serde(default)]
    pub keepalived: Option<bool>,
    /// Whether adverts of another node reach it; null if that is not known.
    #[serde(default)]
    pub hears_other: Option<bool>,
    /// The configured source of its adverts; null if the configuration has none.
    #[serde(default)]
    pub source: Option<String>,
    /// The sync group; null if it is in none.
    #[serde(default)]
    pub sync_group: Option<String>,
    /// The addresses of the group that its configuration does not have.
    #[serde(default)]
    pub missing: Vec<String>,
}

/// A group: the instances on several nodes that share virtual addresses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ClusterGroupItem {
    /// The id: `router:UUID`, `group:NAME`, `vrrp:FAMILY:VRID:ADDRESS` or `alone:NODE:INSTANCE`.
    pub id: String,
    /// Whether the group has exactly one primary.
    pub state: GroupState,
    /// The live nodes that hold an address of the group.
    pub primaries: Vec<String>,
    /// The virtual addresses, those of all members.
    pub addresses: Vec<String>,
    /// The members, in the order of the names of their nodes.
    pub members: Vec<ClusterMemberItem>,
    /// The names of the open findings about the group.
    pub findings: Vec<String>,
}

/// The answer to `GET /v1/cluster/groups`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ClusterGroupList {
    /// [`Schema::ClusterGroups`]
    pub schema: Schema,
    /// What the answer rests on.
    #[serde(flatten)]
    pub basis: ClusterBasis,
    /// The groups, the most serious first, then in the order of their ids.
    pub items: Vec<ClusterGroupItem>,
}

/// A node of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ClusterNodeItem {
    /// The name.
    pub node: String,
    /// Whether it is alive.
    pub state: ClusterNodeState,
    /// Whether it delivers the findings of the cluster.
    pub is_reporter: bool,
    /// The version of vipwatch; null if the node is not alive.
    pub version: Option<String>,
    /// The epoch of its history.
    pub epoch: String,
    /// The number of its last heartbeat; null if the node is not alive.
    pub heartbeat: Option<u64>,
    /// The time of its last heartbeat, by its own clock; of its stop if it was stopped; of its start if it is lost.
    pub at: Timestamp,
    /// The number of its instances in this view.
    pub instances: u64,
    /// The number of its instances in this view that are primary.
    pub primaries: u64,
    /// The number of its instances in this view that are backup.
    pub backups: u64,
    /// The number of instances that it follows, by its last heartbeat; null if the node is not alive.
    #[serde(default)]
    pub followed: Option<u64>,
}

/// The answer to `GET /v1/cluster/nodes`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ClusterNodeList {
    /// [`Schema::ClusterNodes`]
    pub schema: Schema,
    /// What the answer rests on.
    #[serde(flatten)]
    pub basis: ClusterBasis,
    /// The nodes, in the order of their names.
    pub items: Vec<ClusterNodeItem>,
}

/// Which nodes a finding is known to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum FindingScope {
    /// The reporter of the cluster has written it to etcd.
    Cluster,
    /// Only this node has found it.
    #[default]
    Local,
}

/// A finding about several nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ClusterFindingItem {
    /// The id.
    pub id: String,
    /// The stable name, for example `cluster-two-primaries`.
    pub name: String,
    /// How serious it is.
    pub severity: Severity,
    /// `certain`, or `probable` if a fact is missing.
    pub confidence: String,
    /// Which nodes it is known to.
    pub scope: FindingScope,
    /// The group; null for a finding about a node.
    pub group: Option<String>,
    /// The nodes that it is about.
    pub nodes: Vec<String>,
    /// A sentence with the observed values.
    pub text: String,
    /// What to do.
    pub hint: String,
    /// The facts that it rests on.
    pub evidence: Vec<String>,
    /// When it was opened, by the clock of the reporter.
    pub opened: Timestamp,
    /// When it ended; null while it is open.
    pub closed: Option<Timestamp>,
    /// The node that reported it.
    pub reporter: String,
    /// The targets that have received its opening.
    pub delivered: Vec<String>,
    /// The silence that covers it; null if there is none. Its opening is delivered when the silence ends, if it is open then.
    #[serde(default)]
    pub silenced: Option<ClusterSilenceItem>,
    /// The node that is away and causes it: the finding of that node is delivered in place of this one; null if there is none.
    #[serde(default)]
    pub part_of: Option<String>,
}

/// A silence in the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ClusterSilenceItem {
    /// The id.
    pub id: String,
    /// The silenced node; null for the silence of a group.
    pub node: Option<String>,
    /// The silenced group, on all nodes or on one; null for the silence of a node.
    pub group: Option<String>,
    /// When it ends, by the clock of its creator.
    pub until: Timestamp,
    /// Who created it.
    pub created_by: String,
    /// Why.
    pub reason: String,
}

/// The answer to `GET /v1/cluster/findings`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ClusterFindingList {
    /// [`Schema::ClusterFindings`]
    pub schema: Schema,
    /// What the answer rests on.
    #[serde(flatten)]
    pub basis: ClusterBasis,
    /// The findings, the most serious first.
    pub items: Vec<ClusterFindingItem>,
}

/// The number of groups in each state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GroupSummary {
    /// All groups.
    pub total: u64,
    /// With exactly one primary.
    pub one_primary: u64,
    /// With two or more.
    pub two_primaries: u64,
    /// With none.
    pub no_primary: u64,
    /// Not clear which instances belong together.
    pub ambiguous: u64,
    /// A node of the group is lost or stopped, and no live node is primary.
    pub unknown: u64,
}

/// The number of nodes in each state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NodeSummary {
    /// Live nodes.
    pub live: u64,
    /// Nodes that were stopped.
    pub stopped: u64,
    /// Nodes that were lost.
    pub lost: u64,
}

/// Keys and values in etcd that are not used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct IgnoredSummary {
    /// Keys under the prefix that vipwatch does not write.
    pub foreign_keys: u64,
    /// Values that are not records.
    pub invalid_values: u64,
    /// Values of a later release.
    pub newer_values: u64,
    /// Records beyond the limits of the answering view.
    pub surplus_records: u64,
}

/// The answer to `GET /v1/cluster`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ClusterStatus {
    /// [`Schema::Cluster`]
    pub schema: Schema,
    /// What the answer rests on.
    #[serde(flatten)]
    pub basis: ClusterBasis,
    /// The node that delivers findings; null if there is none.
    pub reporter: Option<String>,
    /// Whether the reporter has a hook or webhook for findings; null if there is no live reporter.
    #[serde(default)]
    pub reporter_notifies: Option<bool>,
    /// The nodes.
    pub nodes: NodeSummary,
    /// The groups.
    pub groups: GroupSummary,
    /// The open findings.
    pub findings: u64,
    /// The silences in force.
    #[serde(default)]
    pub silences: Vec<ClusterSilenceItem>,
    /// Keys and values that are not used.
    pub ignored: IgnoredSummary,
    /// The comparison with Neutron; null if it is not configured on the answering node.
    pub neutron: Option<ClusterNeutron>,
}

/// An event of the cluster's history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum ClusterHistoryItem {
    /// An instance changed its role.
    Transition {
        /// The time, by the clock of the node.
        at: Timestamp,
        /// The group.
        group: String,
        /// The node.
        node: String,
        /// The id of the instance on that node.
        instance: String,
        /// The sequence number on that node.
        seq: i64,
        /// The role before; null if it was not known.
        from: Option<RoleKind>,
        /// The role after.
        to: RoleKind,
        /// Why; null if that is not known.
        cause: Option<String>,
    },
    /// A finding was opened.
    FindingOpened {
        /// The time, by the clock of the reporter.
        at: Timestamp,
        /// The finding.
        finding: ClusterFindingItem,
    },
    /// A finding ended.
    FindingClosed {
        /// The time, by the clock of the reporter.
        at: Timestamp,
        /// The finding.
        finding: ClusterFindingItem,
    },
}

/// The answer to `GET /v1/cluster/history`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ClusterHistory {
    /// [`Schema::ClusterHistory`]
    pub schema: Schema,
    /// What the answer rests on.
    #[serde(flatten)]
    pub basis: ClusterBasis,
    /// The events, oldest first. Each node keeps the last four transitions of an instance here; its own history has all.
    pub items: Vec<ClusterHistoryItem>,
}
