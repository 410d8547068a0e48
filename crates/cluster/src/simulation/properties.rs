// SPDX-License-Identifier: Apache-2.0
//! The properties that are checked after a quiet time. Those about each opening are in `content/judge.rs`.

use std::collections::BTreeMap;

use tokio::time::Instant;
use vipwatch_api::{
    ClusterConnectionState, DrainQuestion, DrainVerdict, Timestamp, drain_check_of_cluster,
};
use vipwatch_core::FindingKind;

use super::node::TARGET;
use super::run::SimulatedCluster;
use super::store::EtcdStore;
use super::{NAMES, NODES, PREFIX};
use crate::document;
use crate::key::{Bucket, ClusterKey, KeySpace};
use crate::record::{ClusterRecord, FindingRecord, RoleRecord};
use crate::session::ClusterHandle;
use crate::view::ClusterView;

/// The revision of each key, and a text of its value.
type KeyTexts = BTreeMap<String, (i64, String)>;

impl SimulatedCluster {
    /// Checks all properties.
    pub(super) async fn check(&mut self) {
        self.trace.add(format_args!("== check"));
        for (node, handle) in self.running() {
            let (name, counters) = (NAMES[node], handle.counters());
            let (resyncs, losses) = (counters.resyncs, counters.lease_losses);
            self.trace.add(format_args!("{name}: {resyncs} resyncs, {losses} lost leases"));
        }
        self.wait_for(Self::disconnected).await;
        self.wait_for(Self::unpublished).await;
        self.wait_for(Self::different_views).await;
        self.wait_for(Self::wrongly_silenced).await;
        self.wait_for(Self::undelivered).await;
        self.check_drain_verdicts();
        let now = self.trace.now();
        self.network.state().content.judge_quiet(now);
    }

    /// If nothing fails between a verdict `ready` or `drained` about a node and the stop of its keepalived, its addresses are
    /// held elsewhere within [`MASTER_DOWN`](super::keepalived::MASTER_DOWN).
    fn check_drain_verdicts(&mut self) {
        let Some((_, reporter)) = self.running().find(|(_, handle)| handle.is_reporter()) else {
            return;
        };
        let (view, basis) = (reporter.view(), reporter.basis());
        let groups = document::groups(&view, basis.clone());
        let nodes = document::nodes(&view, basis).items;
        drop(view);
        let mut failures = Vec::new();
        for item in &nodes {
            let Some(node) = NAMES.iter().position(|name| *name == item.node) else { continue };
            for question in [DrainQuestion::Now, DrainQuestion::If] {
                let check = drain_check_of_cluster(question, &groups, item, Timestamp::UNIX_EPOCH);
                let is_yes = matches!(check.verdict, DrainVerdict::Drained | DrainVerdict::Ready);
                if !is_yes {
                    continue;
                }
                self.yes_verdicts += 1;
                let unheld = self.vrrp.unheld_after_stop(node, Instant::now());
                if !unheld.is_empty() {
                    let verdict = check.verdict;
                    failures.push(format!(
                        "{} is {verdict:?}, and nobody takes over {unheld:?}",
                        item.node
                    ));
                }
            }
        }
        for failure in failures {
            self.fail(&failure);
        }
    }

    fn running(&self) -> impl Iterator<Item = (usize, &ClusterHandle)> {
        (0..NODES).filter_map(|node| Some((node, self.nodes[node].handle()?)))
    }

    /// Each running node is connected and registered, and one of them is the reporter.
    fn disconnected(&self) -> Vec<String> {
        let mut differences = Vec::new();
        for (node, handle) in self.running() {
            let state = handle.basis().connection;
            if state != ClusterConnectionState::Connected || !handle.is_registered() {
                let error = handle.basis().error;
                let name = NAMES[node];
                differences.push(format!("{name} is {state:?} and not registered: {error:?}"));
            }
        }
        let reporters = self.running().filter(|(_, handle)| handle.is_reporter()).count();
        if reporters != usize::from(self.running().next().is_some()) {
            differences.push(format!("{reporters} reporters"));
        }
        differences
    }

