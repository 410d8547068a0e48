// SPDX-License-Identifier: Apache-2.0
//! Statements of an instance, and values that cannot be known.

use vipwatch_core::keepalived::Version;
use vipwatch_testkit::{Dump, DumpInstance, DumpLab};

use super::{Case, as_dump, assert_same_result, case, discover_file, instance, instance_on, write};

/// An instance with these additional statements and one address.
fn instance_with(statements: &str) -> String {
    instance("A", statements, "10.0.0.1")
}

/// An instance with unicast peers and these addresses, without a link.
fn unicast(addresses: &str) -> String {
    let peers = "unicast_src_ip 198.18.0.1\n unicast_peer {\n 198.18.0.2\n }";
    instance("A", peers, addresses).replace("interface eth0", "")
}

#[test]
fn statements_without_a_value_are_refused_where_keepalived_refuses_them() {
    let of_instance = [
        "notify",
        "notify_backup",
        "notify_fault",
        "notify_master",
        "notify_master_rx_lower_pri",
        "notify_stop",
        "lvs_sync_daemon_interface",
        "garp_master_refresh_repeat",
    ];
    let mut cases: Vec<Case> =
        of_instance.iter().map(|word| case(word, instance_with(word))).collect();
    let blocks = [
        ("vrrp_sync_group G", "notify_master"),
        ("vrrp_sync_group G", "notify"),
        ("vrrp_track_process P", "process"),
        ("vrrp_track_process P", "quorum"),
        ("vrrp_script S", "user"),
        ("global_defs", "vrrp_garp_interval"),
        ("global_defs", "smtp_server"),
    ];
    cases.extend(blocks.map(|(block, word)| {
        case(&format!("{block}: {word}"), format!("{block} {{\n {word}\n}}\n{}", instance_with("")))
    }));
    assert_same_result(&cases);
}

#[test]
fn priorities_and_states_are_read_as_by_keepalived() {
    assert_same_result(&[
        case("no priority", instance_with("")),
        case("no priority of a MASTER", instance_with("state MASTER")),
        case("priority 0", instance_with("priority 0")),
        case("priority 0 of a MASTER", instance_with("state MASTER\n priority 0")),
        case("priority 256", instance_with("priority 256")),
        case("a priority that is no number", instance_with("priority high")),
        case("a priority with text behind it", instance_with("priority 50x")),
        case("a negative priority", instance_with("priority -5")),
        case("a priority in quotes with blanks", instance_with("priority \" 7\"")),
        case("two priorities", instance_with("priority 7\n priority 8")),
        case("a priority and more words", instance_with("priority 7 8")),
        case("priority without a value", instance_with("priority")),
        case("two states", instance_with("state MASTER\n state BACKUP")),
        case("a state in small letters", instance_with("state master")),
        case("an unknown state", instance_with("state MASTER\n state FOO")),
    ]);
}

#[test]
fn virtual_router_ids_and_interfaces_are_read_as_by_keepalived() {
    let without = |line: &str| instance("A", "", "10.0.0.1").replace(line, "");
    assert_same_result(&[
        case(
            "the same virtual_router_id of IPv6, once on a VMAC",
            format!("{}{}", instance("A", "", "fd00::1"), instance("B", "use_vmac", "fd00::2")),
        ),
        case("no virtual_router_id", without("virtual_router_id 51")),
        case("virtual_router_id 0", instance_with("").replace("51", "0")),
        case("virtual_router_id 256", instance_with("").replace("51", "256")),
        case("virtual_router_id of text", instance_with("").replace("51", "5x")),
        case("two virtual_router_ids", instance_with("virtual_router_id 52")),
        case("two virtual_router_ids, one wrong", instance_with("virtual_router_id 0")),
        case(
            "virtual_router_id without a value",
            instance_with("").replace("virtual_router_id 51", "virtual_router_id"),
        ),
        case("no interface", without("interface eth0")),
        case("interface without a value", instance_with("").replace("interface eth0", "interface")),
        case("two interfaces", instance_with("interface eth1")),
        case("an interface that is too long", instance_with("interface a_name_of_16_byte")),
        case("an interface with an invalid name", instance_with("").replace("eth0", "eth0:1")),
        case("the loopback interface", instance_with("").replace("eth0", "lo")),
        case("an interface in quotes", instance_with("").replace("eth0", "\"eth1\"")),
        case(
            "no address in version 3",
            "vrrp_instance A {\n interface eth0\n virtual_router_id 51\n version 3\n no_virtual_ipaddress\n}\n",
        ),
        case("a unicast instance without an interface", unicast("10.0.0.1 dev eth1")),
        case("a unicast instance without any link", unicast("10.0.0.1\n 10.0.0.2 dev eth1")),
        case(
            "a unicast instance with default_interface",
            format!("global_defs {{\n default_interface bond0\n}}\n{}", unicast("10.0.0.1")),
        ),
        case(
            "a unicast instance without a link and a source",
            unicast("10.0.0.1 dev eth1").replace("unicast_src_ip 198.18.0.1", ""),
        ),
    ]);
}

