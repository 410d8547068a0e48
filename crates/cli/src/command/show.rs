//! `vipwatch show ID`: prints everything about one instance.

use std::fmt::Write;

use serde_json::{Value, json};
use vipwatch_history::Stage;

use super::doctor::age;
use super::{each, text};
use crate::args::{Format, ShowArgs};
use crate::ask::ask;
use crate::failure::CommandError;
use crate::output;

pub(crate) fn run(options: &ShowArgs) -> Result<(), CommandError> {
    let answer = ask(&options.query, &json!({ "ask": "show", "id": options.id }))?;
    match options.query.format {
        Format::Json => output::json(&answer),
        Format::Table => output::print(&page(&answer)),
    }
    Ok(())
}

fn page(answer: &Value) -> String {
    let instance = &answer["instance"];
    let of = |key: &str| text(&instance[key]);
    let mut page = String::new();
    let mut line = |name: &str, what: String| {
        if !what.is_empty() {
            let _ = writeln!(page, "{name:<10} {}", output::escape_untrusted(&what));
        }
    };
    line("id", of("id"));
    let reason = Some(of("reason")).filter(|reason| !reason.is_empty());
    line(
        "role",
        format!("{}{}", of("role"), reason.map(|why| format!(": {why}")).unwrap_or_default()),
    );
    line("since", of("since_time").replace('T', " "));
    line("told by", of("cause"));
    line("origin", format!("{}, {}:{}", of("origin"), of("file"), of("line")));
    line(
        "namespace",
        Some(of("netns"))
            .filter(|netns| !netns.is_empty())
            .unwrap_or_else(|| "the node's own".to_owned()),
    );
    let vrrp = [("vrid", of("vrid")), ("priority", of("priority")), ("interface", of("interface"))];
    let vrrp = vrrp.iter().filter(|(_, value)| !value.is_empty());
    line(
        "vrrp",
        vrrp.map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", "),
    );
    for address in each(&instance["addresses"]) {
        let mark = if address["excluded"] == true { ", floating" } else { "" };
        let state = text(&address["state"]);
        line(
            "address",
            format!("{} on {}: {state}{mark}", text(&address["cidr"]), text(&address["link"])),
        );
    }
    line("outlets", each(&instance["stages"]).map(text).collect::<Vec<_>>().join(", "));
    line("told after", latencies(&instance["latencies"]));
    for failure in each(&instance["failures"]) {
        let of = |key: &str| text(&failure[key]);
        line("not told", format!("{} {}: {}", of("stage"), of("target"), of("error")));
    }
    if !instance["agent"].is_null() {
        let known = text(&instance["agent"]["acknowledged"]);
        line(
            "agent",
            format!("has acknowledged {}", if known.is_empty() { "nothing" } else { &known }),
        );
    }
    if !instance["report"].is_null() {
        let of = |key: &str| text(&instance["report"][key]);
        line(
            "claimed",
            format!(
                "{}, {} s ago; settled as {}",
                of("reported"),
                of("age_seconds"),
                of("settled")
            ),
        );
    }
    for finding in each(&answer["findings"]) {
        let (name, what) = (text(&finding["name"]), text(&finding["text"]));
        line("finding", format!("{name}: {what}{}", age(finding)));
        line("", format!("  {}", text(&finding["hint"])));
    }
    let rows: Vec<Vec<String>> = each(&answer["timeline"]).map(super::history::row).collect();
    if rows.is_empty() {
        let why = text(&answer["history_error"]);
        line("past", if why.is_empty() { "nothing is recorded".to_owned() } else { why });
    } else {
        page.push('\n');
        page.push_str(&output::table(&super::history::HEAD, &rows));
    }
    page
}

/// The latencies of the stages, in the order of delivery, for people.
pub(super) fn latencies(latencies: &Value) -> String {
    let known = Stage::ALL.iter().filter_map(|stage| {
        let micros = latencies[stage.word()].as_f64()?;
        Some(format!("{} {}", stage.word(), span(micros)))
    });
    known.collect::<Vec<_>>().join(", ")
}

/// A number of microseconds with a unit, for people.
fn span(micros: f64) -> String {
    if micros < 1e6 { format!("{:.2} ms", micros / 1e3) } else { format!("{:.1} s", micros / 1e6) }
}
