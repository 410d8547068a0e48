//! `vipwatch history`: what failed over, when, and what told.

use std::fmt::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use vipwatch_history::{Entry, Query, Reader, Run};
use vipwatch_linux::clock::local_time_of;

use super::node::failure;
use super::node_name;
use crate::args::{Format, History};
use crate::failure::Failure;
use crate::show;

pub(crate) fn run(options: &History) -> Result<(), Failure> {
    let reader = Reader::open(&options.state_dir).map_err(|error| failure(&error))?;
    let since = options.since.map(|span| {
        let then = SystemTime::now().checked_sub(span).unwrap_or(UNIX_EPOCH);
        let since = then.duration_since(UNIX_EPOCH).unwrap_or_default();
        i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
    });
    let query = Query { since, instance: options.id.clone(), limit: Some(options.limit) };
    let entries = reader.changes(&query).map_err(|error| failure(&error))?;
    let runs = reader.runs().map_err(|error| failure(&error))?;
    match options.format {
        Format::Json => show::json(&as_json(&entries, &runs)),
        Format::Table if entries.is_empty() => show::print("nothing of that is recorded\n"),
        Format::Table => {
            let rows: Vec<Vec<String>> = entries.iter().map(row).collect();
            let head = ["TIME", "ID", "FROM", "TO", "CAUSE", "REASON"];
            show::print(&show::table(&head, &rows));
        }
    }
    if options.format == Format::Table {
        show::print(&gaps(&runs));
    }
    Ok(())
}

fn row(entry: &Entry) -> Vec<String> {
    let record = &entry.record;
    vec![
        when(record.at),
        record.instance.clone(),
        record.from.clone().unwrap_or_default(),
        record.to.clone(),
        record.cause.clone(),
        record.reason.clone().unwrap_or_default(),
    ]
}

/// When nothing was recorded, and what could not be.
fn gaps(runs: &[Run]) -> String {
    let mut text = String::new();
    for pair in runs.windows(2) {
        let (run, next) = (&pair[0], &pair[1]);
        let (until, how) = match run.ended {
            Some(ended) => (ended, "stopped"),
            None => (run.seen, "killed"),
        };
        let (until, again) = (when(until), when(next.began));
        let _ = writeln!(text, "not recorded: {until} to {again} ({how})");
    }
    let dropped: i64 = runs.iter().map(|run| run.dropped).sum();
    if dropped > 0 {
        let _ = writeln!(text, "not recorded: {dropped} changes, the disk was too slow or full");
    }
    text
}

fn as_json(entries: &[Entry], runs: &[Run]) -> Value {
    let changes = entries.iter().map(|entry| {
        let record = &entry.record;
        json!({
            "seq": entry.seq, "at": record.at, "id": record.instance, "netns": record.netns,
            "from": record.from, "to": record.to, "cause": record.cause, "reason": record.reason,
        })
    });
    let runs = runs.iter().map(|run| {
        json!({ "began": run.began, "seen": run.seen, "ended": run.ended, "dropped": run.dropped })
    });
    json!({
        "schema": "vipwatch.history/1", "node": node_name(),
        "changes": changes.collect::<Value>(), "runs": runs.collect::<Value>(),
    })
}

/// A time for people, in the machine's own zone.
pub(super) fn when(millis: i64) -> String {
    let since = Duration::from_millis(u64::try_from(millis).unwrap_or(0));
    let time = local_time_of(since);
    format!(
        "{:04}-{:02}-{:02} {:02}:{:02}:{:02}.{:03}",
        time.year, time.month, time.day, time.hour, time.minute, time.second, time.millisecond
    )
}