#[test]
fn other_statements_are_read_as_by_keepalived() {
    let strict = "global_defs {\n vrrp_strict\n}\n";
    assert_same_result(&[
        case("advert_int", instance_with("advert_int 0.5")),
        case("an invalid advert_int", instance_with("advert_int 1s")),
        case(
            "the same name twice",
            format!("{}{}", instance_with(""), instance_on("eth1", "A", "", "10.0.0.2")),
        ),
        case(
            "the same virtual_router_id twice",
            format!("{}{}", instance_with(""), instance("B", "", "10.0.0.2")),
        ),
        case(
            "the same virtual_router_id of another family",
            format!("{}{}", instance_with(""), instance("B", "", "fd00::1")),
        ),
        case(
            "the same virtual_router_id of another group",
            format!(
                "{}{}",
                instance_with(""),
                instance("B", "mcast_dst_ip 224.0.0.81", "10.0.0.2")
            ),
        ),
        case("strict", format!("{strict}{}", instance_with("priority 7"))),
        case("strict without addresses", format!("{strict}{}", instance("A", "", ""))),
        case("version 3", instance_with("version 3\n advert_int 0.1")),
        case(
            "tracking",
            format!(
                "vrrp_script chk {{\n script \"/bin/true\"\n interval 2\n weight -20\n}}\n{}",
                instance_with(
                    "track_script {\n chk\n }\n track_interface {\n eth1 weight -5\n eth2\n }"
                )
            ),
        ),
        case(
            "a sync group",
            format!(
                "vrrp_sync_group G {{\n group {{\n A\n B\n }}\n notify_master /bin/true\n}}\n{}{}",
                instance_with(""),
                instance_on("eth1", "B", "", "10.0.0.2")
            ),
        ),
        case(
            "a virtual server",
            format!(
                "virtual_server 10.0.0.1 80 {{\n delay_loop 6\n real_server 10.0.0.5 80 {{\n TCP_CHECK {{\n connect_timeout 3\n }}\n }}\n}}\n{}",
                instance_with("")
            ),
        ),
        case(
            "global definitions",
            format!(
                "global_defs {{\n router_id LVS\n notification_email {{\n a@example.org\n b@example.org\n }}\n smtp_server 127.0.0.1\n smtp_connect_timeout 30\n vrrp_skip_check_adv_addr\n vrrp_garp_interval 0\n}}\n{}",
                instance_with("")
            ),
        ),
        case(
            "notify scripts",
            instance_with("notify_master \"/bin/true master {x}\"\n notify /bin/true"),
        ),
        case(
            "many statements",
            instance_with(
                "state BACKUP\n nopreempt\n garp_master_delay 5\n smtp_alert\n dont_track_primary\n debug 1\n preempt_delay 300\n accept",
            ),
        ),
        case(
            "a file of Neutron",
            "global_defs {\n    notification_email_from neutron@openstack.local\n    router_id neutron\n}\nvrrp_instance VR_1 {\n    state BACKUP\n    interface eth0\n    virtual_router_id 1\n    priority 50\n    garp_master_delay 60\n    nopreempt\n    advert_int 2\n    track_interface {\n        eth0\n    }\n    virtual_ipaddress {\n        169.254.0.1/24 dev eth0\n    }\n    virtual_ipaddress_excluded {\n        10.0.0.1/24 dev eth1\n        fe80::1/64 dev eth1 scope link\n        192.0.2.9/32 dev eth2\n    }\n    virtual_routes {\n        0.0.0.0/0 via 192.0.2.1 dev eth2\n    }\n}",
        ),
        case("no instance", "global_defs {\n router_id x\n}\n"),
        case("an empty file", ""),
    ]);
}

/// keepalived chooses a new number at each start.
#[test]
fn random_values_are_unknown() {
    let lab = DumpLab::new();
    write(lab.path(), "keepalived.conf", &instance("A", "priority ${_RANDOM 1 1}", "10.0.0.1"));
    let file = lab.path().join("keepalived.conf");
    let Dump::Instances(theirs) = lab.dump(&file, None) else {
        panic!("keepalived does not start")
    };
    let discovery = discover_file(&file, None, Version::NEWEST);
    let [ours] = as_dump(&discovery).try_into().unwrap();
    assert_eq!(theirs[0], DumpInstance { priority: "1".to_owned(), ..ours.clone() });
    assert_eq!(ours.priority, "unknown");
    assert_eq!(
        discovery.problems[0].text,
        "priority of A cannot be known: keepalived chooses it when it starts"
    );
}
