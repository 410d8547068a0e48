// SPDX-License-Identifier: Apache-2.0
//! Conditional lines: `@id` and `@^id`.

use vipwatch_testkit::DumpLab;

use super::{
    as_dump, assert_same_result, case, difference, discover_file, instance, instance_on, parse,
    write,
};

#[test]
fn conditional_lines_apply_as_in_keepalived() {
    let with_addresses = |addresses: &str| instance("A", "", addresses);
    assert_same_result(&[
        case("the id of this node", with_addresses("@node1 10.0.0.1\n @node2 10.0.0.2")),
        case("not the id of this node", with_addresses("@^node1 10.0.0.1\n @^node2 10.0.0.2")),
        case("a part of the id", with_addresses("@node 10.0.0.1\n @node11 10.0.0.2\n 10.0.0.3")),
        case("a condition without a statement", with_addresses("@node1\n 10.0.0.3")),
        case(
            "a priority for each id",
            instance("A", "@node1 priority 150\n @node2 priority 50", "10.0.0.1"),
        ),
        case(
            "a definition for each id",
            format!("@node1 $IP=10.0.0.1\n@^node1 $IP=10.0.0.2\n{}", with_addresses("$IP")),
        ),
        case(
            "a condition in a definition",
            format!("$ON=@node1\n{}", with_addresses("${ON} 10.0.0.1\n 10.0.0.2")),
        ),
        case(
            "a conditional block",
            format!("@node2 vrrp_instance X {{\n{}", with_addresses("10.0.0.1")),
        ),
        case(
            "a statement after a brace",
            "vrrp_instance A { @node1 interface eth1\n@node2 interface eth2\nvirtual_router_id 5\nvirtual_ipaddress { @node1 10.0.0.1\n @node2 10.0.0.2\n } }\n",
        ),
        case(
            "a conditional include",
            format!(
                "@node1 include a.inc\n@node2 include b.inc\n{}",
                instance_on("eth1", "Z", "", "10.0.0.9")
            ),
        )
        .with("a.inc", instance("A", "", "10.0.0.1"))
        .with("b.inc", instance("B", "", "10.0.0.2")),
    ]);
}

#[test]
fn conditional_lines_compare_with_the_host_name_by_default() {
    let lab = DumpLab::new();
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let host = host.trim().split('.').next().unwrap();
    let addresses = format!("@{host} 10.0.0.1\n @^{host} 10.0.0.2\n 10.0.0.3");
    write(lab.path(), "keepalived.conf", &instance("${_INSTANCE}", "", &addresses));
    let file = lab.path().join("keepalived.conf");
    let program = vipwatch_testkit::keepalived::program();
    let version = parse(&vipwatch_testkit::keepalived::version(&program));
    assert_eq!(difference(&lab, &file, None, version), None);
    assert!(as_dump(&discover_file(&file, None, version))[0].addresses.len() == 2);
}
