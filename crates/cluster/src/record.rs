// SPDX-License-Identifier: Apache-2.0
//! The values in etcd, as JSON.
//!
//! Every value has the number of its format in `schema`. Readers ignore fields that they do not know, and every field that
//! was added after format 1 has a default: nodes of two releases work together. The number grows only when a field
//! changes its meaning; a value with a greater number is counted and not used.
//!
//! A value comes from another machine. It is checked when it is decoded, and a wrong value is an error for the reader and
//! never a role. Times are those of the node that wrote the value: they are shown, and no decision depends on them.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use vipwatch_api::{FindingKind, RoleKind, Timestamp};
use vipwatch_core::finding::FindingSubject;

use crate::key::{Bucket, ClusterKey, ClusterName};

/// The number of the format that this release writes, and the greatest that it reads.
pub const FORMAT: u32 = 2;

/// The maximum size of a value in bytes. etcd accepts 1.5 MiB for a whole transaction.
pub const MAX_VALUE_BYTES: usize = 16 * 1024;

/// The maximum number of addresses in a record. A Neutron router can have thousands of floating addresses, and none of
/// them decides its role.
pub const MAX_ADDRESSES: usize = 128;

/// The maximum number of transitions in a record.
pub const MAX_RECENT: usize = 4;

/// The maximum number of entries in each other list of a record: the names of findings, nodes, facts and targets. Each entry
/// needs more memory than its bytes.
const MAX_ENTRIES: usize = 128;

/// The maximum length of an epoch, of a process and of a version, in bytes.
const MAX_WORD_BYTES: usize = 128;

/// A running node. The node writes it again at each heartbeat; etcd deletes it when the lease ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// [`FORMAT`]
    pub schema: u32,
    /// The name of the node, as in the key.
    pub node: String,
    /// The epoch of the node's history. It stays the same when the process restarts.
    pub epoch: String,
    /// A random text that is different in each process. It shows that two processes use one name.
    pub process: String,
    /// The version of vipwatch.
    pub version: String,
    /// The number of this heartbeat in this process, from 1.
    pub heartbeat: u64,
    /// A revision of etcd that the node had seen before its main loop confirmed the roles that it has published. A claim
    /// is confirmed if this is not less than the revision of the claim of the other node.
    pub seen: i64,
    /// The sequence number of the node's last event that it has published.
    pub seq: i64,
    /// The number of instances that the node follows.
    pub instances: u64,
    /// The time of the heartbeat, by the clock of the node.
    pub at: Timestamp,
    /// The start of the process, by the clock of the node.
    pub started: Timestamp,
    /// Milliseconds between two heartbeats.
    pub heartbeat_ms: u64,
    /// The lease of the process, in seconds.
    pub lease_s: i64,
    /// Whether the node has a target for findings. Without one, nobody would be notified of what it reports.
    #[serde(default = "yes")]
    pub notifies: bool,
}

fn yes() -> bool {
    true
}

/// What an operator did with a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemberState {
    /// The node has been started.
    Running,
    /// The node was stopped in an orderly way.
    Stopped,
}

/// A node that belongs to the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberRecord {
    /// [`FORMAT`]
    pub schema: u32,
    /// The name of the node, as in the key.
    pub node: String,
    /// The epoch of the node's history.
    pub epoch: String,
    /// Whether the node was stopped in an orderly way.
    pub state: MemberState,
    /// The lease of this record and of the roles of the node. A new process of the same node continues it, and finds
    /// there the keys that the process before has written.
    pub lease: i64,
    /// The time of the change, by the clock of the node.
    pub at: Timestamp,
}

/// A transition of an instance, for the history of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecentTransition {
    /// The sequence number on its node.
    pub seq: i64,
    /// The time, by the clock of the node.
    pub at: Timestamp,
    /// The role before; `None` if it was not known.
    #[serde(default)]
    pub from: Option<RoleKind>,
    /// The role after.
    pub to: RoleKind,
    /// Why the role changed; `None` if that is not known.
    #[serde(default)]
    pub cause: Option<String>,
}

