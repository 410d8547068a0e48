// SPDX-License-Identifier: Apache-2.0
//! The answers of the product: the findings in etcd, the documents of the nodes, and the notifications.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use super::conditions::FactSubject;
use super::facts::RecordedFacts;
use super::groups::LabGroup;
use super::published::SIMULATED_NODE;
use crate::FaultsError;
use crate::moment::Micros;
use crate::setup::{HOSTS, PREFIX};

/// A finding in etcd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterFinding {
    pub id: String,
    pub name: String,
    /// `None` if the record names no group or node of the lab.
    pub subject: Option<FactSubject>,
    pub open: Micros,
    /// `None` if it was open at the end.
    pub close: Option<Micros>,
    pub text: String,
    /// The node that opened it.
    pub reporter: String,
}

/// A document of a node about the cluster.
#[derive(Debug, Clone)]
pub struct RecordedDocument {
    /// The time of the request.
    pub asked: Micros,
    /// The time of the answer.
    pub until: Micros,
    /// `groups`, `nodes` or `findings`.
    pub name: String,
    /// Null if the node did not answer.
    pub document: Value,
}

/// A notification that the recorder has received.
#[derive(Debug, Clone)]
pub struct RecordedNotification {
    pub at: Micros,
    /// The node that sent it, from its address.
    pub node: Option<usize>,
    pub body: Value,
}

/// Everything that the product has said.
#[derive(Default)]
pub struct RecordedAnswers {
    pub findings: Vec<ClusterFinding>,
    /// For each host.
    pub documents: Vec<Vec<RecordedDocument>>,
    pub notifications: Vec<RecordedNotification>,
}

impl RecordedAnswers {
    pub fn read(directory: &Path, facts: &RecordedFacts) -> Result<Self, FaultsError> {
        let mut changes = BTreeMap::new();
        let mut documents = Vec::new();
        for host in 0..HOSTS {
            let own = directory.join(format!("node{host}"));
            read_etcd(&own.join("etcd.jsonl"), &mut changes)?;
            documents.push(lines(&own.join("documents.jsonl"))?.iter().map(document).collect());
        }
        let notifications = lines(&directory.join("notifications.jsonl"))?;
        Ok(Self {
            findings: findings(&changes, facts),
            documents,
            notifications: notifications.iter().map(notification).collect(),
        })
    }
}

/// A change of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdChange {
    /// The first time at which a member showed it.
    pub at: Micros,
    pub key: String,
    /// `None` for a deleted key.
    pub value: Option<String>,
    /// The key did not exist before.
    pub is_new: bool,
}

/// The changes by revision and key.
type EtcdChanges = BTreeMap<(i64, String), EtcdChange>;

pub fn lines(path: &Path) -> Result<Vec<Value>, FaultsError> {
    let text = std::fs::read_to_string(path)?;
    // The last line may be incomplete: the recorders end with the sandbox.
    Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
}

pub fn document(line: &Value) -> RecordedDocument {
    RecordedDocument {
        asked: line["wall"].as_i64().unwrap_or_default(),
        until: line["until"].as_i64().unwrap_or_default(),
        name: line["name"].as_str().unwrap_or_default().to_owned(),
        document: line["document"].clone(),
    }
}

fn notification(line: &Value) -> RecordedNotification {
    let peer = line["peer"].as_str().unwrap_or_default();
    let number = peer.rsplit('.').next().and_then(|number| number.parse::<usize>().ok());
    RecordedNotification {
        at: line["wall"].as_i64().unwrap_or_default(),
        node: number.and_then(|number| number.checked_sub(1)),
        body: line["body"].clone(),
    }
}

/// Adds the changes that one member showed.
fn read_etcd(path: &Path, changes: &mut EtcdChanges) -> Result<(), FaultsError> {
    for line in lines(path)? {
        let at = line["wall"].as_i64().unwrap_or_default();
        for event in line["answer"]["Events"].as_array().into_iter().flatten() {
            let kv = &event["kv"];
            let Some(key) = kv["key"].as_str().and_then(decode) else { continue };
            let revision = kv["mod_revision"].as_i64().unwrap_or_default();
            let is_deleted = event["type"] == 1;
            let value = kv["value"].as_str().and_then(decode).filter(|_| !is_deleted);
            let is_new = !is_deleted && kv["create_revision"].as_i64() == Some(revision);
            let change = EtcdChange { at, key: key.clone(), value, is_new };
            let known = changes.entry((revision, key)).or_insert(change);
            known.at = known.at.min(at);
        }
    }
    Ok(())
}

/// The text of base64.
fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let (mut bits, mut count) = (0_u32, 0);
    for byte in text.bytes().filter(|byte| *byte != b'=') {
        let digit = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(digit);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push(u8::try_from(bits >> count & 0xFF).ok()?);
        }
    }
    String::from_utf8(bytes).ok()
}

/// The findings, from the keys of open findings.
fn findings(changes: &EtcdChanges, facts: &RecordedFacts) -> Vec<ClusterFinding> {
    let prefix = format!("{PREFIX}finding/");
    let mut findings: Vec<ClusterFinding> = Vec::new();
    for change in changes.values() {
        let Some(id) = change.key.strip_prefix(&prefix) else { continue };
        let open =
            findings.iter_mut().rev().find(|finding| finding.id == id && finding.close.is_none());
        match (&change.value, open) {
            (None, Some(open)) => open.close = Some(change.at),
            (Some(value), None) if change.is_new => {
                findings.push(finding(id, value, change.at, facts));
            }
            _ => {}
        }
    }
    findings
}

fn finding(id: &str, value: &str, open: Micros, facts: &RecordedFacts) -> ClusterFinding {
    let record: Value = serde_json::from_str(value).unwrap_or_default();
    let text = |key: &str| record[key].as_str().unwrap_or_default().to_owned();
    ClusterFinding {
        id: id.to_owned(),
        name: text("name"),
        subject: subject(&record, facts),
        open,
        close: None,
        text: text("text"),
        reporter: text("reporter"),
    }
}

/// The group or node of a record or document.
pub fn subject(record: &Value, facts: &RecordedFacts) -> Option<FactSubject> {
    if let Some(group) = record["group"].as_str() {
        return LabGroup::of_id(group, facts).map(FactSubject::Group);
    }
    let node = record["nodes"][0].as_str()?;
    node_number(node).map(FactSubject::Node)
}

/// The number of a node with this name.
pub fn node_number(name: &str) -> Option<usize> {
    if name == "sim" {
        return Some(SIMULATED_NODE);
    }
    name.strip_prefix("node")?.parse().ok().filter(|node| *node < HOSTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_decoded() {
        assert_eq!(decode("bm9kZS9zaW0=").as_deref(), Some("node/sim"));
        assert_eq!(decode("YQ==").as_deref(), Some("a"));
        assert_eq!(decode("!"), None);
    }

    #[test]
    fn nodes_are_known_by_their_names() {
        assert_eq!(node_number("node2"), Some(2));
        assert_eq!(node_number("sim"), Some(3));
        assert_eq!(node_number("node7"), None);
    }
}
