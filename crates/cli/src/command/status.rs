//! `vipwatch status`: prints the role of every instance.

use serde_json::{Value, json};

use super::{answered_problems_text, each, text};
use crate::args::{ExpectedRole, Format, StatusArgs};
use crate::ask::ask;
use crate::failure::{CommandError, ExitStatus};
use crate::output;

pub(crate) fn run(options: &StatusArgs) -> Result<(), CommandError> {
    let answer = ask(&options.query, &json!({ "ask": "status", "ids": options.ids }))?;
    match options.query.format {
        Format::Json => output::json(&answer),
        Format::Table => {
            let rows: Vec<Vec<String>> = each(&answer["instances"]).map(row).collect();
            if rows.is_empty() {
                output::print("nothing to watch on this node\n");
            } else {
                let head = ["ID", "ROLE", "SINCE", "ORIGIN", "NETNS", "ADDRESSES", "REASON"];
                output::print(&output::table(&head, &rows));
            }
            output::print(&answered_problems_text(&answer["problems"]));
        }
    }
    check_expectation(&answer["instances"], options.expect)
}

fn row(instance: &Value) -> Vec<String> {
    let first = text(&instance["addresses"][0]["cidr"]);
    let more = match each(&instance["addresses"]).count() {
        0 | 1 => String::new(),
        count => format!(" (+{})", count - 1),
    };
    let failures = each(&instance["failures"]).count();
    let reason = match (text(&instance["reason"]), failures) {
        (reason, 0) => reason,
        (reason, _) if reason.is_empty() => "a target could not be notified".to_owned(),
        (reason, _) => format!("{reason}; a target could not be notified"),
    };
    let since = text(&instance["since_time"]).replace('T', " ");
    vec![
        text(&instance["id"]),
        text(&instance["role"]),
        since.split('.').next().unwrap_or_default().to_owned(),
        text(&instance["origin"]),
        text(&instance["netns"]),
        format!("{first}{more}"),
        reason,
    ]
}

/// The exit code: an error if a namespace could not be entered, or if a role differs from `--expect`.
fn check_expectation(
    instances: &Value,
    expected: Option<ExpectedRole>,
) -> Result<(), CommandError> {
    let is_forbidden = |instance: &Value| {
        instance["role"] == "unknown" && text(&instance["reason"]).contains("not permitted")
    };
    if each(instances).any(is_forbidden) {
        let message = "some namespaces could not be entered";
        return Err(CommandError::new(ExitStatus::NotPermitted, message).hint("run it as root"));
    }
    let Some(expected) = expected else { return Ok(()) };
    let others = each(instances).filter(|one| one["role"] != expected.word()).count();
    match (each(instances).count(), others) {
        (0, _) => {
            Err(CommandError::new(ExitStatus::No, "there is nothing that could be as expected"))
        }
        (_, 0) => Ok(()),
        (all, others) => {
            let message = format!("{others} of {all} are not {}", expected.word());
            Err(CommandError::new(ExitStatus::No, message))
        }
    }
}
