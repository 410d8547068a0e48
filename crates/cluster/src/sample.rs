// SPDX-License-Identifier: Apache-2.0
//! Records for the tests of this crate, and a small etcd without a network: it numbers changes as etcd does.

use vipwatch_api::{RoleKind, Timestamp};

use crate::key::{Bucket, ClusterKey, KeySpace, RoleKey};
use crate::record::{
    FORMAT, MemberRecord, MemberState, NodeRecord, ReceivedAdverts, RoleRecord, SilenceRecord,
    encode,
};
use crate::view::{ClusterView, StoredValue, ViewChange};

pub(crate) fn key_space() -> KeySpace {
    KeySpace::new(&"prod".parse().unwrap())
}

pub(crate) fn time(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

pub(crate) fn vrid_51() -> Bucket {
    Bucket::Vrrp { is_ipv6: false, vrid: Some(51) }
}

pub(crate) fn router(id: &str) -> Bucket {
    Bucket::Router(id.parse().unwrap())
}

/// An instance of VRID 51 with the address 192.0.2.80.
pub(crate) fn role_record(node: &str, instance: &str, role: RoleKind) -> RoleRecord {
    RoleRecord {
        schema: FORMAT,
        node: node.to_owned(),
        instance: instance.to_owned(),
        name: instance.to_owned(),
        epoch: epoch(node),
        seq: 1,
        role,
        reason: None,
        since: Some(time(0)),
        cause: Some("preempted".to_owned()),
        origin: "keepalived".to_owned(),
        netns: None,
        interface: "eth0".to_owned(),
        vrid: Some(51),
        priority: Some(100),
        advert_ms: Some(1000),
        vrrp_version: Some(2),
        addresses: vec!["192.0.2.80/24".parse().unwrap()],
        adverts: ReceivedAdverts::Unknown,
        keepalived: Some(true),
        source: None,
        sync_group: None,
        findings: Vec::new(),
        recent: Vec::new(),
    }
}

fn epoch(node: &str) -> String {
    format!("epoch-of-{node}")
}

pub(crate) fn node_record(node: &str, heartbeat: u64, seen: i64) -> NodeRecord {
    NodeRecord {
        schema: FORMAT,
        node: node.to_owned(),
        epoch: epoch(node),
        process: format!("process-of-{node}"),
        version: "0.1.0".to_owned(),
        heartbeat,
        seen,
        seq: 1,
        instances: 1,
        at: time(0),
        started: time(0),
        heartbeat_ms: 5000,
        lease_s: 15,
        notifies: true,
    }
}

pub(crate) fn member_record(node: &str, state: MemberState) -> MemberRecord {
    let (node, epoch) = (node.to_owned(), epoch(node));
    MemberRecord { schema: FORMAT, node, epoch, state, lease: 7, at: time(0) }
}

/// Numbers changes as etcd does, and applies them to a view.
#[derive(Debug)]
pub(crate) struct TestCluster {
    pub(crate) view: ClusterView,
    pub(crate) revision: i64,
}

impl TestCluster {
    pub(crate) fn new() -> Self {
        Self { view: ClusterView::new(key_space()), revision: 0 }
    }

    pub(crate) fn put(&mut self, key: &ClusterKey, value: Vec<u8>) -> i64 {
        self.put_with(key, value, 0)
    }

    /// An operator silences a node, a group, or the instance of a group on a node.
    pub(crate) fn silence(&mut self, id: &str, node: Option<&str>, group: Option<&str>) {
        let record = SilenceRecord {
            schema: FORMAT,
            id: id.to_owned(),
            node: node.map(str::to_owned),
            group: group.map(str::to_owned),
            reason: "reboot".to_owned(),
            created_by: "root".to_owned(),
            at: time(0),
            until: time(3600),
        };
        self.put_with(&ClusterKey::Silence(id.parse().unwrap()), encode(&record), 9);
    }

    /// A silence ends.
    pub(crate) fn end_silence(&mut self, id: &str) {
        self.delete(&ClusterKey::Silence(id.parse().unwrap()));
    }

    fn put_with(&mut self, key: &ClusterKey, value: Vec<u8>, lease: i64) -> i64 {
        self.revision += 1;
        let mod_revision = self.revision;
        let key = key_space().text(key);
        let create_revision = mod_revision;
        let value = StoredValue { key, value, mod_revision, create_revision, lease };
        self.view.apply(ViewChange::Put(value));
        mod_revision
    }

    pub(crate) fn delete(&mut self, key: &ClusterKey) {
        self.revision += 1;
        let (key, mod_revision) = (key_space().text(key), self.revision);
        self.view.apply(ViewChange::Deleted { key, mod_revision });
    }

    /// The node starts, and has seen everything.
    pub(crate) fn start(&mut self, node: &str) {
        self.heartbeat(node, self.revision);
        let record = member_record(node, MemberState::Running);
        self.put(&ClusterKey::Member(node.parse().unwrap()), encode(&record));
    }

    pub(crate) fn heartbeat(&mut self, node: &str, seen: i64) {
        let record = node_record(node, self.revision.unsigned_abs() + 1, seen);
        self.put(&ClusterKey::Node(node.parse().unwrap()), encode(&record));
    }

    /// All these nodes confirm their roles with the present revision.
    pub(crate) fn confirm(&mut self, nodes: &[&str]) {
        let seen = self.revision;
        for node in nodes {
            self.heartbeat(node, seen);
        }
    }

    /// The lease of the node ends.
    pub(crate) fn lose(&mut self, node: &str) {
        self.delete(&ClusterKey::Node(node.parse().unwrap()));
    }

    /// The node is stopped in an orderly way.
    pub(crate) fn stop(&mut self, node: &str) {
        let record = member_record(node, MemberState::Stopped);
        self.put(&ClusterKey::Member(node.parse().unwrap()), encode(&record));
        self.lose(node);
    }

    pub(crate) fn publish(&mut self, bucket: &Bucket, record: &RoleRecord) -> i64 {
        self.put(&role_key(bucket, &record.node, &record.instance), encode(record))
    }

    /// The instance `VI_1` of VRID 51 on a node takes a role.
    pub(crate) fn role(&mut self, node: &str, role: RoleKind) -> i64 {
        self.publish(&vrid_51(), &role_record(node, "VI_1", role))
    }
}

pub(crate) fn role_key(bucket: &Bucket, node: &str, instance: &str) -> ClusterKey {
    let (node, instance) = (node.parse().unwrap(), instance.parse().unwrap());
    ClusterKey::Role(RoleKey { bucket: bucket.clone(), node, instance })
}
