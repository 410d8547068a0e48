// SPDX-License-Identifier: Apache-2.0
//! Tests of the records: values of other releases and values that are wrong.

use super::*;
use crate::key::KeySpace;

const ROLE: &str = r#"{"schema":1,"node":"a","instance":"VI_1","name":"VI_1","epoch":"5f3a","seq":7,
    "role":"primary","origin":"keepalived","interface":"eth0","addresses":["192.0.2.80/24"]}"#;

fn decode_role(value: &str) -> Result<ClusterRecord, ClusterRecordError> {
    let keys = KeySpace::new(&"prod".parse().unwrap());
    let key = keys.parse("/vipwatch/v1/prod/role/vrrp:ipv4:51/a/VI_1").unwrap();
    ClusterRecord::decode(&key, value.as_bytes())
}

#[test]
fn a_record_of_the_first_release_is_read_without_the_later_fields() {
    let Ok(ClusterRecord::Role(record)) = decode_role(ROLE) else { panic!("not a role") };
    assert_eq!((record.role, record.adverts), (RoleKind::Primary, ReceivedAdverts::Unknown));
    assert!(record.findings.is_empty() && record.recent.is_empty());
}

#[test]
fn fields_and_words_of_a_later_release_are_ignored() {
    let value = ROLE.replacen('{', r#"{"colour":"red","adverts":"two","#, 1);
    let Ok(ClusterRecord::Role(record)) = decode_role(&value) else { panic!("not a role") };
    assert_eq!(record.adverts, ReceivedAdverts::Unknown);
}

#[test]
fn a_later_format_is_an_error_of_its_own() {
    let value = ROLE.replacen(r#""schema":1"#, r#""schema":3"#, 1);
    assert!(matches!(decode_role(&value), Err(ClusterRecordError::Newer(3))));
}

#[test]
fn a_record_about_another_node_is_refused() {
    let value = ROLE.replacen(r#""node":"a""#, r#""node":"b""#, 1);
    assert!(matches!(decode_role(&value), Err(ClusterRecordError::OtherKey { .. })));
}

#[test]
fn garbage_is_refused() {
    for value in ["", "null", "7", "{}", "[1]", "\u{0}", r#"{"schema":1}"#, r#"{"schema":-1}"#] {
        assert!(matches!(decode_role(value), Err(ClusterRecordError::Invalid(_))), "{value:?}");
    }
    let long = format!("{ROLE}{}", " ".repeat(MAX_VALUE_BYTES));
    assert!(matches!(decode_role(&long), Err(ClusterRecordError::TooLong { .. })));
}

#[test]
fn an_encoded_record_is_decoded_to_the_same_record() {
    let Ok(ClusterRecord::Role(record)) = decode_role(ROLE) else { panic!("not a role") };
    let bytes = encode(&record);
    let again = decode_role(std::str::from_utf8(&bytes).unwrap()).unwrap();
    assert_eq!(again, ClusterRecord::Role(record));
}

#[test]
fn a_finding_about_another_subject_than_that_of_its_kind_is_refused() {
    let checked = |name: &str, group: &str, nodes: &str| {
        let value = format!(
            r#"{{"schema":1,"id":"7","name":"{name}","severity":"critical","confidence":"certain","group":{group},
            "nodes":[{nodes}],"text":"","hint":"","opened":"2026-11-19T10:00:00Z","changed":"2026-11-19T10:00:00Z",
            "reporter":"a"}}"#
        );
        serde_json::from_str::<FindingRecord>(&value).unwrap().checked()
    };
    let group = r#""vrrp:ipv4:51:192.0.2.80""#;
    assert!(checked("cluster-two-primaries", group, r#""a""#).is_ok());
    assert!(checked("cluster-node-lost", "null", r#""a""#).is_ok());
    // No reporter would ever close these.
    for (name, group, nodes) in [
        ("cluster-node-lost", group, r#""a""#),
        ("cluster-node-lost", "null", ""),
        ("cluster-two-primaries", "null", r#""a""#),
    ] {
        let refused = checked(name, group, nodes);
        assert!(matches!(refused, Err(ClusterRecordError::NoSubject)), "{name} {group} {nodes}");
    }
}

fn silence(node: Option<&str>, group: Option<&str>, seconds: i64, reason: &str) -> SilenceRecord {
    SilenceRecord {
        schema: FORMAT,
        id: "a.1".to_owned(),
        node: node.map(str::to_owned),
        group: group.map(str::to_owned),
        reason: reason.to_owned(),
        created_by: "root".to_owned(),
        at: Timestamp::UNIX_EPOCH,
        until: Timestamp::from_second(seconds).unwrap(),
    }
}

#[test]
fn a_silence_is_about_a_node_or_a_group_and_lasts_up_to_30_days() {
    let checked = |node, group, seconds| silence(node, group, seconds, "reboot").checked();
    let (node, group) = (Some("a"), Some("vrrp:ipv4:51:192.0.2.80"));
    for (node, group) in [(node, None), (None, group), (node, group)] {
        assert!(checked(node, group, MAX_SILENCE_SECONDS).is_ok(), "{node:?} {group:?}");
    }
    for (node, group) in [(None, None), (Some("a b"), None), (None, Some("nonsense"))] {
        let refused = checked(node, group, 60);
        assert!(matches!(refused, Err(ClusterRecordError::NoSubject)), "{node:?} {group:?}");
    }
    for seconds in [MAX_SILENCE_SECONDS + 1, -1] {
        let refused = checked(node, None, seconds);
        assert!(matches!(refused, Err(ClusterRecordError::LongSilence { .. })), "{seconds}");
    }
}

#[test]
fn the_reason_of_a_silence_is_as_long_as_its_json() {
    let checked = |reason: &str| silence(Some("a"), None, 60, reason).checked();
    assert!(checked(&"\u{1f680}".repeat(500)).is_ok(), "a node accepts 500 characters");
    let refused = checked(&"\u{1}".repeat(2000));
    assert!(matches!(refused, Err(ClusterRecordError::LongWord { bytes: 12_002 })), "{refused:?}");
}
