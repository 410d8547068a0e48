//! What monitors claim, for whoever asks.

use std::time::SystemTime;

use serde_json::{Value, json};
use vipwatch_core::InstanceId;
use vipwatch_core::debounce::ReportedState;
use vipwatch_receiver::RouterReport;

use super::{QueryContext, Why, refusal};
use crate::notify::report_notifier::ReportTargetView;
use crate::state::PublishedState;
use crate::transition::millis;

/// The most of one kind that an answer lists.
const SOME: usize = 20;

/// What is claimed of one instance; nothing if nobody reports here.
pub(super) fn of(context: &QueryContext, id: &InstanceId) -> Option<Value> {
    context.receiver_handle.router_report(id).map(|role| claim(&role))
}

fn claim(role: &RouterReport) -> Value {
    let RouterReport { state: claim, at, settled, is_held, reports, acted_seq: _ } = role;
    json!({
        "reported": claim.as_str(), "at": millis(*at), "age_seconds": age(*at),
        "settled": settled.map(ReportedState::as_str), "state": settled.map(ReportedState::server_name),
        "held": is_held, "reports": reports,
    })
}

fn age(at: SystemTime) -> u64 {
    at.elapsed().unwrap_or_default().as_secs()
}

/// All claims, what was counted, and who was told: `vipwatch.receiver/1`.
pub(super) fn answer(context: &QueryContext) -> Value {
    let claims = context.receiver_handle.status();
    let view = claims.as_ref().and_then(|claims| Some(claims.view.lock().ok()?.clone()));
    let (Some(claims), Some(view)) = (claims, view) else {
        return refusal(Why::Missing, "this process does not run a receiver");
    };
    let routers = view.instances.iter().map(|(id, role)| {
        let mut router = claim(role);
        router["id"] = id.as_str().into();
        router
    });
    let report_notifier = claims.deliveries.parties();
    let report_notifier = report_notifier.iter().map(|(name, party)| duty(name, party));
    json!({
        "schema": "vipwatch.receiver/1", "node": &*context.node, "since": millis(claims.since),
        "routers": routers.collect::<Value>(), "targets": report_notifier.collect::<Value>(),
        "accepted": view.accepted, "coalesced": view.coalesced, "rejected": view.rejected,
        "unavailable": view.unavailable, "pending": view.pending, "connections": view.connections,
        "problems": view.problems.iter().map(problem).collect::<Value>(),
    })
}

fn problem((name, text): (&&str, &String)) -> Value {
    json!({ "name": name, "text": text })
}

fn duty(name: &str, party: &ReportTargetView) -> Value {
    let failing = party.failing.iter().take(SOME);
    let failing = failing.map(|(id, why)| json!({ "id": id.as_str(), "error": why }));
    json!({
        "target": name, "pending": party.owed.len(), "delivered": party.told,
        "failures": party.failures, "superseded": party.superseded, "failing": failing.collect::<Value>(),
    })
}

/// What is wrong with what is claimed, beyond single instances.
pub(super) fn findings(context: &QueryContext, view: &PublishedState) -> Vec<Value> {
    let Some(claims) = context.receiver_handle.status() else { return Vec::new() };
    let mut findings = Vec::new();
    let problems = claims.view.lock().map(|view| view.problems.clone()).unwrap_or_default();
    for (name, text) in problems {
        let hint = match name {
            "socket" => "stop the other process, or remove [receiver]; then restart this one",
            _ => {
                "see that the disk has room and can be written; the receiver tries again by itself"
            }
        };
        findings.push(json!({
            "id": null, "name": format!("receiver-{name}"), "severity": "wrong",
            "text": text, "hint": hint, "since": null, "age_seconds": null,
        }));
    }
    let strangers: Vec<String> = match claims.view.lock() {
        Ok(claims) => {
            let ids = claims.instances.keys().filter(|id| !view.entries.contains_key(*id));
            ids.map(ToString::to_string).collect()
        }
        Err(_) => Vec::new(),
    };
    for id in strangers.iter().take(SOME) {
        findings.push(json!({
            "id": id, "name": "report-for-unknown-instance", "severity": "odd",
            "text": "a monitor has reported about it, and nothing on this node is called so",
            "hint": "its router was deleted and its monitor was left, or its keepalived.conf is not found",
            "since": null, "age_seconds": null,
        }));
    }
    for (name, party) in claims.deliveries.parties() {
        let Some((id, why)) = party.failing.iter().next() else { continue };
        let others = match party.failing.len() {
            1 => String::new(),
            count => format!(" (and {} more)", count - 1),
        };
        findings.push(json!({
            "id": id.as_str(), "name": "delivery-failed", "severity": "wrong",
            "text": format!("{name}: {why}{others}"),
            "hint": "see the log for what was tried; `vipwatch receiver status` has the backlog",
            "since": null, "age_seconds": null,
        }));
    }
    findings
}
