// SPDX-License-Identifier: Apache-2.0
//! The answers of the product about the cluster: the findings in etcd, the documents of the nodes, and the notifications.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::Value;

use super::facts::RecordedFacts;
use super::groups::LabGroup;
use super::published::SIMULATED_NODE;
use crate::LabResult;
use crate::check::answers::{lines, text};
use crate::check::findings::FindingSpan;
use crate::lab::simulated::SIMULATED;
use crate::moment::Micros;
use crate::setup::{HOSTS, PREFIX};

/// A document of a node about the cluster.
#[derive(Debug, Clone, Deserialize)]
pub struct RecordedDocument {
    /// The time of the request.
    #[serde(rename = "wall")]
    pub asked: Micros,
    /// The time of the answer.
    pub until: Micros,
    /// `groups`, `nodes` or `findings`.
    pub name: String,
    /// Null if the node did not answer.
    pub document: Value,
}

impl RecordedDocument {
    /// Its list; empty if it has none.
    pub fn items(&self) -> impl Iterator<Item = &Value> {
        self.document["items"].as_array().into_iter().flatten()
    }
}

/// A notification that the recorder has received.
#[derive(Debug, Clone, Deserialize)]
pub struct RecordedNotification {
    #[serde(rename = "wall")]
    pub at: Micros,
    /// The address of the node that sent it.
    pub peer: String,
    pub body: Value,
}

impl RecordedNotification {
    /// The number of the node that sent it; `None` if another host did.
    pub fn node(&self) -> Option<usize> {
        self.peer.rsplit('.').next()?.parse::<usize>().ok()?.checked_sub(1)
    }
}

/// Everything that the product has said.
#[derive(Default)]
pub struct RecordedAnswers {
    /// The findings in etcd.
    pub findings: Vec<FindingSpan>,
    pub partial: PartialFindings,
    /// For each host.
    pub documents: Vec<Vec<RecordedDocument>>,
    /// The documents of second nodes, for each host.
    pub twins: Vec<Vec<RecordedDocument>>,
    pub notifications: Vec<RecordedNotification>,
}

impl RecordedAnswers {
    pub fn read(directory: &Path, facts: &RecordedFacts) -> LabResult<Self> {
        let mut answers = Self::default();
        let mut changes = BTreeMap::new();
        for host in 0..HOSTS {
            let own = directory.join(format!("node{host}"));
            read_etcd(&own.join("etcd.jsonl"), &mut changes)?;
            answers.documents.push(records(&own.join("documents.jsonl"))?);
            let twin = own.join("twin.jsonl");
            answers.twins.push(if twin.exists() { records(&twin)? } else { Vec::new() });
        }
        answers.notifications = records(&directory.join("notifications.jsonl"))?;
        (answers.findings, answers.partial) = findings(&changes, facts);
        Ok(answers)
    }
}

/// The records in the lines of a file.
fn records<T: serde::de::DeserializeOwned>(path: &Path) -> LabResult<Vec<T>> {
    lines(path)?.into_iter().map(|line| Ok(serde_json::from_value(line)?)).collect()
}

/// A change of one key.
struct EtcdChange {
    /// The first time at which a member showed it.
    at: Micros,
    /// `None` for a deleted key.
    value: Option<String>,
    /// The key did not exist before.
    is_new: bool,
}

/// The changes by revision and key.
type EtcdChanges = BTreeMap<(i64, String), EtcdChange>;

/// Adds the changes that one member showed.
fn read_etcd(path: &Path, changes: &mut EtcdChanges) -> LabResult {
    for line in lines(path)? {
        let at = line["wall"].as_i64().unwrap_or_default();
        for event in line["answer"]["Events"].as_array().into_iter().flatten() {
            let kv = &event["kv"];
            let Some(key) = decode(&kv["key"]) else { continue };
            let revision = kv["mod_revision"].as_i64().unwrap_or_default();
            let is_deleted = event["type"] == 1;
            let value = decode(&kv["value"]).filter(|_| !is_deleted);
            let is_new = !is_deleted && kv["create_revision"].as_i64() == Some(revision);
            let change = EtcdChange { at, value, is_new };
            let known = changes.entry((revision, key)).or_insert(change);
            known.at = known.at.min(at);
        }
    }
    Ok(())
}

/// The text of base64.
fn decode(value: &Value) -> Option<String> {
    String::from_utf8(STANDARD.decode(value.as_str()?).ok()?).ok()
}

/// The finding that stands for several of `cluster-no-primary`. Those are judged.
const GROUPED: &str = "cluster-groups-without-primary";

/// The findings, from the keys of open findings; and the ids of those that are not delivered, because the finding of a node
/// stands for them.
fn findings(changes: &EtcdChanges, facts: &RecordedFacts) -> (Vec<FindingSpan>, PartialFindings) {
    let prefix = format!("{PREFIX}finding/");
    let mut findings: Vec<FindingSpan> = Vec::new();
    let mut partial = PartialFindings::default();
    for ((_, key), EtcdChange { at, value, is_new }) in changes {
        let Some(id) = key.strip_prefix(&prefix) else { continue };
        let record: Value =
            value.as_ref().and_then(|value| serde_json::from_str(value).ok()).unwrap_or_default();
        if !record["part_of"].is_null() {
            partial.parts.insert(id.to_owned());
        }
        if record["name"] == GROUPED {
            partial.grouped.insert(id.to_owned());
        }
        let mut known = findings.iter_mut().rev();
        let open = known.find(|finding| finding.id == id && finding.close.is_none());
        match (value, open) {
            (None, Some(open)) => open.close = Some(*at),
            (Some(_), None) if *is_new && !partial.grouped.contains(id) => {
                let (id, subject) = (id.to_owned(), subject(&record, facts));
                let (name, text) = (text(&record["name"]), text(&record["text"]));
                findings.push(FindingSpan { id, subject, name, open: *at, close: None, text });
            }
            _ => {}
        }
    }
    (findings, partial)
}

/// The ids of findings with deliveries of their own rules.
#[derive(Debug, Default)]
pub struct PartialFindings {
    /// A part of the finding of a node: not delivered while they are.
    pub parts: BTreeSet<String>,
    /// For several groups.
    pub grouped: BTreeSet<String>,
}

/// The name of the group or node of a record or document.
pub fn subject(record: &Value, facts: &RecordedFacts) -> String {
    let subject = match record["group"].as_str() {
        Some(group) => LabGroup::of_id(group, facts).map(|group| group.text(facts)),
        None => node_number(&record["nodes"][0]).map(|node| format!("node {node}")),
    };
    subject.unwrap_or("unknown subject".to_owned())
}

/// The number of a node with this name.
pub fn node_number(name: &Value) -> Option<usize> {
    if name == SIMULATED {
        return Some(SIMULATED_NODE);
    }
    name.as_str()?.strip_prefix("node")?.parse().ok().filter(|node| *node < HOSTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_known_by_their_names() {
        assert_eq!(node_number(&"node2".into()), Some(2));
        assert_eq!(node_number(&"sim".into()), Some(3));
        assert_eq!(node_number(&"node7".into()), None);
    }
}