/// Whether the captured adverts show a primary of the virtual router.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReceivedAdverts {
    /// Adverts of another node arrive.
    Other,
    /// No adverts of another node arrive.
    None,
    /// The node does not capture adverts of this instance, or cannot tell yet.
    #[serde(other)]
    Unknown,
}

/// The role of an instance on one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoleRecord {
    /// [`FORMAT`]
    pub schema: u32,
    /// The node, as in the key.
    pub node: String,
    /// The id of the instance on that node, as in the key.
    pub instance: String,
    /// The name in keepalived's configuration.
    pub name: String,
    /// The epoch of the node's history.
    pub epoch: String,
    /// The sequence number of the last transition. With the epoch it says which of two records is newer.
    pub seq: i64,
    /// The role.
    pub role: RoleKind,
    /// Details of the role; `None` if there are none.
    #[serde(default)]
    pub reason: Option<String>,
    /// When the instance took this role, by the clock of the node; `None` if that is not known.
    #[serde(default)]
    pub since: Option<Timestamp>,
    /// Why the role changed; `None` if that is not known.
    #[serde(default)]
    pub cause: Option<String>,
    /// `neutron`, `keepalived` or `vipwatch`.
    pub origin: String,
    /// The network namespace; `None` for the node's own.
    #[serde(default)]
    pub netns: Option<String>,
    /// The interface of the instance.
    pub interface: String,
    /// The virtual router id; `None` if it is not known.
    #[serde(default)]
    pub vrid: Option<u8>,
    /// The priority; `None` if it is not known.
    #[serde(default)]
    pub priority: Option<u8>,
    /// The time between two adverts in milliseconds; `None` if the configuration does not set it (one second).
    #[serde(default)]
    pub advert_ms: Option<u64>,
    /// The version of VRRP; `None` if it is not known.
    #[serde(default)]
    pub vrrp_version: Option<u8>,
    /// The addresses that decide the role, in the order of the configuration, those in adverts first; at most
    /// [`MAX_ADDRESSES`].
    pub addresses: Vec<IpNet>,
    /// The adverts that the node captures.
    #[serde(default = "unknown")]
    pub adverts: ReceivedAdverts,
    /// Whether the keepalived of the instance runs and works; `None` if that is not known.
    #[serde(default)]
    pub keepalived: Option<bool>,
    /// The configured source of its adverts, which decides between equal priorities; `None` if the configuration has none.
    #[serde(default)]
    pub source: Option<IpAddr>,
    /// The `vrrp_sync_group`; `None` if it is in none.
    #[serde(default)]
    pub sync_group: Option<String>,
    /// The names of the local findings about this instance that are not merely `info`, in order.
    #[serde(default)]
    pub findings: Vec<String>,
    /// The last transitions, oldest first, at most [`MAX_RECENT`].
    #[serde(default)]
    pub recent: Vec<RecentTransition>,
}

fn unknown() -> ReceivedAdverts {
    ReceivedAdverts::Unknown
}

/// The node that delivers the findings of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReporterRecord {
    /// [`FORMAT`]
    pub schema: u32,
    /// The name of the node.
    pub node: String,
    /// The process, as in its [`NodeRecord`].
    pub process: String,
    /// The time of its election, by its clock.
    pub at: Timestamp,
}

/// A silence: the reporter does not deliver the findings that it covers. It ends with the lease of its key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SilenceRecord {
    /// [`FORMAT`]
    pub schema: u32,
    /// The id, as in the key.
    pub id: String,
    /// The silenced node; `None` for the silence of a group.
    #[serde(default)]
    pub node: Option<String>,
    /// The silenced group, on all nodes or on one; `None` for the silence of a node.
    #[serde(default)]
    pub group: Option<String>,
    /// Why.
    pub reason: String,
    /// Who created it.
    pub created_by: String,
    /// When it was created, by the clock of the creator.
    pub at: Timestamp,
    /// When it ends, by the clock of the creator.
    pub until: Timestamp,
}

