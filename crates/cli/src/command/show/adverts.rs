// SPDX-License-Identifier: Apache-2.0
//! The section `adverts` of `vipwatch show ID`.

use std::time::Duration;

use vipwatch_api::{
    AdvertPresence, AdvertSignature, AdvertSourceItem, AdvertsItem, CaptureState, InstanceItem,
};

use super::NamedLines;
use crate::output::Style;

/// The priority of an instance that does not set one.
const DEFAULT_PRIORITY: u8 = 100;

/// Adds the lines about captured adverts.
pub(super) fn add_adverts(
    lines: &mut NamedLines,
    instance: &InstanceItem,
    adverts: &AdvertsItem,
    style: &Style,
) {
    lines.add("adverts", &summary(adverts));
    for source in &adverts.sources {
        lines.add("", &source_text(source, is_preempted(source, instance), style));
        for difference in &source.differences {
            lines.add("", &format!("  differs: {difference}"));
        }
    }
    if adverts.undecoded > 0 {
        let last = adverts.last_undecoded_at.map(|at| format!(", last {} ago", style.age(at)));
        let text =
            format!("{} that name this instance{}", adverts.undecoded, last.unwrap_or_default());
        lines.add("undecodable", &text);
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
        return format!("not captured on {link}: {capture}{}", error.unwrap_or_default());
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

/// Whether another node that no longer advertises has a lower priority than this one: a node that is preempted stops
/// without the priority 0. If this node took over because the other one was silent, it was not preempted.
fn is_preempted(source: &AdvertSourceItem, instance: &InstanceItem) -> bool {
    let is_weaker = source.priority < instance.priority.unwrap_or(DEFAULT_PRIORITY);
    is_weaker && instance.cause.cause.as_deref() != Some("peer-silent")
}

fn source_text(source: &AdvertSourceItem, is_preempted: bool, style: &Style) -> String {
    let origin = if source.own { "own" } else { "peer" };
    let state = match (source.advertising, source.priority) {
        (true, _) => "",
        (false, 0) => ", has handed over",
        (false, _) if source.own => ", has stopped",
        (false, _) if is_preempted => ", has stopped: it has a lower priority than this node",
        (false, _) => ", has stopped without a hand-over and may still hold the addresses",
    };
    let lost = if source.lost > 0 { format!(", {} lost", source.lost) } else { String::new() };
    let kind = if source.unicast { " unicast," } else { "" };
    let signature = source.signature.map(|AdvertSignature { key_id, clock_difference_ms }| {
        let direction = if clock_difference_ms < 0 { "ahead" } else { "behind" };
        let difference = span(clock_difference_ms.unsigned_abs());
        format!(", signed with key {key_id} (its clock: {difference} {direction})")
    });
    let signature = signature.unwrap_or_default();
    format!(
        "{}{kind} {origin}, priority {}, every {}, version {}, auth {}{signature}, {} ago{state}{lost}",
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    #[test]
    fn a_preempted_peer_raises_no_alarm_and_a_silent_one_does() {
        let mut detail = samples::instance_detail();
        let mut source = detail.adverts.take().unwrap().sources.remove(0);
        (source.own, source.advertising, source.priority) = (false, false, 50);
        detail.instance.priority = Some(100);
        let mut text = |cause: &str| {
            detail.instance.cause.cause = Some(cause.to_owned());
            let is_preempted = is_preempted(&source, &detail.instance);
            source_text(&source, is_preempted, &Style::of_tests())
        };
        let preempted = text("preempted-peer");
        assert!(preempted.contains(" peer, priority 50"), "{preempted}");
        assert!(preempted.ends_with("it has a lower priority than this node"), "{preempted}");
        assert!(text("peer-silent").contains("may still hold the addresses"));
    }
}
