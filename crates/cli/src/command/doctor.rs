//! `vipwatch doctor`: prints the findings of the audit, each with a hint.

use std::fmt::Write;

use serde_json::{Value, json};

use super::{each, text};
use crate::args::{DoctorArgs, Format};
use crate::ask::ask;
use crate::failure::{CommandError, ExitStatus};
use crate::output;

pub(crate) fn run(options: &DoctorArgs) -> Result<(), CommandError> {
    let answer = ask(&options.query, &json!({ "ask": "doctor" }))?;
    match options.query.format {
        Format::Json => output::json(&answer),
        Format::Table => output::print(&page(&answer)),
    }
    let serious = each(&answer["findings"]).filter(|one| one["severity"] != "odd").count();
    match serious {
        0 => Ok(()),
        1 => Err(CommandError::new(ExitStatus::No, "one thing is wrong")),
        count => Err(CommandError::new(ExitStatus::No, format!("{count} things are wrong"))),
    }
}

fn page(answer: &Value) -> String {
    let mut page = String::new();
    let mut findings: Vec<&Value> = each(&answer["findings"]).collect();
    let order = |finding: &&Value| match finding["severity"].as_str() {
        Some("broken") => 0,
        Some("wrong") => 1,
        _ => 2,
    };
    findings.sort_by_key(order);
    for finding in &findings {
        let id = text(&finding["id"]);
        let prefix = if id.is_empty() { String::new() } else { format!("{id}: ") };
        let what = output::escape_untrusted(&format!("{prefix}{}", text(&finding["text"])));
        let of = |key: &str| output::escape_untrusted(&text(&finding[key]));
        let (severity, name, hint) = (of("severity"), of("name"), of("hint"));
        let _ = writeln!(page, "{severity:<7} {name:<28} {what}{}", age(finding));
        let _ = writeln!(page, "{:<37}{}", "", hint);
    }
    let count = text(&answer["instances"]);
    if findings.is_empty() {
        let _ = writeln!(page, "nothing is wrong with the {count} instances of this node");
    } else {
        let _ = writeln!(page, "{} findings, {count} instances", findings.len());
    }
    page
}

/// The age of a finding, for people; empty if it is not known.
pub(super) fn age(finding: &Value) -> String {
    let Some(seconds) = finding["age_seconds"].as_u64() else { return String::new() };
    match seconds {
        0..60 => format!(" (for {seconds} s)"),
        60..3600 => format!(" (for {} min)", seconds / 60),
        _ => format!(" (for {} h)", seconds / 3600),
    }
}