/// The silence that covers a finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FindingSilence {
    /// Its id.
    pub id: String,
    /// When it ends, by the clock of its creator.
    pub until: Timestamp,
    /// Who created it, shortened.
    pub created_by: String,
    /// Why, shortened.
    pub reason: String,
}

/// The maximum length of a silence.
const MAX_SILENCE_SECONDS: i64 = 30 * 24 * 3600;

/// The maximum length of the reason and of the creator of a silence, in bytes of JSON: a control character has six.
const MAX_REASON_BYTES: usize = 2048;

/// The reason why a value is not used.
#[derive(Debug, thiserror::Error)]
pub enum ClusterRecordError {
    /// The value is too long.
    #[error("the value has {bytes} bytes, more than {MAX_VALUE_BYTES}")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// The value is not JSON of this kind.
    #[error("the value is not a record")]
    Invalid(#[source] serde_json::Error),
    /// A later release of vipwatch has written the value.
    #[error("the value has format {0}, and this release reads up to {FORMAT}")]
    Newer(u32),
    /// The value names another node or instance than its key.
    #[error("the value is about {found:?}, and its key about {expected:?}")]
    OtherKey {
        /// The name in the value.
        found: String,
        /// The name in the key.
        expected: String,
    },
    /// The finding is of a kind that this release does not know.
    #[error("the kind of the finding is not known")]
    OtherKind,
    /// The finding is not about a group or about nodes.
    #[error("the finding names no valid group or node")]
    NoSubject,
    /// A silence lasts too long, or ends before its beginning.
    #[error("the silence lasts {seconds} s, more than 30 days or less than none")]
    LongSilence {
        /// Its length.
        seconds: i64,
    },
    /// An epoch, a process or a version of the value is too long.
    #[error("a word of the value has {bytes} bytes, more than {MAX_WORD_BYTES}")]
    LongWord {
        /// Its length.
        bytes: usize,
    },
    /// A list of the value is too long.
    #[error("the list {list} has {entries} entries")]
    LongList {
        /// The name of the field.
        list: &'static str,
        /// Its length.
        entries: usize,
    },
}

/// The part of every value that is read first.
#[derive(Deserialize)]
struct Head {
    schema: u32,
}

/// Decodes a value. The checks that depend on the key are those of [`RoleRecord::check`] and its equals.
pub(crate) fn decode<T: for<'a> Deserialize<'a>>(value: &[u8]) -> Result<T, ClusterRecordError> {
    if value.len() > MAX_VALUE_BYTES {
        return Err(ClusterRecordError::TooLong { bytes: value.len() });
    }
    let head: Head = serde_json::from_slice(value).map_err(ClusterRecordError::Invalid)?;
    if head.schema > FORMAT {
        return Err(ClusterRecordError::Newer(head.schema));
    }
    serde_json::from_slice(value).map_err(ClusterRecordError::Invalid)
}

/// The bytes of a value.
pub fn encode<T: Serialize>(record: &T) -> Vec<u8> {
    // The records have only string keys and no custom serializer, so this cannot fail.
    serde_json::to_vec(record).unwrap_or_default()
}

/// A decoded value of any kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClusterRecord {
    /// The value of [`ClusterKey::Node`].
    Node(Box<NodeRecord>),
    /// The value of [`ClusterKey::Member`].
    Member(MemberRecord),
    /// The value of [`ClusterKey::Role`].
    Role(Box<RoleRecord>),
    /// The value of [`ClusterKey::Reporter`].
    Reporter(ReporterRecord),
    /// The value of [`ClusterKey::Finding`] or [`ClusterKey::Closed`].
    Finding(Box<FindingRecord>),
    /// The value of [`ClusterKey::Silence`].
    Silence(SilenceRecord),
}