    /// etcd has the present roles of each running node, and no others.
    fn unpublished(&self) -> Vec<String> {
        let mut differences = Vec::new();
        for (node, _) in self.running() {
            let wanted = self.nodes[node].side.wanted_roles();
            let state = self.network.state();
            let published: BTreeMap<String, _> = roles_of(&state.store, NAMES[node]).collect();
            let lease =
                |key: &str| state.store.get(format!("{PREFIX}{key}").as_bytes())?.lease.into();
            let membership: Option<i64> = lease(&format!("member/{}", NAMES[node]));
            for instance in wanted.keys() {
                let key = format!("role/router:{instance}/{}/{instance}", NAMES[node]);
                if lease(&key) != membership {
                    differences.push(format!("{key} has another lease than its node"));
                }
            }
            if wanted != published {
                let name = NAMES[node];
                differences.push(format!("{name} has {wanted:?} and published {published:?}"));
            }
        }
        differences
    }

    /// The view of each running node is the content of etcd in the ranges that it follows.
    fn different_views(&self) -> Vec<String> {
        let keys = KeySpace::new(&"sim".parse().unwrap());
        let content = texts_of(&self.network.state().store, &keys);
        let mut differences = Vec::new();
        for (node, handle) in self.running() {
            let own = self.nodes[node].side.wanted_roles();
            let is_followed = |key: &str| {
                let group = key.strip_prefix("role/router:").and_then(|key| key.split('/').next());
                group.is_none_or(|group| handle.is_reporter() || own.contains_key(group))
            };
            let view = texts_of_view(&handle.view(), &keys);
            let expected = content.iter().filter(|(key, _)| is_followed(key));
            for (key, value) in expected {
                if view.get(key) != Some(value) {
                    let (name, seen) = (NAMES[node], view.get(key));
                    differences.push(format!("{name} has {key} {seen:?}, etcd has {value:?}"));
                }
            }
            for key in view.keys().filter(|key| !content.contains_key(*key) || !is_followed(key)) {
                differences.push(format!("{} has {key}, which etcd does not have", NAMES[node]));
            }
        }
        differences
    }

    /// A finding about several nodes is silenced if, and only if, a silence in etcd covers each of them.
    fn wrongly_silenced(&self) -> Vec<String> {
        let Some((_, handle)) = self.running().next() else { return Vec::new() };
        let state = self.network.state();
        let silenced = |node: &String| {
            let prefix = format!("{PREFIX}silence/{node}.");
            let mut keys =
                state.store.all().filter(|value| value.key.starts_with(prefix.as_bytes()));
            keys.next().is_some()
        };
        let kinds = [
            FindingKind::ClusterTwoPrimaries,
            FindingKind::ClusterNoPrimary,
            FindingKind::ClusterNodeLost,
        ];
        let view = handle.view();
        let findings = view.findings().filter(|it| kinds.iter().any(|kind| kind.name() == it.name));
        let wrong = findings.filter(|it| it.silenced.is_some() != it.nodes.iter().all(silenced));
        wrong.map(|it| format!("{} has the silence {:?}", it.id, it.silenced)).collect()
    }

    /// The target has received all open findings but those that are a part of another one. A reporter does not deliver the flapping
    /// that only an earlier one has seen.
    fn undelivered(&self) -> Vec<String> {
        let Some((_, handle)) = self.running().next() else { return Vec::new() };
        let view = handle.view();
        let findings =
            view.findings().filter(|record| record.name != FindingKind::ClusterFlapping.name());
        let is_held = |it: &FindingRecord| it.part_of.is_some() || it.silenced.is_some();
        let missing =
            findings.filter(|record| !is_held(record) && record.notified_open != [TARGET]);
        missing.map(|record| format!("{} is not delivered", record.id)).collect()
    }
}

