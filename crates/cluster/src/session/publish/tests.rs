// SPDX-License-Identifier: Apache-2.0
//! The difference between the wanted roles and those in etcd.

use vipwatch_api::RoleKind;

use super::*;
use crate::sample::{key_space, role_record, router, vrid_51};

const LEASE: LeaseId = LeaseId(7);

fn roles() -> PublishedRoles {
    PublishedRoles::new(key_space(), "a".parse().unwrap(), "epoch".to_owned())
}

fn id(name: &str) -> InstanceId {
    name.parse().unwrap()
}

fn backup(instance: &InstanceId) -> WantedRole {
    let record = role_record("a", instance.as_str(), RoleKind::Backup);
    WantedRole { bucket: vrid_51(), record }
}

fn next_batch(roles: &mut PublishedRoles) -> Option<RoleBatch> {
    roles.next_batch(LEASE, |instance| Some(backup(instance)))
}

/// The number of operations of the next transaction, which is carried out at a revision.
fn commit(roles: &mut PublishedRoles, revision: i64) -> usize {
    let Some(batch) = next_batch(roles) else { return 0 };
    let count = batch.operations.len();
    roles.committed(batch, revision);
    count
}

fn key_of(bucket: Bucket, instance: &str) -> RoleKey {
    RoleKey { bucket, node: "a".parse().unwrap(), instance: id(instance) }
}

/// The value in etcd after [`commit`].
fn stored(instance: &str, mod_revision: i64, lease: LeaseId) -> StoredValue {
    let mut record = role_record("a", instance, RoleKind::Backup);
    record.epoch = "epoch".to_owned();
    let key = key_space().text(&ClusterKey::Role(key_of(vrid_51(), instance)));
    StoredValue { key, value: encode(&record), mod_revision, create_revision: 1, lease: lease.0 }
}

#[test]
fn a_transaction_has_at_most_a_hundred_operations() {
    let mut roles = roles();
    for number in 0..250 {
        roles.mark(&id(&format!("i{number}")), Some(vrid_51()));
    }
    let counts: Vec<usize> = (1..5).map(|revision| commit(&mut roles, revision)).collect();
    assert_eq!(counts, [100, 100, 50, 0]);
}

#[test]
fn a_value_that_etcd_has_already_is_not_written() {
    let mut roles = roles();
    roles.mark(&id("i1"), Some(vrid_51()));
    roles.values(&[stored("i1", 4, LEASE)]);
    assert_eq!(commit(&mut roles, 5), 0);
    roles.mark(&id("i1"), Some(vrid_51()));
    assert_eq!(commit(&mut roles, 6), 0);
}

#[test]
fn a_value_with_another_lease_is_written_again() {
    let mut roles = roles();
    roles.mark(&id("i1"), Some(vrid_51()));
    roles.values(&[stored("i1", 4, LeaseId(3))]);
    assert_eq!(commit(&mut roles, 5), 1);
    assert_eq!(commit(&mut roles, 6), 0);
}

#[test]
fn an_event_that_is_older_than_the_last_write_changes_nothing() {
    let mut roles = roles();
    roles.mark(&id("i1"), Some(vrid_51()));
    assert_eq!(commit(&mut roles, 5), 1);
    let deleted = |revision| OwnRoleChange { value: None, revision };
    roles.observe(key_of(vrid_51(), "i1"), deleted(4));
    assert_eq!(commit(&mut roles, 6), 0);
    roles.observe(key_of(vrid_51(), "i1"), deleted(6));
    assert_eq!(commit(&mut roles, 7), 1);
}

#[test]
fn a_failed_transaction_is_repeated() {
    let mut roles = roles();
    roles.mark(&id("i1"), Some(vrid_51()));
    let batch = next_batch(&mut roles).unwrap();
    roles.failed(batch);
    assert_eq!(commit(&mut roles, 5), 1);
}

#[test]
fn keys_of_a_process_before_that_are_not_wanted_are_deleted() {
    let mut roles = roles();
    roles.mark(&id("i1"), Some(vrid_51()));
    let text = |bucket, instance| key_space().text(&ClusterKey::Role(key_of(bucket, instance)));
    let foreign = "/vipwatch/v1/prod/role/vrrp:ipv4:51/b/i1".to_owned();
    let old = [text(vrid_51(), "i1"), text(router("i1"), "i1"), text(vrid_51(), "i2"), foreign];
    roles.note_keys(&old);
    // One write and two deletions.
    assert_eq!(commit(&mut roles, 5), 3);
    assert_eq!(commit(&mut roles, 6), 0);
}

#[test]
fn an_instance_that_changes_its_bucket_has_one_key() {
    let mut roles = roles();
    roles.mark(&id("i1"), Some(router("i1")));
    assert!(roles.take_bucket_change());
    // The record says another bucket than the mark: the record counts.
    assert_eq!(commit(&mut roles, 5), 1);
    assert_eq!(roles.bucket_prefixes().collect::<Vec<_>>(), [key_space().bucket(&vrid_51())]);
    roles.mark(&id("i1"), None);
    assert_eq!(commit(&mut roles, 6), 1);
    assert_eq!(commit(&mut roles, 7), 0);
}
