// SPDX-License-Identifier: Apache-2.0
//! The `virtual_routes` and `virtual_rules` of an instance, as far as they can be compared with the kernel.
//!
//! A field that is not written, or not understood, is `None`: it is not compared. An entry without a destination (a
//! route) or without any known field (a rule) is left out.

use std::fmt;
use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::definitions::RANDOM_MARK;
use super::numbers::cidr;
use crate::LinkName;
use crate::routing::MAIN_TABLE;

/// A route that keepalived adds when the instance becomes primary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VirtualRoute {
    /// The destination.
    pub destination: IpNet,
    /// The gateway; `None` if there is none or there are several.
    pub via: Option<IpAddr>,
    /// The link; `None` if there is none or there are several.
    pub dev: Option<LinkName>,
    /// The number of the table; `None` if it is not known.
    pub table: Option<u32>,
    /// The metric; `None` if the kernel chooses it.
    pub metric: Option<u32>,
}

/// A routing rule that keepalived adds when the instance becomes primary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VirtualRule {
    /// Whether the rule is for IPv6.
    pub is_ipv6: bool,
    /// The source.
    pub from: Option<IpNet>,
    /// The destination.
    pub to: Option<IpNet>,
    /// The mark of packets.
    pub mark: Option<u32>,
    /// The number of the table.
    pub table: Option<u32>,
    /// The priority; `None` if keepalived chooses it.
    pub priority: Option<u32>,
}

/// What the statements of the instance say about all its routes.
#[derive(Debug, Clone, Copy)]
pub(super) struct RouteContext {
    /// Whether a route without `table` may be in another table than `main`: the instance has a `vrf`.
    pub(super) has_vrf: bool,
    /// Whether keepalived may use another link than the written one: the instance has a link of its own.
    pub(super) has_own_link: bool,
}

/// Options without a value.
const FLAGS: &[&str] = &["onlink", "no_track", "append", "inet", "inet6", "to", "unicast"];

/// Types of routes without a gateway and a link.
const DISCARDING: &[&str] = &[
    "blackhole",
    "unreachable",
    "prohibit",
    "throw",
    "local",
    "broadcast",
    "anycast",
    "multicast",
    "nat",
];

/// Options with one value that is not compared. The word `lock` may be before the value.
const OTHER_OPTIONS: &[&str] = &[
    "src",
    "as",
    "from",
    "tos",
    "dsfield",
    "protocol",
    "scope",
    "expires",
    "mtu",
    "hoplimit",
    "advmss",
    "rtt",
    "rttvar",
    "reordering",
    "window",
    "cwnd",
    "ssthresh",
    "realms",
    "realm",
    "rto_min",
    "initcwnd",
    "initrwnd",
    "features",
    "quickack",
    "congctl",
    "pref",
    "fastopen_no_cookie",
    "ttl-propagate",
    "track_group",
];

/// The fields of a route that are read so far.
#[derive(Debug, Clone, Copy)]
struct RouteDraft {
    destination: Option<IpNet>,
    via: Option<IpAddr>,
    dev: Option<LinkName>,
    table: Option<u32>,
    metric: Option<u32>,
    /// Whether the route has one gateway or link.
    is_single: bool,
}

/// Reads a line of `virtual_routes`; `None` if its destination is not known.
pub(super) fn route(words: &[String]) -> Option<VirtualRoute> {
    if words.iter().any(|word| word.contains(RANDOM_MARK)) {
        return None;
    }
    let is_ipv6 = words.iter().any(|word| word == "inet6" || word.contains(':'));
    let mut draft = RouteDraft {
        destination: None,
        via: None,
        dev: None,
        table: Some(MAIN_TABLE),
        metric: None,
        is_single: true,
    };
    let mut rest = words.iter().map(String::as_str);
    while let Some(word) = rest.next() {
        // Everything that follows is about one of several gateways, or not understood.
        if matches!(word, "nexthop" | "or" | "encap") {
            draft.is_single = false;
            break;
        }
        draft.read(word, &mut rest, is_ipv6);
    }
    let RouteDraft { destination, via, dev, table, metric, is_single } = draft;
    let (via, dev) = (via.filter(|_| is_single), dev.filter(|_| is_single));
    Some(VirtualRoute { destination: destination?, via, dev, table, metric })
}

