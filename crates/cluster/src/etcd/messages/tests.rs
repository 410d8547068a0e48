// SPDX-License-Identifier: Apache-2.0
//! Messages beside their bytes, which `protoc --encode` has made from etcd's own definitions. The answers also have the
//! fields that vipwatch leaves out.

use super::*;

const HEADER: ResponseHeader = ResponseHeader { cluster_id: 7, revision: 300 };
const LEASE: LeaseId = LeaseId(6);

fn entry() -> KeyValue {
    let (key, value) = (b"/k".to_vec(), b"v".to_vec());
    KeyValue { key, create_revision: 2, mod_revision: 300, value, lease: LEASE.0 }
}

fn bytes(hex: &str) -> Vec<u8> {
    let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    (0..hex.len()).step_by(2).map(byte).collect()
}

#[track_caller]
fn assert_sent(request: &impl EtcdRequest, expected: &str) {
    assert_eq!(request.encode_to_vec(), bytes(expected));
}

#[track_caller]
fn received<A: Message + Default>(answer: &str) -> A {
    A::decode(bytes(answer).as_slice()).unwrap()
}

#[test]
fn reads_and_writes_have_the_bytes_of_etcd() {
    let (key, range_end) = (b"/a".to_vec(), b"/b".to_vec());
    let range = RangeRequest { key, range_end, limit: 500, revision: 300, keys_only: true };
    assert_sent(&range, "0a022f6112022f6218f40320ac024001");
    let answer = "0a090807100818ac02200912100a022f6b100218ac0220042a0176300618012005";
    let expected = RangeResponse { header: Some(HEADER), kvs: vec![entry()], more: true, count: 5 };
    assert_eq!(received::<RangeResponse>(answer), expected);

    let put = PutRequest { key: b"/k".to_vec(), value: b"v".to_vec(), lease: LEASE.0 };
    assert_sent(&put, "0a022f6b1201761806");
    let answer = received::<PutResponse>("0a090807100818ac022009");
    assert_eq!(answer, PutResponse { header: Some(HEADER) });
}

#[test]
fn transactions_have_the_bytes_of_etcd() {
    let compare = vec![
        Compare::create_revision_is("/k", 0),
        Compare::mod_revision_is("/k", 300),
        Compare::lease_is("/k", LEASE),
    ];
    let success = vec![RequestOp::put("/k", "v", Some(LEASE)), RequestOp::delete("/d")];
    let read = RangeRequest { key: b"/k".to_vec(), ..RangeRequest::default() };
    let txn = TxnRequest { compare, success, failure: vec![RequestOp::range(read)] };
    assert_sent(
        &txn,
        "0a0810011a022f6b28000a0910021a022f6b30ac020a0810041a022f6b4006120b12090a022f6b120176180612061a040a022f641a060a04\
         0a022f6b",
    );
    let answer: TxnResponse = received(
        "0a090807100818ac02200910011a0d120b0a090807100818ac0220091a0f1a0d0a090807100818ac02200910011a140a1212100a022f6b10\
         0218ac0220042a01763006",
    );
    let range = RangeResponse { kvs: vec![entry()], ..RangeResponse::default() };
    let responses = [None, None, Some(range)].map(|response_range| ResponseOp { response_range });
    let header = Some(HEADER);
    assert_eq!(answer, TxnResponse { header, succeeded: true, responses: responses.to_vec() });
}

#[test]
fn watches_have_the_bytes_of_etcd() {
    let request = |kind| WatchRequest { request_union: Some(kind) };
    let create = WatchCreateRequest {
        key: b"/a".to_vec(),
        range_end: b"/b".to_vec(),
        start_revision: 300,
        progress_notify: true,
        watch_id: 1,
        fragment: true,
    };
    let create = request(WatchRequestKind::Create(create));
    assert_sent(&create, "0a110a022f6112022f6218ac02200138014001");
    let cancel = WatchRequestKind::Cancel(WatchCancelRequest { watch_id: 1 });
    assert_sent(&request(cancel), "12020801");

    let changes: WatchResponse = received(
        "0a090807100818ac022009100138015a1212100a022f6b100218ac0220042a017630065a1d080112070a022f6418ac021a100a022f6b1002\
         18ac0220042a01763006",
    );
    let deleted = KeyValue { key: b"/d".to_vec(), mod_revision: 300, ..KeyValue::default() };
    let event = |r#type: WatchEventType, kv| WatchEvent { r#type: r#type as i32, kv: Some(kv) };
    let events = vec![event(WatchEventType::Put, entry()), event(WatchEventType::Delete, deleted)];
    let header = Some(HEADER);
    assert_eq!(changes, WatchResponse { header, watch_id: 1, events, ..WatchResponse::default() });

    let ended: WatchResponse = received("10011801200128ac023203776879");
    let expected = WatchResponse {
        watch_id: 1,
        created: true,
        canceled: true,
        compact_revision: 300,
        cancel_reason: "why".to_owned(),
        ..WatchResponse::default()
    };
    assert_eq!(ended, expected);
}

#[test]
fn leases_have_the_bytes_of_etcd() {
    let id = LEASE.0;
    assert_sent(&LeaseGrantRequest { ttl: 15 }, "080f");
    let granted: LeaseGrantResponse = received("0a090807100818ac0220091006180f220165");
    assert_eq!(granted, LeaseGrantResponse { id });

    assert_sent(&LeaseRevokeRequest { id }, "0806");
    let revoked: LeaseRevokeResponse = received("0a090807100818ac022009");
    assert_eq!(revoked, LeaseRevokeResponse {});

    assert_sent(&LeaseKeepAliveRequest { id }, "0806");
    let renewed: LeaseKeepAliveResponse = received("0a090807100818ac0220091006180f");
    assert_eq!(renewed, LeaseKeepAliveResponse { header: Some(HEADER), ttl: 15 });

    assert_sent(&LeaseTimeToLiveRequest { id, keys: true }, "08061001");
    let state: LeaseTimeToLiveResponse =
        received("0a090807100818ac0220091006180f20142a022f612a022f62");
    let keys = vec![b"/a".to_vec(), b"/b".to_vec()];
    assert_eq!(state, LeaseTimeToLiveResponse { ttl: 15, keys });
}

#[test]
fn logins_have_the_bytes_of_etcd() {
    let (name, password) = ("n".to_owned(), "p".to_owned());
    assert_sent(&AuthenticateRequest { name, password }, "0a016e120170");
    let answer: AuthenticateResponse = received("0a090807100818ac022009120174");
    assert_eq!(answer.token, "t");
}
