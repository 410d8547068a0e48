// SPDX-License-Identifier: Apache-2.0
//! Any text as keys and values of etcd, a key on one line and its value on the next: a key must be the same after it was
//! parsed, the value that is taken over must be the same after it was written again, and the view must take any order.

#![no_main]

use libfuzzer_sys::fuzz_target;
use vipwatch_cluster::key::{ClusterName, KeySpace};
use vipwatch_cluster::record::{ClusterRecord, encode};
use vipwatch_cluster::view::{ClusterView, StoredValue, ViewChange};
use vipwatch_fuzz::within_budget;

fuzz_target!(|text: &str| within_budget(text.len(), || {
    let keys = KeySpace::new(&ClusterName::default_domain());
    let mut view = ClusterView::new(keys.clone());
    let mut lines = text.lines();
    for revision in 1.. {
        let Some(key) = lines.next() else { break };
        let key = format!("{}{key}", keys.all());
        let value = lines.next().unwrap_or_default().as_bytes();
        if let Some(parsed) = keys.parse(&key) {
            assert_eq!(keys.text(&parsed), key, "each key has one text");
            if let Ok(record) = ClusterRecord::decode(&parsed, value) {
                // A value may be longer than the limit after it was written again, for example with escaped characters.
                let again = ClusterRecord::decode(&parsed, &written(&record));
                assert!(again.is_err() || again.is_ok_and(|again| again == record));
            }
        }
        let change = if value.is_empty() {
            ViewChange::Deleted { key, mod_revision: revision }
        } else {
            let (mod_revision, create_revision) = (revision, revision);
            let value = value.to_vec();
            ViewChange::Put(StoredValue { key, value, mod_revision, create_revision, lease: 0 })
        };
        view.apply(change);
    }
    assert!(view.findings().count() <= text.lines().count());
    let _ = view.ignored();
}));

fn written(record: &ClusterRecord) -> Vec<u8> {
    match record {
        ClusterRecord::Node(record) => encode(record),
        ClusterRecord::Member(record) => encode(record),
        ClusterRecord::Role(record) => encode(record),
        ClusterRecord::Reporter(record) => encode(record),
        ClusterRecord::Finding(record) => encode(record),
        ClusterRecord::Silence(record) => encode(record),
    }
}
