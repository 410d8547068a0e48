// SPDX-License-Identifier: Apache-2.0
//! `vipwatch discover`: prints the configured instances and the problems in their files.

use serde::Serialize;
use vipwatch_api::ConfigProblemItem;
use vipwatch_node::discovery::{ConfigScanner, DiscoveryResult, InstanceConfig};
use vipwatch_node::view::config_problems;

use super::node_name;
use super::status::{InstancePlace, is_in_several_netns, problem_text};
use crate::args::DiscoverArgs;
use crate::failure::{CommandError, ExitStatus};
use crate::output::{self, Page, Style, TextTable, count, push_line};

pub(crate) fn run(options: &DiscoverArgs) -> Result<(), CommandError> {
    let config = options.query.settings()?;
    let discovery = ConfigScanner::with_processes(config.locations, config.instances).scan();
    let document = DiscoveryDocument::new(&discovery);
    output::show(options.query.output(), &document);
    match document.problems.len() {
        0 => Ok(()),
        number => Err(CommandError::new(ExitStatus::No, count(number, "problem"))),
    }
}

/// The configured instances.
#[derive(Debug, Serialize)]
struct DiscoveryDocument {
    schema: &'static str,
    node: String,
    instances: Vec<DiscoveredInstance>,
    problems: Vec<ConfigProblemItem>,
}

/// An instance in a configuration file.
#[derive(Debug, Serialize)]
struct DiscoveredInstance {
    id: String,
    origin: &'static str,
    netns: Option<String>,
    name: String,
    interface: String,
    vrid: Option<u8>,
    priority: Option<u8>,
    /// The advertisement interval in seconds.
    advert_interval: Option<f64>,
    addresses: Vec<DiscoveredAddress>,
    file: String,
    line: u32,
}

/// An address of an instance.
#[derive(Debug, Serialize)]
struct DiscoveredAddress {
    cidr: String,
    link: String,
    /// Whether it does not decide the role.
    floating: bool,
}

impl DiscoveryDocument {
    fn new(discovery: &DiscoveryResult) -> Self {
        Self {
            schema: "vipwatch.discover/2",
            node: node_name(),
            instances: discovery.instances.iter().map(|instance| discovered(instance)).collect(),
            problems: config_problems(&discovery.problems),
        }
    }
}

fn discovered(instance: &InstanceConfig) -> DiscoveredInstance {
    let InstanceConfig { id, origin, netns, file, vrrp } = instance;
    let addresses = vrrp.addresses.iter().map(|address| DiscoveredAddress {
        cidr: address.cidr.to_string(),
        link: address.link.to_string(),
        floating: address.is_excluded,
    });
    DiscoveredInstance {
        id: id.to_string(),
        origin: origin.word(),
        netns: netns.as_ref().map(ToString::to_string),
        name: vrrp.name.clone(),
        interface: vrrp.interface_name(),
        vrid: vrrp.vrid,
        priority: vrrp.priority,
        advert_interval: vrrp.advert_interval.map(|span| span.as_secs_f64()),
        addresses: addresses.collect(),
        file: file.display().to_string(),
        line: vrrp.position.line,
    }
}

impl Page for DiscoveryDocument {
    fn text(&self, style: &Style) -> String {
        let mut page = if self.instances.is_empty() {
            "no instance is configured in the files that this command reads\n".to_owned()
        } else {
            table(&self.instances, style)
        };
        for problem in &self.problems {
            push_line(&mut page, &problem_text(problem));
        }
        page
    }

    fn names(&self) -> Vec<String> {
        self.instances.iter().map(|instance| instance.id.clone()).collect()
    }
}

fn table(instances: &[DiscoveredInstance], style: &Style) -> String {
    let number = |number: Option<u8>| number.map(|number| number.to_string()).unwrap_or_default();
    let has_netns_column = style.is_wide
        || is_in_several_netns(instances.iter().map(|instance| InstancePlace {
            origin: instance.origin,
            netns: instance.netns.as_deref(),
        }));
    let mut table = if style.is_wide {
        TextTable::new(&["ID", "ORIGIN", "NETNS", "LINK", "VRID", "PRIORITY", "ADDRESSES", "FILE"])
    } else {
        let netns = has_netns_column.then_some("NETNS");
        let rest = ["LINK", "VRID", "PRIORITY", "ADDRESSES", "FILE"];
        let head = ["ID", "ORIGIN"].into_iter().chain(netns).chain(rest);
        TextTable::new(&head.collect::<Vec<_>>()).shrink(&[("FILE", 12)])
    };
    for instance in instances {
        let file = format!("{}:{}", instance.file, instance.line);
        let addresses = instance.addresses.iter().map(|address| address.cidr.as_str());
        let addresses = addresses.collect::<Vec<_>>().join(",");
        let netns = has_netns_column.then(|| instance.netns.clone().unwrap_or_default());
        let mut row = vec![instance.id.clone(), instance.origin.to_owned()];
        row.extend(netns);
        row.extend([instance.interface.clone(), number(instance.vrid), number(instance.priority)]);
        row.push(if style.is_wide { addresses } else { instance.addresses.len().to_string() });
        row.push(file);
        table.row(row);
    }
    table.text(style)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_names_the_file_of_each_instance_and_the_problems() {
        let address = |cidr: &str, floating| DiscoveredAddress {
            cidr: cidr.to_owned(),
            link: "eth0".to_owned(),
            floating,
        };
        let instance = DiscoveredInstance {
            id: "VI_1".to_owned(),
            origin: "keepalived",
            netns: Some("blue".to_owned()),
            name: "VI_1".to_owned(),
            interface: "eth0".to_owned(),
            vrid: Some(51),
            priority: None,
            advert_interval: Some(1.0),
            addresses: vec![address("192.0.2.10/24", false), address("2001:db8::10/64", true)],
            file: "/etc/keepalived/keepalived.conf".to_owned(),
            line: 12,
        };
        let problem = ConfigProblemItem {
            file: "/etc/keepalived/keepalived.conf".to_owned(),
            line: Some(40),
            text: "vrrp_instance B is not closed".to_owned(),
        };
        let document = DiscoveryDocument {
            schema: "vipwatch.discover/2",
            node: "node-1".to_owned(),
            instances: vec![instance],
            problems: vec![problem],
        };
        insta::assert_snapshot!("table", document.text(&Style::of_tests()));
        let wide = Style { is_wide: true, ..Style::of_tests() };
        insta::assert_snapshot!("wide", document.text(&wide));
        insta::assert_snapshot!("json", output::json_line(&document));
    }
}
