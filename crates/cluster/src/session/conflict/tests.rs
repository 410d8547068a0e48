// SPDX-License-Identifier: Apache-2.0
//! Tests of conflicts: which claims of two nodes are to be confirmed at once.

use super::*;
use crate::record::RoleRecord;
use crate::sample::{TestCluster, role_record};

fn claim(node: &str, addresses: &[&str]) -> RoleRecord {
    let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
    RoleRecord { addresses, ..role_record(node, "VI_1", RoleKind::Primary) }
}

/// Whether node `a` sees a conflict with node `c`.
fn has_conflict(own: &[&str], other: &[&str]) -> bool {
    let mut cluster = TestCluster::new();
    cluster.start("a");
    cluster.start("c");
    let bucket = Bucket::Vrrp { is_ipv6: true, vrid: Some(61) };
    cluster.publish(&bucket, &claim("a", own));
    cluster.publish(&bucket, &claim("c", other));
    let mut conflicts = Conflicts::default();
    conflicts.check(&cluster.view, &"a".parse().unwrap(), &bucket);
    !conflicts.is_empty()
}

#[test]
fn claims_of_different_links_with_the_same_link_local_address_are_no_conflict() {
    let own = ["fe80::1/64", "2001:db8:1::1/64"];
    assert!(!has_conflict(&own, &["fe80::1/64", "2001:db8:2::1/64"]));
    assert!(!has_conflict(&own, &["fe80::1/64"]));
    assert!(has_conflict(&own, &["fe80::2/64", "2001:db8:1::1/64"]));
    assert!(has_conflict(&["fe80::1/64"], &["fe80::1/64"]), "they have no other address");
}
