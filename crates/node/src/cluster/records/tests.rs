// SPDX-License-Identifier: Apache-2.0
//! The records of this node.

use std::sync::Mutex;
use std::time::UNIX_EPOCH;

use vipwatch_core::{Fault, Role, RoleKind};

use super::*;
use crate::discovery::example;

fn entry(role: Role) -> InstanceEntry {
    let since = UNIX_EPOCH + Duration::from_secs(7);
    InstanceEntry { since, seq: 3, ..InstanceEntry::new(Arc::new(example()), role, Arc::from([])) }
}

fn records(store: &Arc<StateStore>) -> PublishedRecords {
    let directory = tempfile::tempdir().unwrap();
    let silences = Arc::new(Silences::new(Vec::new()).unwrap());
    let (node, state_dir) = ("net-1".parse().unwrap(), directory.path().to_owned());
    PublishedRecords::new(Arc::clone(store), node, state_dir, silences)
}

#[test]
fn a_record_has_the_published_state_of_its_instance() {
    let store = Arc::new(StateStore::default());
    let records = records(&store);
    let id: InstanceId = "A".parse().unwrap();
    assert_eq!(records.role(&id), None);
    store.insert(entry(Role::Fault(Fault::NoNetns)));
    assert_eq!(records.instances(), std::slice::from_ref(&id));
    let WantedRole { bucket, record } = records.role(&id).unwrap();
    assert_eq!(bucket.to_string(), "vrrp:ipv4:1");
    assert_eq!((record.role, record.seq, record.vrid), (RoleKind::Fault, 3, Some(1)));
    assert_eq!(record.since.map(vipwatch_api::Timestamp::as_second), Some(7));
    assert!(record.reason.is_some());
    assert_eq!(record.addresses, ["192.0.2.1/32".parse().unwrap()]);
    assert_eq!(record.adverts, ReceivedAdverts::Unknown);
    assert_eq!(records.role(&id).unwrap().record, record, "the same state makes the same record");
}

#[test]
fn the_bucket_is_that_of_the_group() {
    let node: ClusterName = "net-1".parse().unwrap();
    let name = |entry: &InstanceEntry| bucket(&node, entry).to_string();
    let mut entry = entry(Role::Backup);
    for (group, expected) in [
        ("group:web~2Ffront", "group:web~2Ffront"),
        ("router:A", "router:A"),
        ("vrrp:ipv4:-:192.0.2.1", "vrrp:ipv4:-"),
        ("alone:net-1:A", "alone:net-1:A"),
    ] {
        entry.group = group.into();
        assert_eq!(name(&entry), expected);
    }
}

#[test]
fn each_change_of_an_entry_marks_its_instance() {
    let store = Arc::new(StateStore::default());
    let marked = Arc::new(Mutex::new(Vec::new()));
    let marks = Arc::clone(&marked);
    store.follow_changes(Arc::new(move |id| marks.lock().unwrap().push(id.to_string())));
    store.insert(entry(Role::Backup));
    store.amend(&"A".parse().unwrap(), |entry| entry.seq = 9);
    assert_eq!(*marked.lock().unwrap(), ["A", "A"]);
}