/// The roles of a node in etcd, by instance.
fn roles_of(
    store: &EtcdStore,
    node: &str,
) -> impl Iterator<Item = (String, vipwatch_api::RoleKind)> {
    store.all().filter_map(move |value| {
        let key = std::str::from_utf8(&value.key).ok()?.strip_prefix(PREFIX)?;
        let instance = key.strip_prefix("role/")?.split_once(&format!("/{node}/"))?.1;
        let record: RoleRecord = serde_json::from_slice(&value.value).ok()?;
        Some((instance.to_owned(), record.role))
    })
}

/// The keys of etcd.
fn texts_of(store: &EtcdStore, keys: &KeySpace) -> KeyTexts {
    let text = |value: &crate::etcd::messages::KeyValue| {
        let text = std::str::from_utf8(&value.key).ok()?;
        let key = keys.parse(text)?;
        let record = ClusterRecord::decode(&key, &value.value).ok()?;
        let short = text.strip_prefix(PREFIX)?.to_owned();
        let revision = if matches!(key, ClusterKey::Closed(_)) { 0 } else { value.mod_revision };
        Some((short, (revision, described(&record))))
    };
    store.all().filter_map(text).collect()
}

/// The same of a view.
fn texts_of_view(view: &ClusterView, keys: &KeySpace) -> KeyTexts {
    let mut texts = KeyTexts::new();
    let mut add = |key: &ClusterKey, revision: i64, record: &ClusterRecord| {
        let text = keys.text(key);
        let short = text.strip_prefix(PREFIX).unwrap_or(&text).to_owned();
        texts.insert(short, (revision, described(record)));
    };
    for node in view.nodes() {
        if let Some(it) = node.process {
            let record = ClusterRecord::Node(Box::new(it.record.clone()));
            add(&ClusterKey::Node(node.name.clone()), it.mod_revision, &record);
        }
        if let Some(it) = node.member {
            let record = ClusterRecord::Member(it.record.clone());
            add(&ClusterKey::Member(node.name.clone()), it.mod_revision, &record);
        }
    }
    if let Some(it) = view.reporter_key() {
        let record = ClusterRecord::Reporter(it.record.clone());
        add(&ClusterKey::Reporter, it.mod_revision, &record);
    }
    for bucket in view.buckets().collect::<Vec<Bucket>>() {
        for role in view.roles(&bucket) {
            let instance = role.record.instance.parse().unwrap();
            let key = crate::key::RoleKey { bucket: bucket.clone(), node: role.node, instance };
            let record = ClusterRecord::Role(Box::new(role.record));
            add(&ClusterKey::Role(key), role.mod_revision, &record);
        }
    }
    for record in view.findings() {
        let id = record.id.parse().unwrap();
        let revision = view.finding(&id).map_or(0, |stored| stored.mod_revision);
        let record = ClusterRecord::Finding(Box::new(record.clone()));
        add(&ClusterKey::Finding(id), revision, &record);
    }
    for (id, stored) in view.silences() {
        let record = ClusterRecord::Silence(stored.record.clone());
        add(&ClusterKey::Silence(id.clone()), stored.mod_revision, &record);
    }
    for record in view.closed_findings() {
        let id: crate::key::FindingId = record.id.parse().unwrap();
        let record = ClusterRecord::Finding(Box::new(record.clone()));
        // A view does not say the revision of a finding that has ended.
        add(&ClusterKey::Closed(id), 0, &record);
    }
    texts
}

/// The fields that differ between two versions of a key.
fn described(record: &ClusterRecord) -> String {
    match record {
        ClusterRecord::Node(it) => format!("{} {} {}", it.process, it.heartbeat, it.seen),
        ClusterRecord::Member(it) => format!("{:?} {}", it.state, it.lease),
        ClusterRecord::Role(it) => it.role.word().to_owned(),
        ClusterRecord::Reporter(it) => format!("{} {}", it.node, it.process),
        ClusterRecord::Silence(it) => it.id.clone(),
        ClusterRecord::Finding(it) => {
            format!("{} {:?} {:?}", it.text, it.notified_open, it.notified_closed)
        }
    }
}
