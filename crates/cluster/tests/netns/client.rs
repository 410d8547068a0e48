// SPDX-License-Identifier: Apache-2.0
//! Ranges, transactions, leases and watches.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::time::Duration;

use vipwatch_cluster::etcd::messages::{Compare, PutRequest, RequestOp};
use vipwatch_cluster::etcd::{EtcdConnection, EtcdError, RangePage, ReadLimit, WatchMessage};
use vipwatch_cluster::view::{StoredValue, ViewChange};
use vipwatch_testkit::{Etcd, Lab};

use crate::support::{block_on, connect, open, settings};

/// Writes keys without a condition; returns the revision.
async fn put(connection: &EtcdConnection, entries: &[(String, Vec<u8>)]) -> i64 {
    let mut revision = 0;
    for batch in entries.chunks(100) {
        let operations: Vec<RequestOp> =
            batch.iter().map(|(key, value)| RequestOp::put(key, value.clone(), None)).collect();
        revision = connection.commit(Vec::new(), operations, "/").await.unwrap().revision;
    }
    revision
}

fn numbered(prefix: &str, count: usize) -> Vec<(String, Vec<u8>)> {
    (0..count).map(|number| (format!("{prefix}{number:05}"), b"value".to_vec())).collect()
}

fn no_limit(_: &str) -> ReadLimit {
    ReadLimit { records: usize::MAX, bytes: usize::MAX }
}

async fn read(connection: &EtcdConnection, prefix: &str, revision: i64) -> (Vec<StoredValue>, i64) {
    let mut values = Vec::new();
    let page = |page: RangePage| {
        values.extend(page.values);
        ControlFlow::Continue(())
    };
    let read = connection.read_prefix(prefix, revision, page).await;
    (values, read.unwrap())
}

#[test]
fn a_range_of_several_pages_is_read_at_one_revision() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    block_on(async {
        let connection = connect(&etcd).await;
        put(&connection, &numbered("/other/", 3)).await;
        let before = put(&connection, &numbered("/range/", 1_200)).await;
        put(&connection, &numbered("/range/late-", 10)).await;
        let (values, revision) = read(&connection, "/range/", before).await;
        assert_eq!((values.len(), revision), (1_200, before));
        assert!(values.is_sorted_by(|a, b| a.key < b.key));
        let (values, revision) = read(&connection, "/range/", 0).await;
        assert_eq!((values.len(), revision), (1_210, before + 1));
    });
}

#[test]
fn keys_that_are_not_text_do_not_make_a_read_endless() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    block_on(async {
        let connection = connect(&etcd).await;
        // More than a page. The replacement character of the first byte sorts before that byte.
        for number in 0..600 {
            let key = [b"/range/\xff", format!("{number:05}").as_bytes()].concat();
            let put = PutRequest { key, value: b"value".to_vec(), lease: 0 };
            connection.call("a put", put).await.unwrap();
        }
        let mut count = 0;
        let read = connection.read_prefix("/range/", 0, |page| {
            count += page.values.len();
            assert!(count <= 600, "a key is read twice");
            ControlFlow::Continue(())
        });
        let revision = read.await.unwrap();
        assert_eq!(count, 600);
        let prefixes = ["/range/".to_owned()];
        let all = connection.read_prefixes(&prefixes, revision, no_limit, |range| {
            count -= range.values.len();
        });
        all.await.unwrap();
        assert_eq!(count, 0);
    });
}

#[test]
fn values_that_are_too_long_together_are_read_in_smaller_pages() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    block_on(async {
        let connection = connect(&etcd).await;
        for number in 0..9 {
            put(&connection, &[(format!("/long/{number}"), vec![b'x'; 1_000_000])]).await;
        }
        put(&connection, &[("/long/z".to_owned(), b"short".to_vec())]).await;
        let (values, revision) = read(&connection, "/long/", 0).await;
        assert_eq!(values.len(), 10);
        assert_eq!(values[9].value, b"short");
        let mut ranges = Vec::new();
        let prefixes = ["/long/", "/empty/"].map(str::to_owned);
        let all =
            connection.read_prefixes(&prefixes, revision, no_limit, |range| ranges.push(range));
        all.await.unwrap();
        let sizes: Vec<(&str, usize)> =
            ranges.iter().map(|range| (range.prefix.as_str(), range.values.len())).collect();
        assert_eq!(sizes, [("/long/", 10), ("/empty/", 0)]);
    });
}

