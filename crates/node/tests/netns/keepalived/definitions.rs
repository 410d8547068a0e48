// SPDX-License-Identifier: Apache-2.0
//! Definitions: `$NAME=value` and their use.

use super::{assert_same_result, case, instance};

/// Definitions, followed by an instance with one address.
fn with_address(definitions: &str, address: &str) -> String {
    format!("{definitions}\n{}", instance("A", "", address))
}

#[test]
fn definitions_of_one_line_are_read_as_by_keepalived() {
    let interface = |text: &str| instance("A", "", "10.0.0.1").replace("eth0", text);
    assert_same_result(&[
        case("a trailing comment", format!("$IF=eth1 # nic\n{}", interface("$IF"))),
        case("a trailing ! comment", format!("$IF=eth1 ! nic\n{}", interface("${IF}"))),
        case("a value in quotes", format!("$IF=\"eth1\"\n{}", interface("$IF"))),
        case("a nested use", with_address("$NET=10.0.0\n$VIP=${NET}.9/24", "$VIP dev eth1")),
        case(
            "a nested use before the inner name is defined",
            with_address("$VIP=${NET}.9/24\n$NET=10.0.0", "$VIP"),
        ),
        case("a definition that is replaced", with_address("$V=10.0.0.1\n$V=10.0.0.2", "$V")),
        case("an empty value", with_address("$E=", "10.0.0.1${E}/24 $E")),
        case("an empty value before a comment", with_address("$E= # nothing", "10.0.0.1${E}/24")),
        case("a name without a definition", with_address("", "10.0.0.1\n $B\n 10.0.0.2 $B")),
        case(
            "a name without a definition in braces",
            with_address("", "10.0.0.1\n ${B}\n 10.0.0.2"),
        ),
        case("an interface without a definition in braces", interface("${IFACE}")),
        case("a bare name before a dot", with_address("$NET=10.0.0", "$NET.9\n 10.0.0.1")),
        case("a bare name before a slash", with_address("$IP=10.0.0.9", "$IP/24\n 10.0.0.1")),
        case("a blank before the equals sign", with_address("$IP = 10.0.0.9", "$IP\n 10.0.0.1")),
        case("a blank behind the equals sign", with_address("$IP= 10.0.0.9", "$IP\n 10.0.0.1")),
        case(
            "a name with digits",
            with_address("$IP_1=10.0.0.9\n$1=10.0.0.8", "$IP_1\n $1\n 10.0.0.1"),
        ),
    ]);
}

#[test]
fn definitions_of_several_lines_are_read_as_by_keepalived() {
    let several = "$BODY=priority 50 \\\n    virtual_ipaddress { \\\n      10.0.0.7 \\\n    }\n";
    assert_same_result(&[
        case("several lines", format!("{several}{}", instance("A", "$BODY", "10.0.0.1"))),
        case(
            "several lines with a comment between",
            format!(
                "{}{}",
                several.replace("10.0.0.7", "10.0.0.7 # seven"),
                instance("A", "$BODY", "10.0.0.1")
            ),
        ),
        case(
            "several lines with a comment line",
            format!(
                "{}{}",
                several.replace("      10.0.0.7", "# comment\n      10.0.0.7"),
                instance("A", "$BODY", "10.0.0.1")
            ),
        ),
        case(
            "several lines, the first one empty",
            with_address("$V= \\\n   10.0.0.7 \\\n   10.0.0.8\n", "$V\n 10.0.0.1"),
        ),
        case(
            "several lines, the first empty and one more",
            with_address("$V= \\\n   10.0.0.7\n", "$V\n 10.0.0.1"),
        ),
        case(
            "several lines that end with an empty one",
            with_address("$V=10.0.0.7 \\\n   10.0.0.8 \\\n\n", "$V\n 10.0.0.1"),
        ),
        case(
            "several lines in the middle of a line",
            with_address("$V=10.0.0.7 \\\n   10.0.0.8\n", "$V dev eth1\n 10.0.0.1"),
        ),
        case(
            "several lines within several lines",
            with_address(
                "$I=10.0.0.7 \\\n   10.0.0.8\n$O=10.0.0.5 \\\n  $I \\\n  10.0.0.6\n",
                "$O\n 10.0.0.1",
            ),
        ),
        case(
            "a block in a definition",
            format!(
                "$I=vrrp_instance B {{ \\\n interface eth1 \\\n virtual_router_id 9 \\\n virtual_ipaddress {{ \\\n 10.1.0.1 \\\n }} \\\n }}\n{}$I\n",
                instance("A", "", "10.0.0.1")
            ),
        ),
    ]);
}

#[test]
fn built_in_definitions_and_dollar_signs_are_read_as_by_keepalived() {
    assert_same_result(&[
        case(
            "the directory of the file (_PWD)",
            format!(
                "{}vrrp_instance ${{_PWD}} {{\n interface eth1\n virtual_router_id 3\n virtual_ipaddress {{\n 10.0.0.2\n }}\n}}\n",
                instance("A", "", "10.0.0.1")
            ),
        ),
        case("the configuration id", instance("${_INSTANCE}", "", "10.0.0.1")),
        case("a hash character", with_address("", "10.0.0.1 ${_HASH} dev eth1")),
        case("an exclamation mark", with_address("", "10.0.0.1 ${_BANG} dev eth1")),
        case(
            "a built-in definition that is replaced",
            instance("${_INSTANCE}", "", "10.0.0.1")
                .replace("vrrp_instance", "$_INSTANCE=other\nvrrp_instance"),
        ),
        case(
            "a parameter for a definition without parameters",
            with_address("$V=10.0.0.9", "${V 1}\n 10.0.0.1"),
        ),
        case("a blank in braces", with_address("$V=10.0.0.9", "10.0.0.1\n ${V }\n 10.0.0.2")),
        case("a dollar at the end", with_address("$V=10.0.0.9", "10.0.0.1 $")),
        case("a definition within a block", instance("A", "$V=10.0.0.9", "$V")),
        case(
            "a password with a dollar",
            instance("A", "authentication {\n auth_type PASS\n auth_pass pa$word\n }", "10.0.0.1"),
        ),
        case(
            "a password with a dollar in braces",
            instance("A", "authentication {\n auth_type PASS\n auth_pass p${x}y\n }", "10.0.0.1"),
        ),
    ]);
}