impl RouteDraft {
    /// Takes over one option with its value, or the destination.
    fn read<'a>(&mut self, word: &str, rest: &mut impl Iterator<Item = &'a str>, is_ipv6: bool) {
        match word {
            "via" | "gw" => {
                let next = rest.next().filter(|next| !matches!(*next, "inet" | "inet6"));
                self.via = next.or_else(|| rest.next()).and_then(|text| text.parse().ok());
            }
            "dev" | "oif" => self.dev = rest.next().and_then(|text| text.parse().ok()),
            "table" => self.table = rest.next().and_then(table_number),
            "vrf" => (self.table, _) = (None, rest.next()),
            "metric" | "priority" | "preference" => self.metric = rest.next().and_then(number),
            word if DISCARDING.contains(&word) => self.is_single = false,
            word if OTHER_OPTIONS.contains(&word) => {
                if rest.next().is_some_and(|value| value == "lock") {
                    rest.next();
                }
            }
            word if FLAGS.contains(&word) => {}
            word => self.destination = self.destination.or_else(|| prefix(word, is_ipv6)),
        }
    }
}

impl VirtualRoute {
    /// The route without the fields that the instance makes uncertain.
    pub(super) fn in_context(mut self, context: RouteContext) -> Self {
        if context.has_vrf && self.table == Some(MAIN_TABLE) {
            self.table = None;
        }
        if context.has_own_link {
            self.dev = None;
        }
        self
    }
}

/// Reads a line of `virtual_rules`; `None` if no field of it is known.
pub(super) fn rule(words: &[String]) -> Option<VirtualRule> {
    if words.iter().any(|word| word.contains(RANDOM_MARK)) {
        return None;
    }
    let is_ipv6 = words.iter().any(|word| word == "inet6" || word.contains(':'));
    let unknown = VirtualRule { is_ipv6, ..VirtualRule::default() };
    let mut rule = unknown;
    let mut rest = words.iter();
    while let Some(word) = rest.next() {
        let mut value = || rest.next().map_or("", String::as_str);
        match word.as_str() {
            "from" => rule.from = prefix(value(), is_ipv6),
            "to" => rule.to = prefix(value(), is_ipv6),
            "fwmark" => rule.mark = value().split('/').next().and_then(number),
            "table" | "lookup" => rule.table = table_number(value()),
            "priority" | "preference" | "order" => rule.priority = number(value()),
            _ => {}
        }
    }
    let is_any = |net: &IpNet| net.prefix_len() == 0;
    rule.from = rule.from.filter(|net| !is_any(net));
    rule.to = rule.to.filter(|net| !is_any(net));
    (rule != unknown).then_some(rule)
}

/// A destination; the bits after its length are zero, as in the kernel.
fn prefix(word: &str, is_ipv6: bool) -> Option<IpNet> {
    match word {
        "default" | "all" | "any" if is_ipv6 => Some(Ipv6Net::default().into()),
        "default6" => Some(Ipv6Net::default().into()),
        "default" | "all" | "any" => Some(Ipv4Net::default().into()),
        word => cidr(word).map(|net| net.trunc()),
    }
}

/// The number of a table with a number or one of the names that every host has.
fn table_number(word: &str) -> Option<u32> {
    match word {
        "main" => Some(MAIN_TABLE),
        "local" => Some(255),
        "default" => Some(253),
        word => number(word),
    }
}

/// A decimal or hexadecimal number. Other forms, which keepalived may read as octal, are not known.
fn number(word: &str) -> Option<u32> {
    if let Some(digits) = word.strip_prefix("0x") {
        return u32::from_str_radix(digits, 16).ok();
    }
    let is_octal = word.len() > 1 && word.starts_with('0');
    word.parse().ok().filter(|_| !is_octal)
}