impl ClusterRecord {
    /// Decodes and checks the value of a key.
    pub fn decode(key: &ClusterKey, value: &[u8]) -> Result<Self, ClusterRecordError> {
        match key {
            ClusterKey::Node(node) => {
                let record: NodeRecord = decode(value)?;
                same_name(&record.node, node.as_str())?;
                short_words(&[&record.epoch, &record.process, &record.version])?;
                Ok(Self::Node(Box::new(record)))
            }
            ClusterKey::Member(node) => {
                let record: MemberRecord = decode(value)?;
                same_name(&record.node, node.as_str())?;
                short_words(&[&record.epoch])?;
                Ok(Self::Member(record))
            }
            ClusterKey::Role(key) => {
                let record: RoleRecord = decode(value)?;
                record.check(&key.node, key.instance.as_str())?;
                Ok(Self::Role(Box::new(record)))
            }
            ClusterKey::Reporter => {
                let record: ReporterRecord = decode(value)?;
                short_words(&[&record.node, &record.process])?;
                Ok(Self::Reporter(record))
            }
            ClusterKey::Finding(id) | ClusterKey::Closed(id) => {
                let record: FindingRecord = decode(value)?;
                same_name(&record.id, id.as_str())?;
                let record = record.checked()?;
                Ok(Self::Finding(Box::new(record)))
            }
            ClusterKey::Silence(id) => {
                let record: SilenceRecord = decode(value)?;
                same_name(&record.id, id.as_str())?;
                Ok(Self::Silence(record.checked()?))
            }
        }
    }
}

impl RoleRecord {
    fn check(&self, node: &ClusterName, instance: &str) -> Result<(), ClusterRecordError> {
        same_name(&self.node, node.as_str())?;
        same_name(&self.instance, instance)?;
        short_list("addresses", self.addresses.len(), MAX_ADDRESSES)?;
        short_list("recent", self.recent.len(), MAX_RECENT)?;
        short_list("findings", self.findings.len(), MAX_ENTRIES)?;
        short_words(&[&self.epoch])
    }
}

impl FindingRecord {
    /// The record with the severity and the hint of its kind, if its kind and its subject are valid.
    fn checked(self) -> Result<Self, ClusterRecordError> {
        short_list("nodes", self.nodes.len(), MAX_ENTRIES)?;
        short_list("evidence", self.evidence.len(), MAX_ENTRIES)?;
        short_list("notified_open", self.notified_open.len(), MAX_ENTRIES)?;
        short_list("notified_closed", self.notified_closed.len(), MAX_ENTRIES)?;
        let kind = FindingKind::from_name(&self.name).filter(|kind| kind.is_of_cluster());
        let kind = kind.ok_or(ClusterRecordError::OtherKind)?;
        let group = self.group.as_ref();
        let is_subject = match kind.subject() {
            FindingSubject::Group => group.is_some_and(|group| Bucket::of_group(group).is_some()),
            _ => group.is_none() && !self.nodes.is_empty(),
        };
        let are_names = self.nodes.iter().all(|node| node.parse::<ClusterName>().is_ok());
        if !is_subject || !are_names {
            return Err(ClusterRecordError::NoSubject);
        }
        Ok(Self { severity: kind.severity(), hint: kind.hint().to_owned(), ..self })
    }

    /// The same finding, of which this process knows only what another one has written: of the words in the record, only
    /// the kind and the subject are used.
    pub(crate) fn restated(self, reporter: &str) -> Self {
        let subject = match (&self.group, self.nodes.first()) {
            (Some(group), _) => format!("the group {group}"),
            (None, Some(node)) => format!("node {node}"),
            (None, None) => "the cluster".to_owned(),
        };
        let text = format!("an earlier reporter has found {} of {subject}", self.name);
        Self { text, evidence: Vec::new(), reporter: reporter.to_owned(), ..self }
    }
}

