// SPDX-License-Identifier: Apache-2.0
//! VMAC and ipvlan interfaces: the names of the links that keepalived creates.

use super::{assert_same_result, case, instance, instance_on};

/// Excluded addresses of both families, one of them on another link.
const EXCLUDED: &str = "virtual_ipaddress_excluded {\n fd00::9/64\n 10.0.0.9 dev eth1\n }";

#[test]
fn vmac_links_of_instances_have_the_names_that_keepalived_gives_them() {
    assert_same_result(&[
        case("use_vmac", instance("A", "use_vmac", "10.0.0.1/24")),
        case(
            "use_vmac with an address on the base link",
            instance("A", "use_vmac", "10.0.0.1 dev eth0"),
        ),
        case(
            "use_vmac with an address on another link",
            instance("A", "use_vmac", "10.0.0.1 dev eth1"),
        ),
        case("use_vmac with a name", instance("A", "use_vmac mine", "10.0.0.1")),
        case(
            "use_vmac with a MAC address",
            instance("A", "use_vmac 02:00:00:00:00:01", "10.0.0.1"),
        ),
        case("use_vmac with five bytes", instance("A", "use_vmac 02:00:00:00:00", "10.0.0.1")),
        case(
            "use_vmac with a name and a MAC address",
            instance("A", "use_vmac mine 02:00:00:00:00:01", "10.0.0.1"),
        ),
        case(
            "use_vmac with a MAC address before the name",
            instance("A", "use_vmac 02:00:00:00:00:01 mine", "10.0.0.1"),
        ),
        case(
            "use_vmac with a name that is too long",
            instance("A", "use_vmac a_name_of_16_byte", "10.0.0.1"),
        ),
        case("use_vmac and vmac_xmit_base", instance("A", "use_vmac\n vmac_xmit_base", "10.0.0.1")),
        case("use_vmac with the word name", instance("A", "use_vmac name vmac10", "10.0.0.1")),
        case(
            "use_vmac with all its words",
            instance("A", "use_vmac group 7 mine netlink_notify_msg", "10.0.0.1"),
        ),
        case(
            "use_ipvlan with the word name",
            instance("A", "use_ipvlan name bridge 198.18.0.5", "10.0.0.1"),
        ),
        case(
            "use_vmac after the addresses",
            instance("A", "", "10.0.0.1").replace("51", "51\n use_vmac"),
        ),
        case(
            "excluded addresses of a VMAC",
            instance("A", &format!("use_vmac\n {EXCLUDED}"), "10.0.0.1"),
        ),
    ]);
}

#[test]
fn vmac_links_of_addresses_have_the_names_that_keepalived_gives_them() {
    let global = "global_defs {\n    vmac_prefix own\n    vmac_addr_prefix other\n}\n";
    let long = "global_defs {\n    vmac_prefix longer_than_a_link\n}\n";
    assert_same_result(&[
        case(
            "use_vmac_addr",
            instance("A", "use_vmac_addr", "10.0.0.1\n 10.0.0.2 dev eth1\n 10.0.0.3 dev eth1"),
        ),
        case(
            "use_vmac and use_vmac_addr",
            instance(
                "A",
                &format!("use_vmac\n use_vmac_addr\n {EXCLUDED}"),
                "10.0.0.1\n 10.0.0.2 dev eth1",
            ),
        ),
        case(
            "use_vmac on one address",
            instance("A", "", "10.0.0.1 use_vmac\n 10.0.0.2\n 10.0.0.3 dev eth1 use_vmac"),
        ),
        case(
            "use_vmac on one address and the instance",
            instance("A", "use_vmac", "10.0.0.1 use_vmac\n 10.0.0.2\n 10.0.0.3 dev eth1 use_vmac"),
        ),
        case(
            "use_vmac_addr and use_vmac on an address",
            instance("A", "use_vmac_addr", "10.0.0.1 use_vmac\n 10.0.0.3 dev eth1 use_vmac"),
        ),
        case(
            "vmac_prefix",
            format!(
                "{global}{}",
                instance("A", "use_vmac\n use_vmac_addr", "10.0.0.1\n 10.0.0.2 dev eth1")
            ),
        ),
        case(
            "vmac_prefix that is too long",
            format!(
                "{long}{}{}",
                instance("A", "use_vmac", "10.0.0.1"),
                instance_on("eth1", "B", "use_vmac", "10.0.0.2")
            ),
        ),
    ]);
}

#[test]
fn ipvlan_links_and_conflicting_names_are_read_as_by_keepalived() {
    assert_same_result(&[
        case("use_ipvlan", instance("A", "use_ipvlan 198.18.0.5", "10.0.0.1\n 10.0.0.2 dev eth1")),
        case(
            "use_ipvlan with a name",
            instance("A", "use_ipvlan mine 198.18.0.5 bridge", "10.0.0.1"),
        ),
        case("use_vmac of IPv6", instance("A", "use_vmac", "fe80::1\n fd00::1/64")),
        case(
            "use_vmac with unicast",
            instance("A", "use_vmac\n unicast_peer {\n 198.18.0.2\n }", "10.0.0.1"),
        ),
        case(
            "the same VMAC name in two instances",
            format!(
                "{}{}",
                instance("A", "use_vmac x", "10.0.0.1"),
                instance_on("eth1", "B", "use_vmac x", "10.0.0.2")
            ),
        ),
        case(
            "a default VMAC name that a later instance names explicitly",
            format!(
                "{}{}",
                instance("A", "use_vmac", "10.0.0.1"),
                instance_on("eth1", "B", "use_vmac vrrp.51", "10.0.0.2")
            ),
        ),
        case(
            "one VMAC for an address and an instance",
            format!(
                "{}{}",
                instance("A", "use_vmac_addr", "10.0.0.1 dev eth1"),
                instance_on("eth1", "B", "use_vmac", "10.0.0.2")
            ),
        ),
        case(
            "use_vmac, use_vmac_addr and use_vmac on addresses",
            instance(
                "A",
                "use_vmac\n use_vmac_addr",
                "10.0.0.1 use_vmac\n 10.0.0.2 use_vmac\n 10.0.0.3",
            ),
        ),
        case(
            "use_vmac with a multicast MAC address",
            instance("A", "use_vmac 01:00:00:00:00:01", "10.0.0.1"),
        ),
    ]);
}

#[test]
fn vmac_links_of_one_virtual_router_id_get_different_names() {
    let all = |families: &[(&str, &str)]| {
        let each = families.iter().enumerate().map(|(number, (link, address))| {
            instance_on(link, &format!("I{number}"), "use_vmac", address)
        });
        each.collect::<String>()
    };
    assert_same_result(&[
        case("IPv4 then IPv6", all(&[("eth0", "10.0.0.1"), ("eth0", "fd00::1")])),
        case("IPv6 then IPv4", all(&[("eth0", "fd00::1"), ("eth0", "10.0.0.1")])),
        case("IPv4 on two links", all(&[("eth0", "10.0.0.1"), ("eth1", "10.0.0.2")])),
        case(
            "IPv6 on three links",
            all(&[("eth0", "fd00::1"), ("eth1", "fd00::2"), ("eth2", "fd00::3")]),
        ),
        case(
            "both families on three links",
            all(&[
                ("eth0", "10.0.0.1"),
                ("eth0", "fd00::1"),
                ("eth1", "10.0.0.2"),
                ("eth1", "fd00::2"),
                ("eth2", "10.0.0.3"),
                ("eth2", "fd00::3"),
            ]),
        ),
    ]);
}
