//! `vipwatch status`: who is primary here, by what the kernel holds now.

use serde_json::{Value, json};
use vipwatch_core::Standing;
use vipwatch_engine::discovery::{Discovery, Found, discover};
use vipwatch_engine::look::{Seen, look};

use super::{node_name, troubles_json, troubles_text};
use crate::args::{Expected, Format, Status};
use crate::failure::{Code, Failure};
use crate::show;

pub(crate) fn run(options: &Status) -> Result<(), Failure> {
    let mut discovery = discover(&options.place.places());
    if !options.ids.is_empty() {
        discovery.instances = chosen(&discovery, &options.ids)?;
    }
    let seen = look(&discovery.instances);
    match options.place.format {
        Format::Json => show::json(&as_json(&seen, &discovery)),
        Format::Table => {
            if seen.is_empty() {
                show::print("nothing to watch on this node\n");
            } else {
                let head = ["ID", "ROLE", "ORIGIN", "NETNS", "ADDRESSES", "REASON"];
                let rows: Vec<Vec<String>> = seen.iter().map(row).collect();
                show::print(&show::table(&head, &rows));
            }
            show::print(&troubles_text(&discovery.troubles));
        }
    }
    verdict(&seen, options.expect)
}

/// Those whose id begins with one of `ids`.
fn chosen(discovery: &Discovery, ids: &[String]) -> Result<Vec<Found>, Failure> {
    for id in ids {
        if !discovery.instances.iter().any(|found| found.id.as_str().starts_with(id.as_str())) {
            let message = format!("there is no instance {id:?} on this node");
            return Err(Failure::new(Code::Missing, message)
                .hint("`vipwatch discover` lists those there are"));
        }
    }
    let is_chosen =
        |found: &&Found| ids.iter().any(|id| found.id.as_str().starts_with(id.as_str()));
    Ok(discovery.instances.iter().filter(is_chosen).cloned().collect())
}

fn row(seen: &Seen<'_>) -> Vec<String> {
    let Seen { found, standing, addresses } = seen;
    let first = addresses.first().map(|(_, cidr, _)| cidr.to_string()).unwrap_or_default();
    let more = match addresses.len() {
        0 | 1 => String::new(),
        count => format!(" (+{})", count - 1),
    };
    vec![
        found.id.to_string(),
        standing.word().to_owned(),
        found.origin.word().to_owned(),
        found.netns.as_ref().map(ToString::to_string).unwrap_or_default(),
        format!("{first}{more}"),
        standing.reason(),
    ]
}

fn as_json(seen: &[Seen<'_>], discovery: &Discovery) -> Value {
    let instances = seen.iter().map(|seen| {
        let Seen { found, standing, addresses } = seen;
        let reason = standing.reason();
        let addresses = addresses.iter().map(|(link, cidr, is_held)| {
            json!({ "cidr": cidr.to_string(), "link": link.to_string(), "held": is_held })
        });
        json!({
            "id": found.id.to_string(), "role": standing.word(),
            "reason": (!reason.is_empty()).then_some(reason),
            "origin": found.origin.word(), "netns": found.netns.as_ref().map(ToString::to_string),
            "vrid": found.vrrp.vrid, "addresses": addresses.collect::<Value>(),
        })
    });
    json!({
        "schema": "vipwatch.status/1", "node": node_name(),
        "instances": instances.collect::<Value>(), "problems": troubles_json(&discovery.troubles),
    })
}

fn verdict(seen: &[Seen<'_>], expected: Option<Expected>) -> Result<(), Failure> {
    let is_forbidden = |seen: &Seen<'_>| matches!(&seen.standing, Standing::Unknown(why) if why.contains("Operation not permitted"));
    if seen.iter().any(is_forbidden) {
        let message = "some namespaces could not be entered";
        return Err(Failure::new(Code::NotPermitted, message).hint("run it as root"));
    }
    let Some(expected) = expected else { return Ok(()) };
    let others = seen.iter().filter(|seen| seen.standing.word() != expected.word()).count();
    match (seen.len(), others) {
        (0, _) => Err(Failure::new(Code::No, "there is nothing that could be as expected")),
        (_, 0) => Ok(()),
        (all, others) => {
            let message = format!("{others} of {all} are not {}", expected.word());
            Err(Failure::new(Code::No, message))
        }
    }
}
