//! `vipwatch discover`: prints the configured instances and the problems in their files.

use serde_json::{Value, json};
use vipwatch_node::discovery::{ConfigScanner, DiscoveryResult, InstanceConfig};
use vipwatch_node::query_server::problems_json;

use super::{node_name, problems_text};
use crate::args::{DiscoverArgs, Format};
use crate::failure::{CommandError, ExitStatus};
use crate::output;

pub(crate) fn run(options: &DiscoverArgs) -> Result<(), CommandError> {
    let config = options.query.settings()?;
    let discovery = ConfigScanner::new(config.locations, config.instances).scan();
    match options.query.format {
        Format::Json => output::json(&as_json(&discovery)),
        Format::Table => {
            let rows: Vec<Vec<String>> =
                discovery.instances.iter().map(|instance| row(instance)).collect();
            if rows.is_empty() {
                output::print("nothing to watch on this node\n");
            } else {
                let head =
                    ["ID", "ORIGIN", "NETNS", "LINK", "VRID", "PRIORITY", "ADDRESSES", "FILE"];
                output::print(&output::table(&head, &rows));
            }
            output::print(&problems_text(&discovery.problems));
        }
    }
    match discovery.problems.len() {
        0 => Ok(()),
        1 => Err(CommandError::new(ExitStatus::No, "there is a problem")),
        count => Err(CommandError::new(ExitStatus::No, format!("there are {count} problems"))),
    }
}

fn row(instance: &InstanceConfig) -> Vec<String> {
    let InstanceConfig { id, origin, netns, file, vrrp } = instance;
    let number = |number: Option<u8>| number.map(|number| number.to_string()).unwrap_or_default();
    vec![
        id.to_string(),
        origin.word().to_owned(),
        netns.as_ref().map(ToString::to_string).unwrap_or_default(),
        vrrp.interface.to_string(),
        number(vrrp.vrid),
        number(vrrp.priority),
        vrrp.addresses.len().to_string(),
        format!("{}:{}", file.display(), vrrp.position.line),
    ]
}

fn as_json(discovery: &DiscoveryResult) -> Value {
    let instances = discovery.instances.iter().map(|instance| {
        let InstanceConfig { id, origin, netns, file, vrrp } = &**instance;
        let addresses = vrrp.addresses.iter().map(|address| {
            json!({
                "cidr": address.cidr.to_string(), "link": address.link.to_string(),
                "excluded": address.is_excluded,
            })
        });
        json!({
            "id": id.to_string(), "origin": origin.word(), "netns": netns.as_ref().map(ToString::to_string),
            "name": vrrp.name, "interface": vrrp.interface.to_string(), "vrid": vrrp.vrid,
            "priority": vrrp.priority,
            "advert_interval": vrrp.advert_interval.map(|span| span.as_secs_f64()),
            "addresses": addresses.collect::<Value>(),
            "file": file.display().to_string(), "line": vrrp.position.line,
        })
    });
    json!({
        "schema": "vipwatch.discover/1", "node": node_name(),
        "instances": instances.collect::<Value>(), "problems": problems_json(&discovery.problems),
    })
}
