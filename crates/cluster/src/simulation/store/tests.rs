// SPDX-License-Identifier: Apache-2.0
//! Tests of the simulated etcd.

use tokio::time::Instant;

use super::{EtcdStore, Keys};
use crate::etcd::LeaseId;
use crate::etcd::messages::{Compare, RangeRequest, RequestOp, TxnRequest, WatchEventType};

fn write(store: &mut EtcdStore, operations: Vec<RequestOp>) -> usize {
    let request = TxnRequest { success: operations, ..TxnRequest::default() };
    store.txn(&request).unwrap().1.len()
}

fn at(key: &str, revision: i64) -> RangeRequest {
    RangeRequest { key: key.into(), revision, ..RangeRequest::default() }
}

#[test]
fn a_transaction_is_one_revision_and_an_old_revision_can_be_read() {
    let mut store = EtcdStore::new(1, 1);
    write(&mut store, vec![RequestOp::put("a", "1", None), RequestOp::put("b", "1", None)]);
    write(&mut store, vec![RequestOp::put("a", "2", None)]);
    assert_eq!(store.revision(), 3);
    assert_eq!(store.range(&at("a", 2)).unwrap().kvs[0].value, b"1");
    assert_eq!(
        store.get(b"a").map(|value| (value.create_revision, value.mod_revision)),
        Some((2, 3))
    );
    assert!(store.range(&at("a", 9)).is_err());
    store.compact(3);
    assert!(store.range(&at("a", 2)).is_err());
    assert_eq!(store.range(&at("b", 3)).unwrap().kvs.len(), 1);
    let keys = Keys { begin: b"a".into(), end: b"z".into() };
    assert_eq!(store.changes(&keys, 2).unwrap_err(), 3);
    assert_eq!(store.changes(&keys, 3).unwrap().len(), 1);
}

#[test]
fn a_false_comparison_writes_nothing() {
    let mut store = EtcdStore::new(1, 1);
    let request = TxnRequest {
        compare: vec![Compare::create_revision_is("a", 7)],
        success: vec![RequestOp::put("a", "1", None)],
        failure: vec![RequestOp::range(at("a", 0))],
    };
    let (answer, events) = store.txn(&request).unwrap();
    assert!(!answer.succeeded && events.is_empty());
    assert_eq!(store.revision(), 1);
    let twice = vec![RequestOp::put("a", "1", None), RequestOp::delete("a")];
    assert!(store.txn(&TxnRequest { success: twice, ..TxnRequest::default() }).is_err());
}

#[test]
fn the_end_of_a_lease_deletes_its_keys() {
    let now = Instant::now();
    let mut store = EtcdStore::new(1, 1);
    let id = store.grant(10, now);
    let lease = Some(LeaseId(id));
    write(&mut store, vec![RequestOp::put("a", "1", lease), RequestOp::put("b", "1", lease)]);
    write(&mut store, vec![RequestOp::put("b", "1", None)]);
    let later = now + std::time::Duration::from_secs(10);
    assert_eq!(store.expired(later), [id]);
    let events = store.revoke(id).unwrap();
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].r#type(), WatchEventType::Delete);
    assert!(store.get(b"a").is_none() && store.get(b"b").is_some());
    assert_eq!(store.keep_alive(id, later), 0);
}
