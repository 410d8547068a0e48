// SPDX-License-Identifier: Apache-2.0
//! Quotes, comments, braces, templates and unknown blocks.

use vipwatch_core::keepalived::Version;
use vipwatch_testkit::{Dump, DumpLab};

use super::{as_dump, assert_same_result, case, discover_file, instance, instance_on, write};

#[test]
fn quotes_names_and_comments_are_read_as_by_keepalived() {
    let auth = |pass: &str| {
        instance(
            "A",
            &format!("authentication {{\n auth_type PASS\n auth_pass {pass}\n }}"),
            "10.0.0.1",
        )
    };
    assert_same_result(&[
        case(
            "a brace in quotes behind a name",
            instance("A", "", "10.0.0.1").replace("A {", "A \"{\""),
        ),
        case("an escaped quote", auth("\"\\\"\"")),
        case("an escaped quote and a brace", auth("\"\\\"}\"")),
        case("a brace in quotes", auth("\"}{\"")),
        case("a comment in quotes", auth("\"a # b ! c\"")),
        case("a quote that is not closed", auth("\"abc")),
        case("a quote in a word", auth("a\"b c\"d")),
        case("single quotes", auth("'a # b'")),
        case("an escaped comment", instance("A", "", "10.0.0.1 \\# dev eth1")),
        case("a name in quotes", instance("\"A\"", "", "10.0.0.1")),
        case("a name with a blank", instance("\"A B\"", "", "10.0.0.1")),
        case("a name of two words", instance("A B", "", "10.0.0.1")),
        case("a name with a slash", instance("net/A", "", "10.0.0.1")),
        case("a name with other characters", instance("A:1@x%é~+,", "", "10.0.0.1")),
        case("no name", instance("", "", "10.0.0.1")),
        case(
            "words in quotes",
            instance("A", "\"priority\" \"7\"", "\"10.0.0.1/24\" \"dev\" \"eth1\""),
        ),
    ]);
}

#[test]
fn braces_and_line_ends_are_read_as_by_keepalived() {
    assert_same_result(&[
        case(
            "blocks in one line",
            "vrrp_instance A { interface eth0 \n virtual_router_id 3 \n virtual_ipaddress { 10.0.0.1 } }",
        ),
        case(
            "an instance in one line",
            "vrrp_instance A { interface eth0 virtual_router_id 3 virtual_ipaddress { 10.0.0.1 } }",
        ),
        case(
            "braces on their own lines",
            "vrrp_instance A\n{\n interface eth0\n virtual_router_id 3\n virtual_ipaddress\n {\n 10.0.0.1\n }\n}\n",
        ),
        case(
            "no blank before a brace",
            "vrrp_instance A{\n interface eth0\n virtual_router_id 3\n virtual_ipaddress{\n10.0.0.1}}\n",
        ),
        case(
            "empty lines before a brace",
            "vrrp_instance A\n\n# comment\n{\n interface eth0\n virtual_router_id 3\n virtual_ipaddress\n\n\n{\n 10.0.0.1\n }\n}\n",
        ),
        case("CRLF", instance("A", "priority 7", "10.0.0.1/24\n10.0.0.2").replace('\n', "\r\n")),
        case("no newline at the end", instance("A", "", "10.0.0.1").trim_end()),
        case("tabs", instance("A", "priority\t7", "\t10.0.0.1/24\tdev\teth1")),
        case(
            "a brace too many",
            format!(
                "{}}}\n{}",
                instance("A", "", "10.0.0.1"),
                instance_on("eth1", "B", "", "10.0.0.2")
            ),
        ),
        case(
            "a brace too few at the end",
            "vrrp_instance A {\n interface eth0\n virtual_router_id 3\n virtual_ipaddress {\n 10.0.0.1\n }\n",
        ),
        case(
            "a list that is not closed",
            format!(
                "vrrp_instance A {{\n interface eth0\n virtual_router_id 3\n virtual_ipaddress {{\n 10.0.0.1\n}}\n{}",
                instance_on("eth1", "B", "", "10.0.0.2")
            ),
        ),
        case(
            "a list without a brace",
            "vrrp_instance A {\n interface eth0\n virtual_router_id 3\n virtual_ipaddress\n 10.0.0.1\n 10.0.0.2\n }\n}\n",
        ),
        case(
            "an instance without a brace",
            "vrrp_instance A\n interface eth0\n virtual_router_id 3\n virtual_ipaddress {\n 10.0.0.1\n }\n}\n",
        ),
    ]);
}

#[test]
fn unknown_blocks_and_templates_are_read_as_by_keepalived() {
    assert_same_result(&[
        case(
            "an unknown block at the top",
            format!("unknown {{\n a b\n}}\n{}", instance("A", "", "10.0.0.1")),
        ),
        case(
            "an unknown block in global_defs",
            format!(
                "global_defs {{\n unknown {{\n a\n }}\n vmac_prefix x\n}}\n{}",
                instance("A", "use_vmac", "10.0.0.1")
            ),
        ),
        case(
            "an unexpanded template of a priority",
            instance("A", "priority {{ priority }}", "10.0.0.1"),
        ),
        case(
            "an unexpanded template of an interface",
            instance("A", "", "10.0.0.1").replace("eth0", "{{ interface }}"),
        ),
        case("an unexpanded template of an address", instance("A", "", "{{ vip }}\n 10.0.0.1")),
        case(
            "an unexpanded template of a block",
            instance("A", "{% if master %}\n state MASTER\n {% endif %}", "10.0.0.1"),
        ),
        case(
            "a long comment",
            format!("# {}\n{}", "x ".repeat(1500), instance("A", "", "10.0.0.1")),
        ),
        case(
            "a long line",
            instance("A", "", &format!("10.0.0.1 {} dev eth1", "no_track ".repeat(200))),
        ),
        case(
            "garbage between instances",
            format!(
                "{}garbage in here\n{}",
                instance("A", "", "10.0.0.1"),
                instance_on("eth1", "B", "", "10.0.0.2")
            ),
        ),
    ]);
}

#[test]
fn an_unknown_block_leaves_the_addresses_with_the_instance_although_keepalived_loses_them() {
    let lab = DumpLab::new();
    let text = instance("A", "priority 7\n unknown_block {\n x 1\n }\n priority 8", "10.0.0.1");
    write(lab.path(), "keepalived.conf", &text);
    let file = lab.path().join("keepalived.conf");
    let Dump::Instances(theirs) = lab.dump(&file, None) else {
        panic!("keepalived does not start");
    };
    let ours = as_dump(&discover_file(&file, None, Version::NEWEST));
    assert_eq!((theirs[0].priority.as_str(), theirs[0].addresses.len()), ("7", 0));
    assert_eq!((ours[0].priority.as_str(), ours[0].addresses.len()), ("8", 1));
}