impl SilenceRecord {
    pub(crate) fn checked(self) -> Result<Self, ClusterRecordError> {
        let is_node = self.node.as_ref().is_none_or(|node| node.parse::<ClusterName>().is_ok());
        let is_group = self.group.as_ref().is_none_or(|group| Bucket::of_group(group).is_some());
        if !is_node || !is_group || self.node.is_none() && self.group.is_none() {
            return Err(ClusterRecordError::NoSubject);
        }
        let seconds = self.until.as_second() - self.at.as_second();
        if !(0..=MAX_SILENCE_SECONDS).contains(&seconds) {
            return Err(ClusterRecordError::LongSilence { seconds });
        }
        let bytes = encode(&self.reason).len().max(encode(&self.created_by).len());
        if bytes > MAX_REASON_BYTES {
            return Err(ClusterRecordError::LongWord { bytes });
        }
        Ok(self)
    }
}

fn same_name(found: &str, expected: &str) -> Result<(), ClusterRecordError> {
    if found == expected {
        return Ok(());
    }
    let found = found.chars().take(80).collect();
    Err(ClusterRecordError::OtherKey { found, expected: expected.to_owned() })
}

fn short_list(list: &'static str, entries: usize, limit: usize) -> Result<(), ClusterRecordError> {
    if entries <= limit { Ok(()) } else { Err(ClusterRecordError::LongList { list, entries }) }
}

fn short_words(words: &[&String]) -> Result<(), ClusterRecordError> {
    match words.iter().map(|word| word.len()).max().filter(|bytes| *bytes > MAX_WORD_BYTES) {
        Some(bytes) => Err(ClusterRecordError::LongWord { bytes }),
        None => Ok(()),
    }
}

/// How certain a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[derive(strum::AsRefStr)]
#[strum(serialize_all = "kebab-case")]
pub enum Confidence {
    /// All nodes of the group have confirmed the facts.
    Certain,
    /// A node of the group is lost or stopped, so a fact is missing.
    Probable,
}

/// A finding about several nodes, as the reporter writes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FindingRecord {
    /// [`FORMAT`]
    pub schema: u32,
    /// The id, as in the key.
    pub id: String,
    /// The stable name, for example `cluster-two-primaries`.
    pub name: String,
    /// How serious it is.
    pub severity: vipwatch_api::Severity,
    /// How certain it is.
    pub confidence: Confidence,
    /// The group; `None` for a finding about a node.
    #[serde(default)]
    pub group: Option<String>,
    /// The nodes that it is about, in order.
    pub nodes: Vec<String>,
    /// A sentence with the observed values.
    pub text: String,
    /// What to do.
    pub hint: String,
    /// The facts that it rests on, a sentence each.
    #[serde(default)]
    pub evidence: Vec<String>,
    /// When the reporter opened it, by the clock of the reporter.
    pub opened: Timestamp,
    /// When its text changed last, by the clock of the reporter.
    pub changed: Timestamp,
    /// When it ended, by the clock of the reporter; `None` while it is open.
    #[serde(default)]
    pub closed: Option<Timestamp>,
    /// The node that reported it.
    pub reporter: String,
    /// The names of the targets that have received its opening. A new reporter does not notify them again.
    #[serde(default)]
    pub notified_open: Vec<String>,
    /// The names of the targets that have received its end.
    #[serde(default)]
    pub notified_closed: Vec<String>,
    /// The silence that covers it: its opening is delivered when the silence ends, if it is still open; `None` if there is
    /// none.
    #[serde(default)]
    pub silenced: Option<FindingSilence>,
    /// The node that is away and causes it: its own finding stands for those of its groups, and this one is not delivered;
    /// `None` if there is none.
    #[serde(default)]
    pub part_of: Option<String>,
    /// The nodes that are missing as backups, of which some may have left the group; empty if it is about all of `nodes`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub about: Vec<String>,
}

#[cfg(test)]
mod tests;
