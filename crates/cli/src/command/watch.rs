//! `vipwatch watch`: every change as it happens, one line each.

use serde_json::json;
use vipwatch_core::Standing;
use vipwatch_engine::roster::Change;
use vipwatch_linux::clock::{LocalTime, local_time};

use super::{node_name, troubles_text};
use crate::args::{Format, Watch};
use crate::failure::Failure;
use crate::follow::Follower;
use crate::show;

pub(crate) fn run(options: &Watch) -> Result<(), Failure> {
    let mut follower = Follower::open(options.place.places(), options.ids.clone())?;
    let mut left = options.changes;
    let mut news = follower.rediscover();
    loop {
        if let Some(troubles) = news.troubles.filter(|_| options.place.format == Format::Table) {
            show::print(&troubles_text(&troubles));
        }
        for change in news.changes {
            if !show::is_read(&format!("{}\n", line(&change, options.place.format))) {
                return Ok(());
            }
            // What was so before is a picture, not a change.
            if let Some(left) = left.as_mut().filter(|_| change.from.is_some()) {
                *left -= 1;
                if *left == 0 {
                    return Ok(());
                }
            }
        }
        news = follower.wait(None)?;
    }
}

/// A change in one line, for whoever reads it.
pub(super) fn line(change: &Change, format: Format) -> String {
    let Change { found, from, to, cause } = change;
    let LocalTime { year, month, day, hour, minute, second, millisecond } = local_time();
    let time = format!("{hour:02}:{minute:02}:{second:02}.{millisecond:03}");
    let before = from.as_ref().map(Standing::word);
    let reason = to.reason();
    match format {
        Format::Json => json!({
            "schema": "vipwatch.change/1", "node": node_name(),
            "time": format!("{year:04}-{month:02}-{day:02}T{time}"),
            "id": found.id.to_string(), "netns": found.netns.as_ref().map(ToString::to_string),
            "from": before, "to": to.word(), "cause": cause.word(),
            "reason": (!reason.is_empty()).then_some(reason),
        })
        .to_string(),
        Format::Table => {
            let colon = if reason.is_empty() { "" } else { ": " };
            let from = before.map(|before| format!("{before} → ")).unwrap_or_default();
            let (to, cause) = (to.word(), cause.word());
            format!("{time}  {}  {from}{to}  ({cause}{colon}{reason})", found.id)
        }
    }
}
