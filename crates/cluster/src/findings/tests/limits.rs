// SPDX-License-Identifier: Apache-2.0
//! Records with values at their limits and beyond.

use super::*;
use crate::record::{MAX_VALUE_BYTES, encode};

#[test]
fn a_finding_about_many_nodes_fits_into_a_record() {
    let mut lab = Evaluation::new(&["a"]);
    for number in 0..200 {
        let node = format!("a-node-with-a-long-name-{number:040}");
        lab.cluster.start(&node);
        let addresses = (0..127).map(|last| format!("2001:db8:{number:x}::{last:x}/64"));
        let mut record = role_record(&node, "VI_1", Primary);
        record.addresses.extend(addresses.map(|text| text.parse::<ipnet::IpNet>().unwrap()));
        record.findings = vec!["\u{1}".repeat(200)];
        lab.publish(&record);
    }
    lab.confirm();
    let changes = lab.pass_changes(70.0);
    assert!(changes.len() >= 2, "{changes:?}");
    for change in changes {
        let (ClusterFindingChange::Opened(record)
        | ClusterFindingChange::Changed(record)
        | ClusterFindingChange::Found { record, .. }
        | ClusterFindingChange::Closed(record)) = change;
        let bytes = encode(&record).len();
        assert!(bytes <= MAX_VALUE_BYTES, "{}: {bytes}", record.name);
        assert!(!record.evidence.is_empty());
    }
}

#[test]
fn an_advert_interval_that_vrrp_does_not_allow_delays_no_finding() {
    let mut lab = Evaluation::new(&["a", "b"]);
    let record = RoleRecord { advert_ms: Some(u64::MAX), ..role_record("b", "VI_1", Primary) };
    lab.publish(&record);
    lab.confirm();
    assert!(lab.pass(300.0).contains(&"+two-primaries".to_owned()));
}