impl fmt::Display for VirtualRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.destination)?;
        if let Some(via) = self.via {
            write!(f, " via {via}")?;
        }
        if let Some(dev) = self.dev {
            write!(f, " dev {dev}")?;
        }
        if let Some(table) = self.table.filter(|table| *table != MAIN_TABLE) {
            write!(f, " table {table}")?;
        }
        self.metric.map_or(Ok(()), |metric| write!(f, " metric {metric}"))
    }
}

impl fmt::Display for VirtualRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fields = [
            ("from", self.from.map(|net| net.to_string())),
            ("to", self.to.map(|net| net.to_string())),
            ("fwmark", self.mark.map(|mark| mark.to_string())),
            ("table", self.table.map(|table| table.to_string())),
            ("priority", self.priority.map(|priority| priority.to_string())),
        ];
        let known = fields.into_iter().filter_map(|(name, value)| Some((name, value?)));
        for (number, (name, value)) in known.enumerate() {
            write!(f, "{}{name} {value}", if number == 0 { "" } else { " " })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    fn shown_route(text: &str) -> Option<String> {
        route(&words(text)).map(|route| route.to_string())
    }

    fn shown_rule(text: &str) -> Option<String> {
        rule(&words(text)).map(|rule| rule.to_string())
    }

    #[test]
    fn the_known_fields_of_a_route_are_read() {
        let same = [
            "203.0.113.0/24 via 192.0.2.1 dev eth0",
            "0.0.0.0/0 via 192.0.2.1 dev qg-1",
            "2001:db8::/64 dev eth0 metric 7",
            "10.0.0.1/32 dev eth0 table 100",
        ];
        for text in same {
            assert_eq!(shown_route(text).as_deref(), Some(text));
        }
        for (text, expected) in [
            (
                "src 10.0.0.1 to 10.1.0.5/16 via 10.0.0.2 no_track protocol static",
                "10.1.0.0/16 via 10.0.0.2",
            ),
            ("default gw 10.0.0.2 table main mtu lock 1400 onlink", "0.0.0.0/0 via 10.0.0.2"),
            ("default via fe80::1 dev eth0", "::/0 via fe80::1 dev eth0"),
            ("10.0.0.1 dev eth0 table small", "10.0.0.1/32 dev eth0"),
            ("blackhole 10.0.0.0/8 dev eth0", "10.0.0.0/8"),
            ("10.0.0.0/8 via 10.0.0.1 or 10.0.0.2 dev eth0", "10.0.0.0/8"),
            (
                "10.0.0.0/8 table 9 nexthop via 10.0.0.1 weight 1 nexthop via 10.0.0.2",
                "10.0.0.0/8 table 9",
            ),
            ("10.0.0.0/8 strange word dev eth1 metric 010", "10.0.0.0/8 dev eth1"),
        ] {
            assert_eq!(shown_route(text).as_deref(), Some(expected), "{text}");
        }
        assert_eq!(route(&words("10.0.0.1 table small")).unwrap().table, None);
        assert_eq!(shown_route("dev eth0 onlink"), None);
    }

    #[test]
    fn the_known_fields_of_a_rule_are_read() {
        for (text, expected) in [
            ("from 10.0.0.0/8 table 100 priority 5", "from 10.0.0.0/8 table 100 priority 5"),
            ("to 2001:db8::1 lookup main order 7", "to 2001:db8::1/128 table 254 priority 7"),
            ("fwmark 0x10/0xff table 0x64 iif eth0", "fwmark 16 table 100"),
            ("from all table 3", "table 3"),
        ] {
            assert_eq!(shown_rule(text).as_deref(), Some(expected), "{text}");
        }
        assert_eq!(shown_rule("from all blackhole"), None);
    }

    #[test]
    fn a_vrf_or_a_link_of_its_own_makes_fields_of_routes_uncertain() {
        let route = route(&words("10.0.0.0/8 dev eth0")).unwrap();
        let context = RouteContext { has_vrf: true, has_own_link: true };
        let route = route.in_context(context);
        assert_eq!((route.dev, route.table), (None, None));
    }
}
