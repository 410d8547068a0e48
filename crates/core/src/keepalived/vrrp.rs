//! VRRP instances, and the addresses they move.

use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;

use super::tree::{Place, Problem, Statement};
use crate::{LinkName, NetnsName};

/// An address that an instance moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VirtualAddress {
    /// The address and its prefix length; all of it if none is given.
    pub cidr: IpNet,
    /// The link it is put on.
    pub link: LinkName,
    /// Moved like the others, and not named in advertisements.
    pub is_excluded: bool,
}

/// A `vrrp_instance`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VrrpInstance {
    /// Where it begins.
    pub place: Place,
    /// Its name.
    pub name: String,
    /// The link its advertisements go over.
    pub interface: LinkName,
    /// `virtual_router_id`.
    pub vrid: Option<u8>,
    /// `priority`.
    pub priority: Option<u8>,
    /// `advert_int`.
    pub advert_interval: Option<Duration>,
    /// Its addresses, in order; at least one.
    pub addresses: Vec<VirtualAddress>,
    /// Whether a default route for IPv6 moves with them.
    pub has_ipv6_gateway: bool,
}

/// What a configuration says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Configuration {
    /// The namespace keepalived goes to; its own if there is none.
    pub netns: Option<NetnsName>,
    /// The instances that can be watched.
    pub instances: Vec<VrrpInstance>,
}

/// Reads `statements`. An instance that cannot be watched is left out, and said.
pub fn configuration(statements: &[Statement], problems: &mut Vec<Problem>) -> Configuration {
    let mut configuration = Configuration::default();
    // In every version of the manual at the top, and taken in `global_defs` too.
    let global = statements.iter().filter(|statement| statement.keyword() == "global_defs");
    for statement in statements.iter().chain(global.flat_map(|global| &global.block)) {
        if statement.keyword() == "net_namespace" {
            match statement.argument().map(str::parse) {
                Some(Ok(netns)) => configuration.netns = Some(netns),
                _ => problems.push(Problem::new(statement.place, "net_namespace needs a name")),
            }
        }
    }
    for statement in statements.iter().filter(|statement| statement.keyword() == "vrrp_instance") {
        let Some(instance) = instance(statement, problems) else { continue };
        match configuration.instances.iter().find(|other| other.name == instance.name) {
            Some(other) => {
                let line = other.place.line;
                let text = format!("vrrp_instance {} is there already, in line {line}", other.name);
                problems.push(Problem::new(instance.place, text));
            }
            None => configuration.instances.push(instance),
        }
    }
    configuration
}

fn instance(statement: &Statement, problems: &mut Vec<Problem>) -> Option<VrrpInstance> {
    let place = statement.place;
    let Some(name) = statement.argument() else {
        problems.push(Problem::new(place, "vrrp_instance needs a name"));
        return None;
    };
    let argument = |keyword: &str| {
        let found = statement.block.iter().rev().find(|inner| inner.keyword() == keyword);
        found.map(|found| (found.place, found.argument().unwrap_or_default()))
    };
    let mut number = |keyword: &str, lowest: u8| {
        let (place, text) = argument(keyword)?;
        let number = text.parse().ok().filter(|number: &u8| *number >= lowest);
        if number.is_none() {
            let text = format!("{keyword} of {name} is {lowest} to 255, not {text:?}");
            problems.push(Problem::new(place, text));
        }
        number
    };
    let vrid = number("virtual_router_id", 1);
    let priority = number("priority", 0);
    let interface: Option<LinkName> = argument("interface").and_then(|(_, text)| text.parse().ok());
    let Some(interface) = interface else {
        problems.push(Problem::new(place, format!("{name} has no interface")));
        return None;
    };
    // With a MAC of its own, an instance has a link of its own.
    let link = match argument("use_vmac") {
        Some((_, "")) => vrid.and_then(|vrid| format!("vrrp.{vrid}").parse().ok()),
        Some((_, named)) => named.parse().ok(),
        None => None,
    };
    let link = link.unwrap_or(interface);
    let mut addresses = Vec::new();
    for (keyword, is_excluded) in
        [("virtual_ipaddress", false), ("virtual_ipaddress_excluded", true)]
    {
        for block in statement.block.iter().filter(|inner| inner.keyword() == keyword) {
            for line in &block.block {
                match address(line, link, is_excluded) {
                    Ok(address) => addresses.push(address),
                    Err(text) => problems.push(Problem::new(line.place, text)),
                }
            }
        }
    }
    if addresses.is_empty() {
        problems.push(Problem::new(place, format!("{name} has no virtual address to watch")));
        return None;
    }
    // There may be thousands of these.
    addresses.shrink_to_fit();
    let advert_interval = argument("advert_int")
        .and_then(|(_, text)| text.parse().ok())
        .and_then(|seconds: f64| Duration::try_from_secs_f64(seconds).ok());
    let routes = statement.block.iter().filter(|inner| inner.keyword() == "virtual_routes");
    let has_ipv6_gateway = routes.flat_map(|block| &block.block).any(is_ipv6_gateway);
    Some(VrrpInstance {
        place,
        name: name.to_owned(),
        interface,
        vrid,
        priority,
        advert_interval,
        addresses,
        has_ipv6_gateway,
    })
}