#[test]
fn many_ranges_are_read_at_one_revision() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    block_on(async {
        let connection = connect(&etcd).await;
        let prefixes: Vec<String> = (0..250).map(|number| format!("/many/{number}/")).collect();
        for prefix in &prefixes {
            put(&connection, &numbered(prefix, 2)).await;
        }
        let before = put(&connection, &numbered(&prefixes[7], 120)).await;
        put(&connection, &numbered("/many/9/late-", 1)).await;
        let mut sizes = Vec::new();
        let count = connection.read_prefixes(&prefixes, before, no_limit, |range| {
            sizes.push(range.values.len());
        });
        count.await.unwrap();
        assert_eq!(sizes.len(), 250);
        assert_eq!(sizes.iter().sum::<usize>(), 249 * 2 + 120);
        assert_eq!((sizes[7], sizes[9]), (120, 2));
    });
}

#[test]
fn a_transaction_with_a_false_comparison_writes_nothing_and_reads_the_key() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    block_on(async {
        let connection = connect(&etcd).await;
        let absent = || vec![Compare::create_revision_is("/key", 0)];
        let write = |value: &str| vec![RequestOp::put("/key", value, None)];
        let first = connection.commit(absent(), write("first"), "/key").await.unwrap();
        assert!(first.is_done);
        let second = connection.commit(absent(), write("second"), "/key").await.unwrap();
        assert!(!second.is_done);
        assert_eq!(second.found.unwrap().value, b"first");
        let (value, revision) = connection.read_key("/key").await.unwrap();
        assert_eq!(value.unwrap().value, b"first");
        assert_eq!(revision, first.revision);
    });
}

#[test]
fn a_lease_has_its_keys_until_it_ends() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    block_on(async {
        let connection = connect(&etcd).await;
        let lease = connection.grant(Duration::from_mins(1)).await.unwrap();
        let write = vec![RequestOp::put("/leased", "value", Some(lease))];
        let written = connection.commit(Vec::new(), write, "/leased").await.unwrap();
        let state = connection.lease_state(lease).await.unwrap().unwrap();
        assert_eq!(state.keys, ["/leased"]);
        let mut stream = connection.keep_lease(lease).await.unwrap();
        assert_eq!(connection.renew(&mut stream).await.unwrap(), written.revision);

        connection.revoke(lease).await.unwrap();
        assert!(connection.lease_state(lease).await.unwrap().is_none());
        assert!(connection.read_key("/leased").await.unwrap().0.is_none());
        let renewed = connection.renew(&mut stream).await;
        assert!(matches!(renewed, Err(EtcdError::LeaseEnded { lease: id }) if id == lease.0));
        let kept = connection.keep_lease(lease).await;
        assert!(matches!(kept, Err(EtcdError::LeaseEnded { lease: id }) if id == lease.0));
        connection.revoke(lease).await.unwrap();
    });
}

#[test]
fn a_lost_connection_is_not_the_end_of_a_lease() {
    let lab = Lab::new();
    let mut etcd = Etcd::single(lab.path());
    block_on(async {
        let connection = connect(&etcd).await;
        let lease = connection.grant(Duration::from_mins(1)).await.unwrap();
        let mut stream = connection.keep_lease(lease).await.unwrap();
        etcd.kill(0);
        // The second request finds that the stream has ended already.
        for _ in 0..2 {
            let renewed = connection.renew(&mut stream).await;
            assert!(matches!(renewed, Err(EtcdError::Disconnected { .. })), "{renewed:?}");
        }
    });
}

#[test]
fn one_stream_delivers_the_changes_of_thousands_of_prefixes() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    block_on(async {
        let connection = connect(&etcd).await;
        let first = connection.revision("/").await.unwrap() + 1;
        let prefix = |number: usize| format!("/watch/{number:05}/");
        let (mut watcher, _) = connection.watch(&prefix(0), first).await.unwrap();
        for number in 1..6_000 {
            watcher.add(&prefix(number), first);
        }
        let keys: Vec<(String, Vec<u8>)> =
            (0..6_000).map(|number| (format!("{}key", prefix(number)), vec![1])).collect();
        put(&connection, &keys).await;
        let mut missing: BTreeSet<String> = keys.into_iter().map(|(key, _)| key).collect();
        while !missing.is_empty() {
            let message = connection.next_message(&mut watcher).await.unwrap();
            let WatchMessage::Changes { changes, .. } = message else { continue };
            for change in changes {
                let ViewChange::Put(value) = change else { panic!("{change:?}") };
                assert!(missing.remove(&value.key), "{} came twice", value.key);
            }
        }
    });
}

