//! `vipwatch history`: what failed over, when, and what told.

use std::fmt::Write;
use std::time::SystemTime;

use serde_json::{Value, json};
use vipwatch_node::transition::{millis, time_text};

use super::show::latencies;
use super::{each, text};
use crate::args::{Format, HistoryArgs};
use crate::ask::{ask, ask_directly};
use crate::failure::CommandError;
use crate::show;

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
            let mut config = options.place.settings()?;
            config.state_dir.clone_from(directory);
            ask_directly(&config, &question)?
        }
        None => ask(&options.place, &question)?,
    };
    match options.place.format {
        Format::Json => show::json(&answer),
        Format::Table if options.flaps => show::print(&flaps(&answer)),
        Format::Table => {
            let rows: Vec<Vec<String>> = each(&answer["changes"]).map(row).collect();
            if rows.is_empty() {
                show::print("nothing of that is recorded\n");
            } else {
                show::print(&show::table(&HEAD, &rows));
            }
            show::print(&gaps(&answer["runs"]));
        }
    }
    Ok(())
}

/// A change in columns.
pub(super) fn row(change: &Value) -> Vec<String> {
    let time = text(&change["time"]).replace('T', " ");
    let mut row = vec![text(&change["seq"]), time];
    row.extend(["id", "from", "to", "cause", "reason"].map(|key| text(&change[key])));
    row.push(latencies(&change["latencies"]));
    row
}

fn flaps(answer: &Value) -> String {
    let rows: Vec<Vec<String>> = each(&answer["flaps"])
        .map(|flaps| {
            let time = |key: &str| time_text(flaps[key].as_i64().unwrap_or(0)).replace('T', " ");
            vec![
                text(&flaps["id"]),
                text(&flaps["changes"]),
                text(&flaps["primary"]),
                time("first"),
                time("last"),
            ]
        })
        .collect();
    if rows.is_empty() {
        return "nothing has changed\n".to_owned();
    }
    show::table(&["ID", "CHANGES", "PRIMARY", "FIRST", "LAST"], &rows)
}

/// When nothing was recorded, and what could not be.
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
