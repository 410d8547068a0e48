// SPDX-License-Identifier: Apache-2.0
//! Which routes and rules of an instance the kernel lacks.

use super::*;
use crate::snapshot::{LinkFacts, LinkState};

fn snapshot() -> Snapshot {
    let link = LinkFacts {
        link: LinkIndex(3),
        name: "eth0".parse().unwrap(),
        mac: None,
        state: LinkState::Working,
        is_loopback: false,
        is_dummy: false,
        is_router: false,
    };
    Snapshot { links: vec![link], addresses: Vec::new() }
}

fn route() -> VirtualRoute {
    VirtualRoute {
        destination: "203.0.113.0/24".parse().unwrap(),
        via: Some("192.0.2.1".parse().unwrap()),
        dev: Some("eth0".parse().unwrap()),
        table: Some(MAIN_TABLE),
        metric: None,
    }
}

fn kernel_route() -> RouteFacts {
    let hop = NextHop { via: Some("192.0.2.1".parse().unwrap()), link: Some(LinkIndex(3)) };
    RouteFacts {
        destination: "203.0.113.0/24".parse().unwrap(),
        table: MAIN_TABLE,
        metric: 0,
        next_hops: vec![hop],
    }
}

fn missing(route: VirtualRoute, kernel: RouteFacts) -> usize {
    let tables = RoutingTables { routes: Some(vec![kernel]), ..RoutingTables::default() };
    tables.missing_routes(&[route], &snapshot()).len()
}

#[test]
fn a_route_is_present_if_all_known_fields_are_the_same() {
    assert_eq!(missing(route(), kernel_route()), 0);
    assert_eq!(missing(VirtualRoute { via: None, dev: None, ..route() }, kernel_route()), 0);
    assert_eq!(missing(VirtualRoute { table: None, ..route() }, kernel_route()), 0);
    let other_hop = NextHop { via: None, link: Some(LinkIndex(4)) };
    let mut several = kernel_route();
    several.next_hops.insert(0, other_hop);
    assert_eq!(missing(route(), several), 0, "one of several gateways");
    let renamed = VirtualRoute { dev: Some("other-name".parse().unwrap()), ..route() };
    assert_eq!(missing(renamed, kernel_route()), 0, "no link has this name");
}

#[test]
fn a_route_with_another_field_is_missing() {
    let mut others = vec![kernel_route(); 4];
    others[0].destination = "203.0.113.0/25".parse().unwrap();
    others[1].table = 100;
    others[2].next_hops[0].via = Some("192.0.2.2".parse().unwrap());
    others[3].next_hops[0].link = Some(LinkIndex(4));
    for other in others {
        assert_eq!(missing(route(), other.clone()), 1, "{other:?}");
    }
    assert_eq!(missing(VirtualRoute { metric: Some(5), ..route() }, kernel_route()), 1);
}

#[test]
fn a_rule_is_compared_by_its_known_fields() {
    let rule = VirtualRule {
        from: Some("192.0.2.100/32".parse().unwrap()),
        table: Some(100),
        ..VirtualRule::default()
    };
    let kernel = RuleFacts { from: rule.from, to: None, mark: 0, table: 100, priority: 16_384 };
    let missing = |kernel| {
        let tables = RoutingTables { rules_v4: Some(vec![kernel]), ..RoutingTables::default() };
        tables.missing_rules(&[rule]).len()
    };
    assert_eq!(missing(kernel), 0);
    assert_eq!(missing(RuleFacts { table: 101, ..kernel }), 1);
    assert_eq!(missing(RuleFacts { from: None, ..kernel }), 1);
}

#[test]
fn tables_that_could_not_be_read_prove_nothing() {
    let unknown = RoutingTables::default();
    assert_eq!(unknown.missing_routes(&[route()], &snapshot()), []);
    assert_eq!(unknown.missing_rules(&[VirtualRule::default()]), []);
    let empty =
        RoutingTables { routes: Some(Vec::new()), rules_v4: Some(Vec::new()), rules_v6: None };
    assert_eq!(empty.missing_routes(&[route()], &snapshot()), [route()]);
    let rules = [false, true].map(|is_ipv6| VirtualRule { is_ipv6, ..VirtualRule::default() });
    assert_eq!(empty.missing_rules(&rules), [rules[0]], "the kernel has no rules for IPv6");
}