/// `::/0 via GATEWAY …`, or `default via GATEWAY …` with one of IPv6.
fn is_ipv6_gateway(route: &Statement) -> bool {
    let via = route.words.iter().skip_while(|word| *word != "via").nth(1);
    let via = via.and_then(|text| text.parse::<IpAddr>().ok());
    let is_default = ["::/0", "default", "default6"].contains(&route.keyword());
    is_default && via.is_some_and(|via| via.is_ipv6())
}

/// `IP[/LENGTH] [dev LINK] …`; the other words do not matter here.
fn address(entry: &Statement, link: LinkName, is_excluded: bool) -> Result<VirtualAddress, String> {
    let text = entry.keyword();
    let wrong = || format!("{text:?} is not an address");
    let cidr = if text.contains('/') {
        text.parse().map_err(|_error| wrong())?
    } else {
        IpNet::from(text.parse::<IpAddr>().map_err(|_error| wrong())?)
    };
    let named = entry.words.iter().skip_while(|word| *word != "dev").nth(1);
    let link = match named {
        Some(named) => named.parse().map_err(|error| format!("dev {named:?}: {error}"))?,
        None => link,
    };
    Ok(VirtualAddress { cidr, link, is_excluded })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keepalived::tree::{Definitions, parse};

    fn read(text: &str) -> (Configuration, Vec<String>) {
        let mut problems = Vec::new();
        let statements = parse(text, 0, &mut Definitions::new(), &mut problems);
        let configuration = configuration(&statements, &mut problems);
        let said =
            problems.iter().map(|problem| format!("{}: {}", problem.place.line, problem.text));
        (configuration, said.collect())
    }

    #[test]
    fn an_instance_with_all_that_matters() {
        let (configuration, problems) = read(
            "net_namespace blue\n\
             vrrp_instance VI_1 {\n  state BACKUP\n  interface eth0\n  virtual_router_id 51\n  \
             priority 100\n  advert_int 0.5\n  virtual_ipaddress {\n    192.0.2.9\n    \
             192.0.2.10/24 brd + dev eth1 label eth1:1\n    2001:db8::9\n  }\n  \
             virtual_ipaddress_excluded {\n    2001:DB8::a/64 dev eth1 scope link no_track\n  }\n}\n",
        );
        assert_eq!(problems, Vec::<String>::new());
        assert_eq!(configuration.netns, Some("blue".parse().unwrap()));
        let instance = &configuration.instances[0];
        assert_eq!((instance.vrid, instance.priority), (Some(51), Some(100)));
        assert_eq!(instance.advert_interval, Some(Duration::from_millis(500)));
        let found: Vec<String> = instance
            .addresses
            .iter()
            .map(|address| format!("{} {} {}", address.cidr, address.link, address.is_excluded))
            .collect();
        let expected = [
            "192.0.2.9/32 eth0 false",
            "192.0.2.10/24 eth1 false",
            "2001:db8::9/128 eth0 false",
            "2001:db8::a/64 eth1 true",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_gateway_of_ipv6_is_a_default_route_over_one() {
        let with = |route: &str| {
            let text = format!(
                "vrrp_instance a {{ \n interface e0 \n virtual_ipaddress {{ \n 10.0.0.1 \n }} \n\
                 virtual_routes {{ \n {route} \n }} \n }}"
            );
            read(&text).0.instances[0].has_ipv6_gateway
        };
        assert!(with("::/0 via fe80::1 dev qg-1 no_track protocol static"));
        assert!(!with("0.0.0.0/0 via 10.0.0.254 dev qg-1"));
        assert!(!with("2001:db8::/64 via fe80::1 dev qg-1"));
        assert!(!with("::/0 dev qg-1 scope link"));
    }

    #[test]
    fn an_instance_with_a_mac_of_its_own_has_a_link_of_its_own() {
        let text = |vmac: &str| {
            format!(
                "vrrp_instance A {{\n interface eth0\n virtual_router_id 7\n {vmac}\n \
                 virtual_ipaddress {{\n 10.0.0.1\n }}\n}}\n"
            )
        };
        for (vmac, link) in [("use_vmac", "vrrp.7"), ("use_vmac mine", "mine"), ("", "eth0")] {
            let (configuration, _) = read(&text(vmac));
            assert_eq!(configuration.instances[0].addresses[0].link.to_string(), link);
        }
    }

    #[test]
    fn what_cannot_be_watched_is_said_with_its_line_and_the_rest_is_taken() {
        let (configuration, problems) = read(
            "vrrp_instance {\n}\n\
             vrrp_instance A {\n virtual_ipaddress {\n 10.0.0.1\n }\n}\n\
             vrrp_instance B {\n interface eth0\n virtual_router_id 0\n virtual_ipaddress {\n \
             10.0.0.300\n 10.0.0.1/33\n 10.0.0.2\n }\n}\n\
             vrrp_instance B {\n interface eth0\n virtual_ipaddress {\n 10.0.0.3\n }\n}\n\
             vrrp_instance C {\n interface eth0\n}\n",
        );
        let names: Vec<&str> =
            configuration.instances.iter().map(|instance| instance.name.as_str()).collect();
        assert_eq!(names, ["B"]);
        assert_eq!(configuration.instances[0].addresses.len(), 1);
        let expected = [
            "1: vrrp_instance needs a name",
            "3: A has no interface",
            "10: virtual_router_id of B is 1 to 255, not \"0\"",
            "12: \"10.0.0.300\" is not an address",
            "13: \"10.0.0.1/33\" is not an address",
            "17: vrrp_instance B is there already, in line 8",
            "23: C has no virtual address to watch",
        ];
        assert_eq!(problems, expected);
    }
}
