// SPDX-License-Identifier: Apache-2.0
//! Virtual addresses and their options.

use super::{assert_same_result, case, instance};

#[test]
fn addresses_are_read_as_by_keepalived() {
    let with_addresses = |addresses: &str| instance("A", "", addresses);
    let many: Vec<String> =
        (1..=300).map(|n| format!("10.0.{}.{}", n / 250, n % 250 + 1)).collect();
    let many_v6: Vec<String> = (1..=100).map(|n| format!("fd00::{n}")).collect();
    assert_same_result(&[
        case("both families", with_addresses("10.0.0.1\n fd00::1\n 10.0.0.2")),
        case("both families, IPv6 first", with_addresses("fd00::1\n 10.0.0.2")),
        case("native_ipv6", instance("A", "native_ipv6", "10.0.0.1\n fd00::1")),
        case(
            "a source address of the family",
            instance("A", "mcast_src_ip 198.18.0.1", "fd00::1\n 10.0.0.1"),
        ),
        case(
            "peers of the family",
            instance("A", "unicast_peer {\n 198.18.0.2\n }", "fd00::1\n 10.0.0.1"),
        ),
        case(
            "peers with a length",
            instance(
                "A",
                "unicast_src_ip 198.18.0.1/24\n unicast_peer {\n 198.18.0.2/24\n }",
                "10.0.0.1",
            ),
        ),
        case("dev without a name", with_addresses("10.0.0.1 dev\n 10.0.0.2")),
        case(
            "dev in any order",
            with_addresses("10.0.0.1/24 label eth1:1 scope link dev eth1 brd 10.0.0.255"),
        ),
        case("dev twice", with_addresses("10.0.0.1 dev eth0 dev eth1\n 10.0.0.2")),
        case("an invalid link name", with_addresses("10.0.0.1 dev eth0:1\n 10.0.0.2")),
        case(
            "options",
            with_addresses(
                "10.0.0.1/24 brd + dev eth0 scope global no_track\n 10.0.0.2/24 broadcast -\n 10.0.0.3 noprefixroute home -nodad",
            ),
        ),
        case("an invalid broadcast address", with_addresses("10.0.0.1/24 brd x\n 10.0.0.2 brd")),
        case("a broadcast of IPv6", with_addresses("fd00::1/64 brd fd00::2\n fd00::3/64")),
        case(
            "a label that is too long",
            with_addresses("10.0.0.1 label a_label_of_16_byt\n 10.0.0.2 label a_label_of_15_b"),
        ),
        case("a label without a name", with_addresses("10.0.0.1 label\n 10.0.0.2")),
        case("a peer", with_addresses("10.0.0.1 peer 10.0.0.2\n 10.0.0.3/24 peer 10.0.0.4")),
        case("a length that is too long", with_addresses("10.0.0.1/33\n 10.0.0.2/24x\n 10.0.0.3/")),
        case("a length of IPv6", with_addresses("fd00::1/64\n fd00::2/129\n fd00::3")),
        case(
            "words that are not addresses",
            with_addresses(
                "10.0.0\n 10.0.0.256\n host\n 010.0.0.1\n fd00:::1\n fe80::1%eth0\n 10.0.0.1",
            ),
        ),
        case("IPv6 in capital letters", with_addresses("FD00:0:0:0::00A1/64")),
        case("an IPv4 address in IPv6", with_addresses("::ffff:10.0.0.1")),
        case("two addresses in one line", with_addresses("10.0.0.1 10.0.0.2")),
        case("a comma after an address", with_addresses("10.0.0.1,\n 10.0.0.2")),
        case("the same address twice", with_addresses("10.0.0.1\n 10.0.0.1")),
        case("300 addresses", with_addresses(&many.join("\n"))),
        case("100 addresses of IPv6", with_addresses(&many_v6.join("\n"))),
        case("no address", with_addresses("")),
        case("no address of version 3", instance("A", "version 3", "")),
        case(
            "excluded addresses only",
            "vrrp_instance A {\n interface eth0\n virtual_router_id 3\n virtual_ipaddress_excluded {\n 10.0.0.1\n fd00::1\n }\n}\n",
        ),
        case("two lists", instance("A", "virtual_ipaddress {\n 10.0.0.5\n }", "10.0.0.1")),
        case(
            "words before the list",
            instance("A", "", "10.0.0.1")
                .replace("virtual_ipaddress {", "virtual_ipaddress extra {"),
        ),
        case(
            "a preferred lifetime",
            with_addresses("fd00::1/64 preferred_lft 0\n fd00::2/64 preferred_lft forever"),
        ),
        case(
            "static addresses",
            format!(
                "static_ipaddress {{\n 10.9.9.9/32 dev eth1\n}}\n{}",
                with_addresses("10.0.0.1")
            ),
        ),
    ]);
}
