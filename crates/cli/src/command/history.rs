//! `vipwatch history`: prints recorded transitions.

use std::fmt::Write;
use std::time::SystemTime;

use serde_json::{Value, json};
use vipwatch_node::transition::{millis, time_text};

use super::show::latencies;
use super::{each, text};
use crate::args::{Format, HistoryArgs};
use crate::ask::{ask, ask_directly};
use crate::failure::CommandError;
use crate::output;

/// The columns of [`row`].
pub(super) const HEAD: [&str; 8] =
    ["SEQ", "TIME", "ID", "FROM", "TO", "CAUSE", "REASON", "TOLD AFTER"];

pub(crate) fn run(options: &HistoryArgs) -> Result<(), CommandError> {
    let since = options
        .since
        .map(|span| millis(SystemTime::now().checked_sub(span).unwrap_or(SystemTime::UNIX_EPOCH)));
    let question = json!({
        "ask": "history", "since": since, "id": options.id, "limit": options.limit,
    });
    let answer = match &options.state_dir {
        Some(directory) => {
            let mut config = options.query.settings()?;
            config.state_dir.clone_from(directory);
            ask_directly(&config, &question)?
        }
        None => ask(&options.query, &question)?,
    };
    match options.query.format {
        Format::Json => output::json(&answer),
        Format::Table if options.flaps => output::print(&flaps(&answer)),
        Format::Table => {
            let rows: Vec<Vec<String>> = each(&answer["transitions"]).map(row).collect();
            if rows.is_empty() {
                output::print("nothing of that is recorded\n");
            } else {
                output::print(&output::table(&HEAD, &rows));
            }
            output::print(&gaps(&answer["runs"]));
        }
    }
    Ok(())
}

/// The cells of a transition.
pub(super) fn row(transition: &Value) -> Vec<String> {
    let time = text(&transition["time"]).replace('T', " ");
    let mut row = vec![text(&transition["seq"]), time];
    row.extend(["id", "from", "to", "cause", "reason"].map(|key| text(&transition[key])));
    row.push(latencies(&transition["latencies"]));
    row
}

fn flaps(answer: &Value) -> String {
    let rows: Vec<Vec<String>> = each(&answer["flaps"])
        .map(|flaps| {
            let time = |key: &str| time_text(flaps[key].as_i64().unwrap_or(0)).replace('T', " ");
            vec![
                text(&flaps["id"]),
                text(&flaps["transitions"]),
                text(&flaps["primary"]),
                time("first"),
                time("last"),
            ]
        })
        .collect();
    if rows.is_empty() {
        return "nothing has changed\n".to_owned();
    }
    output::table(&["ID", "CHANGES", "PRIMARY", "FIRST", "LAST"], &rows)
}

/// The periods in which no recorder ran, and the number of transitions that could not be recorded.
fn gaps(runs: &Value) -> String {
    let mut page = String::new();
    let runs: Vec<&Value> = each(runs).collect();
    let time = |value: &Value| time_text(value.as_i64().unwrap_or(0)).replace('T', " ");
    for pair in runs.windows(2) {
        let (run, next) = (pair[0], pair[1]);
        let (until, how) = match &run["ended"] {
            Value::Null => (&run["seen"], "killed"),
            ended => (ended, "stopped"),
        };
        let (until, again) = (time(until), time(&next["began"]));
        let _ = writeln!(page, "not recorded: {until} to {again} ({how})");
    }
    let dropped: i64 = runs.iter().filter_map(|run| run["dropped"].as_i64()).sum();
    if dropped > 0 {
        let _ = writeln!(page, "not recorded: {dropped} changes, the disk was too slow or full");
    }
    page
}
