// SPDX-License-Identifier: Apache-2.0
//! Generates valid configurations of keepalived and makes small random changes to them.

use vipwatch_testkit::Random;

use crate::compare::Sample;

/// Statements of an instance block.
const STATEMENTS: &[&str] = &[
    "priority 150",
    "priority 0",
    "state MASTER",
    "state BACKUP",
    "advert_int 2",
    "use_vmac",
    "use_vmac mine",
    "use_vmac 02:00:00:00:00:01",
    "use_vmac_addr",
    "use_ipvlan 198.18.0.9",
    "nopreempt",
    "native_ipv6",
    "version 3",
    "mcast_src_ip 198.18.0.1",
    "virtual_router_id 52",
    "interface eth1",
    "garp_master_delay 5",
    "track_interface {\n        eth2\n    }",
    "authentication {\n        auth_type PASS\n        auth_pass \"a # b\"\n    }",
    "virtual_ipaddress_excluded {\n        10.1.0.1/24 dev eth1\n        fd01::1/64\n    }",
    "unicast_peer {\n        198.18.0.2\n    }",
    "notify \"/bin/true {}\"",
    "include included.conf",
    "$BODY",
    "unknown_keyword 1",
];

/// Lines that a change inserts at a random position.
const LINES: &[&str] = &[
    "# a comment",
    "! another { comment",
    "",
    "   ",
    "$IP=10.0.0.77",
    "$IP=10.0.0.78/24 # comment",
    "$EMPTY=",
    "$NAME=V_${NUMBER}",
    "$NUMBER=8",
    "$BODY=priority 42 \\",
    "    virtual_ipaddress { \\",
    "        10.0.0.99 \\",
    "    }",
    "@node1 $IP=10.0.0.79",
    "@node2 $IP=10.0.0.80",
    "@^node1 priority 3",
    "@^node2 priority 4",
    "include included.conf",
    "include gone.conf",
    "include {included,gone}.conf",
    "@node1 include included.conf",
    "~SEQ(N, 3) 10.0.9.${N}",
    "~LST({N, L}, {1, eth0}, {2, eth1}) 10.0.8.${N} dev $L",
    "10.0.0.${NUMBER}",
    "$IP",
    "${IP}",
    "${IP} dev eth1",
    "$UNKNOWN",
    "${UNKNOWN}",
    "fd00::5",
    "10.0.0.55/24 dev eth2 use_vmac",
    "10.0.0.56 dev",
    "{",
    "}",
    "\"",
    "\\",
    "vrrp_instance",
    "vrrp_instance \"Q q\" {",
];

/// Generates a configuration with one to three instances and up to six changes.
pub fn mutated(random: &mut Random) -> Sample {
    let mut main = Vec::new();
    if random.below(3) == 0 {
        main.extend(["global_defs {", "    router_id x"].map(str::to_owned));
        main.push(format!(
            "    {}",
            random.one_of(&[
                "vmac_prefix own",
                "vrrp_strict",
                "vmac_addr_prefix o",
                "vrrp_version 3"
            ])
        ));
        main.push("}".to_owned());
    }
    for number in 0..=random.below(3) {
        instance(random, number, &mut main);
    }
    let lines = ["10.0.7.1", "    10.0.7.2 dev eth1", "priority 33", "$INCLUDED=1"];
    let mut included: Vec<String> =
        (0..random.below(3)).map(|_| random.one_of(&lines).to_owned()).collect();
    for _ in 0..random.below(7) {
        let list = if random.below(8) == 0 { &mut included } else { &mut main };
        change(random, list);
    }
    Sample { main, included }
}

/// Appends one instance block.
fn instance(random: &mut Random, number: usize, lines: &mut Vec<String>) {
    let name = random.one_of(&["A", "VI_1", "net/B", "\"two words\"", "${_INSTANCE}", "V${EMPTY}"]);
    let mut body = vec![
        format!("    interface {}", random.one_of(&["eth0", "eth0", "eth1", "bond0", "\"eth2\""])),
        format!("    virtual_router_id {}", random.one_of(&["51", "51", "7", "255"])),
    ];
    for _ in 0..random.below(5) {
        body.push(format!("    {}", random.one_of(STATEMENTS)));
    }
    body.push("    virtual_ipaddress {".to_owned());
    let addresses = [
        "10.0.0.1",
        "10.0.0.2/24 dev eth1",
        "10.0.0.3 dev eth0 label eth0:1",
        "fd00::1/64",
        "10.0.0.4/24 brd + dev eth2 scope global",
        "10.0.0.5 use_vmac",
    ];
    for _ in 0..=random.below(3) {
        body.push(format!("        {}", random.one_of(&addresses)));
    }
    body.push("    }".to_owned());
    lines.push(format!("vrrp_instance {name}{number} {{"));
    lines.extend(body.iter().flat_map(|line| line.split('\n')).map(str::to_owned));
    lines.push("}".to_owned());
}

/// Makes one random change.
fn change(random: &mut Random, lines: &mut Vec<String>) {
    let at = random.below(lines.len() + 1);
    let Some(line) = lines.get(at).cloned() else {
        return lines.push(random.one_of(LINES).to_owned());
    };
    match random.below(14) {
        0..4 => lines.insert(at, random.one_of(LINES).to_owned()),
        4 => drop(lines.remove(at)),
        5 => lines.insert(at, line),
        6 => {
            let other = random.below(lines.len());
            lines.swap(at, other);
        }
        7 => {
            lines[at] = format!(
                "{line} {}",
                random.one_of(&["# comment", "! x", "\\", "{", "}", "\"", "\\#"])
            );
        }
        8 => {
            lines[at] = format!(
                "{}{}",
                random.one_of(&["@node1 ", "@node2 ", "@^node1 ", "@^node2 ", "@", "~"]),
                line.trim()
            );
        }
        9 => lines[at] = quoted(random, &line),
        10 => {
            // Joins two lines.
            if at + 1 < lines.len() {
                let next = lines.remove(at + 1);
                lines[at] = format!("{line} {next}");
            }
        }
        11 => {
            // Moves the opening brace to the next line.
            if let Some(head) = line.strip_suffix('{') {
                head.trim_end().clone_into(&mut lines[at]);
                lines.insert(at + 1, "{".to_owned());
            }
        }
        12 => lines[at] = line.replace(' ', "\t"),
        _ => defined(random, lines, at),
    }
}

/// Puts one word of the line in quotes.
fn quoted(random: &mut Random, line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    if words.is_empty() {
        return line.to_owned();
    }
    let chosen = random.below(words.len());
    let each = words.iter().enumerate();
    let each = each
        .map(|(at, word)| if at == chosen { format!("\"{word}\"") } else { (*word).to_owned() });
    each.collect::<Vec<_>>().join(" ")
}

/// Replaces the word at the end of a line by a `$DEFINED` variable and defines it in an earlier line.
fn defined(random: &mut Random, lines: &mut Vec<String>, at: usize) {
    let line = lines[at].clone();
    let Some((head, word)) = line.trim_end().rsplit_once(' ').filter(|(_, word)| !word.is_empty())
    else {
        return;
    };
    let form = random.one_of(&["$DEFINED", "${DEFINED}"]);
    lines[at] = format!("{head} {form}");
    let comment = random.one_of(&["", " # comment", " ! comment"]);
    lines.insert(random.below(at + 1), format!("$DEFINED={word}{comment}"));
}
