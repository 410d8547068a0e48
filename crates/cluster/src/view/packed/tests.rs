// SPDX-License-Identifier: Apache-2.0
//! Tests of packed records: each record is unpacked as it was.

use proptest::prelude::*;

use super::*;

fn text() -> impl Strategy<Value = String> {
    prop_oneof![Just("VI_1".to_owned()), Just("qrouter-VI_1".to_owned()), "[a-zä-]{0,20}"]
}

fn word() -> impl Strategy<Value = String> {
    let known = ["preempted", "peer-silent", "agent-behind", "neutron", "two-primaries"];
    prop_oneof![proptest::sample::select(known.map(str::to_owned).to_vec()), text()]
}

fn moment() -> impl Strategy<Value = Timestamp> {
    (-377_705_023_201_000_i64..253_402_207_200_000)
        .prop_map(|milliseconds| Timestamp::from_millisecond(milliseconds).unwrap())
}

fn any_role() -> impl Strategy<Value = RoleKind> {
    proptest::sample::select(RoleKind::ALL.to_vec())
}

fn address() -> impl Strategy<Value = IpNet> {
    prop_oneof![
        (any::<[u8; 4]>(), 0..=32_u8).prop_map(|(ip, len)| IpNet::new(ip.into(), len).unwrap()),
        (any::<[u8; 16]>(), 0..=128_u8).prop_map(|(ip, len)| IpNet::new(ip.into(), len).unwrap()),
    ]
}

fn transition() -> impl Strategy<Value = RecentTransition> {
    let parts = (any::<i64>(), moment(), proptest::option::of(any_role()), any_role());
    (parts, proptest::option::of(word()))
        .prop_map(|((seq, at, from, to), cause)| RecentTransition { seq, at, from, to, cause })
}

prop_compose! {
    fn record()(
        (instance, name, reason, interface) in (text(), text(), proptest::option::of(text()), text()),
        (cause, origin) in (proptest::option::of(word()), word()),
        netns in proptest::option::of(text()),
        (seq, role, since) in (any::<i64>(), any_role(), proptest::option::of(moment())),
        (vrid, priority, vrrp_version) in any::<(Option<u8>, Option<u8>, Option<u8>)>(),
        advert_ms in any::<Option<u64>>(),
        addresses in proptest::collection::vec(address(), 0..4),
        adverts in proptest::sample::select(vec![ReceivedAdverts::Other, ReceivedAdverts::None, ReceivedAdverts::Unknown]),
        (keepalived, source) in any::<(Option<bool>, Option<std::net::IpAddr>)>(),
        sync_group in proptest::option::of(text()),
        findings in proptest::collection::vec(word(), 0..3),
        recent in proptest::collection::vec(transition(), 0..4),
    ) -> RoleRecord {
        RoleRecord {
            schema: FORMAT, node: "a".to_owned(), instance, name, epoch: "5f3a".to_owned(), seq, role, reason,
            since, cause, origin, netns, interface, vrid, priority, advert_ms, vrrp_version, addresses, adverts,
            keepalived, source, sync_group, findings, recent,
        }
    }
}

proptest! {
    #[test]
    fn a_packed_record_is_unpacked_as_it_was(record in record()) {
        let identity = RoleIdentity { name: "a".parse().unwrap(), epoch: "5f3a".into() };
        for model in ["VI_1", ""] {
            let bytes = pack(&record, model);
            prop_assert_eq!(instance(&bytes, model).into_owned(), record.instance.clone());
            prop_assert_eq!(role(&bytes), record.role);
            prop_assert_eq!(unpack(&bytes, model, &identity), Some(record.clone()));
        }
    }
}
