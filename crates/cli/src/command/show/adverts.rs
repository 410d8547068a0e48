// SPDX-License-Identifier: Apache-2.0
//! The section `adverts` of `vipwatch show ID`.

use std::time::Duration;

use vipwatch_api::{AdvertPresence, AdvertSourceItem, AdvertsItem, CaptureState};

use super::NamedLines;
use crate::output::Style;

/// Adds the lines about captured adverts.
pub(super) fn add_adverts(lines: &mut NamedLines, adverts: &AdvertsItem, style: &Style) {
    lines.add("adverts", &summary(adverts));
    for source in &adverts.sources {
        lines.add("", &source_text(source, style));
        for difference in &source.differences {
            lines.add("", &format!("  differs: {difference}"));
        }
    }
    if !adverts.bad.is_empty() {
        let counts: Vec<String> =
            adverts.bad.iter().map(|(error, count)| format!("{count} {error}")).collect();
        let last = adverts.last_bad_at.map(|at| format!(", last {} ago", style.age(at)));
        lines.add("bad adverts", &format!("{}{}", counts.join(", "), last.unwrap_or_default()));
    }
    if let Some(at) = adverts.overrun_at {
        let text = format!("{} adverts were lost, last {} ago", adverts.dropped, style.age(at));
        lines.add("overruns", &text);
    }
}

fn summary(adverts: &AdvertsItem) -> String {
    let AdvertsItem { link, capture, presence, .. } = adverts;
    if *capture != CaptureState::Running {
        let error = adverts.error.as_ref().map(|error| format!(": {error}"));
        return format!("not captured on {link}: {}{}", capture.word(), error.unwrap_or_default());
    }
    // Without sent adverts, nothing is known about this node's own ones.
    let (some, none, directions) = if adverts.sent {
        ("a node", "no node", "received and sent")
    } else {
        ("another node", "no other node", "received")
    };
    let state = match presence {
        AdvertPresence::Advertised => format!("{some} advertises"),
        AdvertPresence::Silent => {
            format!("{none} has advertised for {}", span(adverts.silent_ms.unwrap_or(0)))
        }
        AdvertPresence::Unknown => format!("not known yet whether {some} advertises"),
    };
    format!("{state} on {link} ({directions})")
}

fn source_text(source: &AdvertSourceItem, style: &Style) -> String {
    let origin = if source.own { "own" } else { "foreign" };
    let state = match (source.advertising, source.priority) {
        (true, _) => "",
        (false, 0) => ", has handed over",
        (false, _) if source.own => ", has stopped",
        (false, _) => ", has stopped without a hand-over and may still hold the addresses",
    };
    let lost = if source.lost > 0 { format!(", {} lost", source.lost) } else { String::new() };
    format!(
        "{} {origin}, priority {}, every {}, version {}, auth {}, {} ago{state}{lost}",
        source.source,
        source.priority,
        span(source.interval_ms),
        source.version,
        source.authentication,
        if source.age_ms < 60_000 { span(source.age_ms) } else { style.age(source.at) },
    )
}

/// A time in seconds, or in milliseconds if it is short.
fn span(millis: u64) -> String {
    let seconds = Duration::from_millis(millis).as_secs_f64();
    if millis < 1_000 { format!("{millis} ms") } else { format!("{seconds:.1} s") }
}