#[test]
fn a_watch_continues_from_a_revision_and_ends_when_that_is_compacted() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    block_on(async {
        let connection = connect(&etcd).await;
        let first = put(&connection, &numbered("/w/", 1)).await;
        etcd.ctl(&["del", "/w/00000"]);
        let (mut watcher, _) = connection.watch("/w/", first).await.unwrap();
        let mut seen = Vec::new();
        while seen.len() < 2 {
            if let WatchMessage::Changes { changes, .. } =
                connection.next_message(&mut watcher).await.unwrap()
            {
                seen.extend(changes);
            }
        }
        assert!(matches!(&seen[0], ViewChange::Put(value) if value.mod_revision == first));
        assert!(
            matches!(&seen[1], ViewChange::Deleted { mod_revision, .. } if *mod_revision > first)
        );

        etcd.compact();
        let late = watcher.add("/w/", first);
        let message = connection.next_message(&mut watcher).await.unwrap();
        assert!(
            matches!(message, WatchMessage::Compacted { watch } if watch == late),
            "{message:?}"
        );
        let old = connection.read_prefix("/w/", first, |_| ControlFlow::Continue(())).await;
        assert!(matches!(old, Err(EtcdError::Compacted)), "{old:?}");
    });
}

#[test]
fn a_cancelled_watch_delivers_no_more_changes() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    block_on(async {
        let connection = connect(&etcd).await;
        let first = connection.revision("/").await.unwrap() + 1;
        let (mut watcher, cancelled) = connection.watch("/a/", first).await.unwrap();
        let kept = watcher.add("/b/", first);
        put(&connection, &numbered("/b/", 1)).await;
        let message = connection.next_message(&mut watcher).await.unwrap();
        assert!(matches!(message, WatchMessage::Changes { watch, .. } if watch == kept));
        watcher.cancel(cancelled);
        // etcd answers requests of one stream in their order: the answer to a third watch comes after the cancellation.
        let last = watcher.add("/c/", first);
        put(&connection, &numbered("/c/", 1)).await;
        let message = connection.next_message(&mut watcher).await.unwrap();
        assert!(matches!(message, WatchMessage::Changes { watch, .. } if watch == last));
        put(&connection, &numbered("/a/", 1)).await;
        put(&connection, &numbered("/c/second-", 1)).await;
        let message = connection.next_message(&mut watcher).await.unwrap();
        assert!(matches!(message, WatchMessage::Changes { watch, .. } if watch == last));
    });
}

#[test]
fn a_paused_member_is_left_after_the_time_limit() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    block_on(async {
        let mut settings = settings(&etcd);
        settings.timeout = Duration::from_millis(300);
        let connection = open(&settings).await.unwrap();
        etcd.pause(0);
        let answer = connection.read_key("/key").await;
        assert!(matches!(answer, Err(EtcdError::Timeout { request: "a read", .. })), "{answer:?}");
        // The kernel accepts a connection for the paused process, and no answer follows.
        let second = open(&settings).await;
        let answer = second.unwrap().read_key("/key").await;
        assert!(matches!(answer, Err(EtcdError::Timeout { .. })), "{answer:?}");
        etcd.resume(0);
        assert!(connect(&etcd).await.read_key("/key").await.is_ok());
    });
}

#[test]
fn thousands_of_small_changes_may_wait_until_they_are_read() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    block_on(async {
        let connection = connect(&etcd).await;
        let first = connection.revision("/").await.unwrap() + 1;
        let (mut watcher, _) = connection.watch("/w/", first).await.unwrap();
        // One message for each write: none of them is read before the last write.
        for _ in 0..4_000 {
            let put = PutRequest { key: b"/w/k".to_vec(), value: b"v".to_vec(), lease: 0 };
            connection.call("a put", put).await.unwrap();
        }
        let mut count = 0;
        while count < 4_000 {
            let message = connection.next_message(&mut watcher).await.unwrap();
            if let WatchMessage::Changes { changes, .. } = message {
                count += changes.len();
            }
        }
    });
}
