//! Answers about the states that monitors have reported, and findings about them.

use std::time::SystemTime;

use serde_json::{Value, json};
use vipwatch_core::InstanceId;
use vipwatch_core::debounce::ReportedState;
use vipwatch_receiver::RouterReport;

use super::{RefusalReason, refusal};
use crate::notify::report_notifier::ReportTargetView;
use crate::state::PublishedState;
use crate::transition::millis;
use crate::view::ApiContext;

/// Maximum number of entries of one kind in an answer.
const MAX_LISTED: usize = 20;

/// The reported state of one instance; `None` without a receiver, or without a report.
pub(super) fn of(context: &ApiContext, id: &InstanceId) -> Option<Value> {
    context.receiver_handle.router_report(id).map(|report| report_json(&report))
}

fn report_json(report: &RouterReport) -> Value {
    let RouterReport { state: reported, at, settled, is_held, reports, acted_seq: _ } = report;
    json!({
        "reported": reported.as_str(), "at": millis(*at), "age_seconds": age(*at),
        "settled": settled.map(ReportedState::as_str), "state": settled.map(ReportedState::neutron_server_name),
        "held": is_held, "reports": reports,
    })
}

fn age(at: SystemTime) -> u64 {
    at.elapsed().unwrap_or_default().as_secs()
}

/// All reported states, the counters, and the deliveries to each target: `vipwatch.receiver/1`.
pub(super) fn answer(context: &ApiContext) -> Value {
    let status = context.receiver_handle.status();
    let view = status.as_ref().and_then(|status| Some(status.view.lock().ok()?.clone()));
    let (Some(status), Some(view)) = (status, view) else {
        return refusal(RefusalReason::Missing, "this process does not run a receiver");
    };
    let routers = view.instances.iter().map(|(id, report)| {
        let mut router = report_json(report);
        router["id"] = id.as_str().into();
        router
    });
    let targets = status.deliveries.targets();
    let targets = targets.iter().map(|(name, target)| target_json(name, target));
    json!({
        "schema": "vipwatch.receiver/1", "node": &*context.node, "since": millis(status.since),
        "routers": routers.collect::<Value>(), "targets": targets.collect::<Value>(),
        "accepted": view.accepted, "coalesced": view.coalesced, "rejected": view.rejected,
        "unavailable": view.unavailable, "pending": view.pending, "connections": view.connections,
        "problems": view.problems.iter().map(problem).collect::<Value>(),
    })
}

fn problem((name, text): (&&str, &String)) -> Value {
    json!({ "name": name, "text": text })
}

fn target_json(name: &str, target: &ReportTargetView) -> Value {
    let failing = target.failing.iter().take(MAX_LISTED);
    let failing = failing.map(|(id, why)| json!({ "id": id.as_str(), "error": why }));
    json!({
        "target": name, "pending": target.pending.len(), "delivered": target.delivered,
        "failures": target.failures, "superseded": target.superseded, "failing": failing.collect::<Value>(),
    })
}

/// Problems of the receiver, reports about unknown instances, and failed deliveries.
pub(super) fn findings(context: &ApiContext, view: &PublishedState) -> Vec<Value> {
    let Some(status) = context.receiver_handle.status() else { return Vec::new() };
    let mut findings = Vec::new();
    let problems = status.view.lock().map(|view| view.problems.clone()).unwrap_or_default();
    for (name, text) in problems {
        let hint = match name {
            "socket" => "stop the other process, or remove [receiver]; then restart this one",
            _ => {
                "check that the disk is writable and has free space; the receiver retries by itself"
            }
        };
        findings.push(json!({
            "id": null, "name": format!("receiver-{name}"), "severity": "wrong",
            "text": text, "hint": hint, "since": null, "age_seconds": null,
        }));
    }
    let unknown_ids: Vec<String> = match status.view.lock() {
        Ok(reports) => {
            let ids = reports.instances.keys().filter(|id| !view.entries.contains_key(*id));
            ids.map(ToString::to_string).collect()
        }
        Err(_) => Vec::new(),
    };
    for id in unknown_ids.iter().take(MAX_LISTED) {
        findings.push(json!({
            "id": id, "name": "report-for-unknown-instance", "severity": "odd",
            "text": "a monitor has reported a state, and this node has no such instance",
            "hint": "the router was deleted but its monitor still runs, or its keepalived.conf is not found",
            "since": null, "age_seconds": null,
        }));
    }
    for (name, target) in status.deliveries.targets() {
        let Some((id, why)) = target.failing.iter().next() else { continue };
        let others = match target.failing.len() {
            1 => String::new(),
            count => format!(" (and {} more)", count - 1),
        };
        findings.push(json!({
            "id": id.as_str(), "name": "delivery-failed", "severity": "wrong",
            "text": format!("{name}: {why}{others}"),
            "hint": "the log has all attempts; `vipwatch receiver status` has the pending deliveries",
            "since": null, "age_seconds": null,
        }));
    }
    findings
}
