//! Findings: of the audit, of the node itself, of configurations, of the receiver and of deliveries.

use std::collections::BTreeMap;
use std::time::SystemTime;

use vipwatch_api::{
    AnswerSource, FailingDelivery, FindingItem, FindingList, FindingSeverity, Schema,
    SeveritySummary, timestamp_from_millis,
};
use vipwatch_core::InstanceId;
use vipwatch_core::flapping::{FLAP_SPAN, MIN_TRANSITIONS};
use vipwatch_linux::netns_query::NetnsQuery;

use super::{ApiContext, known_timestamp, read_history, silenced_until, targets};
use crate::audit::DatedFinding;
use crate::event::{audit_finding, health_finding};
use crate::state::{InstanceEntry, PublishedState};
use crate::transition::millis;

/// Maximum number of unknown instances that are listed.
const MAX_UNKNOWN: usize = 20;

/// Audits all instances on this thread, and returns everything that is wrong. For commands without a node.
pub fn audit_now(context: &ApiContext) -> FindingList {
    let ids: Vec<InstanceId> = context.store.view().entries.keys().cloned().collect();
    context.audit.run(ids, &mut NetnsQuery::open().ok(), || {});
    findings(context)
}

/// Everything that is known to be wrong, the most serious first. Reads the history.
pub fn findings(context: &ApiContext) -> FindingList {
    let view = context.store.view();
    let mut items = Vec::new();
    if context.source == AnswerSource::Kernel {
        items.push(new(
            None,
            "node-not-running",
            FindingSeverity::Odd,
            "no vipwatch node runs here".to_owned(),
            "no transition is recorded or delivered: systemctl start vipwatch-node",
        ));
    }
    items.extend(health(context));
    items.extend(configuration_problems(&view));
    items.extend(receiver_findings(context, &view));
    items.extend(clashes(&view));
    items.extend(flapping(context));
    let mut too_young = 0;
    for (id, entry) in &view.entries {
        let audit = entry.current_audit();
        for dated in audit.map(|audit| &*audit.findings).unwrap_or_default() {
            if dated.is_young(entry) {
                too_young += 1;
            } else {
                items.push(item(context, id, dated));
            }
        }
        items.extend(failed_deliveries(entry));
    }
    for item in &mut items {
        item.silenced_until = silenced_until(context, item.id.as_deref());
    }
    items.sort_by_key(|item| item.severity);
    FindingList {
        schema: Schema::Findings,
        node: context.node.to_string(),
        source: context.source,
        instances: view.entries.len() as u64,
        items,
        too_young,
    }
}

/// One finding of the audit.
pub(super) fn item(context: &ApiContext, id: &InstanceId, dated: &DatedFinding) -> FindingItem {
    let silenced_until = silenced_until(context, Some(id.as_str()));
    FindingItem { silenced_until, ..audit_finding(id.as_str(), dated) }
}

/// Adds one finding to a summary.
pub(super) fn count(summary: &mut SeveritySummary, severity: FindingSeverity) {
    *match severity {
        FindingSeverity::Broken => &mut summary.broken,
        FindingSeverity::Wrong => &mut summary.wrong,
        FindingSeverity::Odd => &mut summary.odd,
    } += 1;
}

/// A finding of unknown age.
fn new(
    id: Option<&str>,
    name: &str,
    severity: FindingSeverity,
    text: String,
    hint: &str,
) -> FindingItem {
    FindingItem {
        id: id.map(str::to_owned),
        name: name.to_owned(),
        severity,
        text,
        hint: hint.to_owned(),
        since: None,
        silenced_until: None,
    }
}

/// What is wrong with the node itself.
pub(super) fn health(context: &ApiContext) -> Vec<FindingItem> {
    let silenced_until = silenced_until(context, None);
    let problems = context.store.health_problems();
    let item = |problem| FindingItem { silenced_until, ..health_finding(&problem) };
    problems.into_iter().map(item).collect()
}

fn configuration_problems(view: &PublishedState) -> Vec<FindingItem> {
    let hint = "the last valid version of the file is used until it is corrected";
    let each = view.problems.iter().map(|problem| {
        let line = problem.line.map(|line| format!(":{line}")).unwrap_or_default();
        let text = format!("{}{line}: {}", problem.file.display(), problem.text);
        new(None, "configuration-problem", FindingSeverity::Wrong, text, hint)
    });
    each.collect()
}

fn failed_deliveries(entry: &InstanceEntry) -> impl Iterator<Item = FindingItem> {
    entry.failures.iter().map(|((stage, target), error)| {
        let name = format!("{}-failed", stage.word());
        let text = format!("{target}: {error}");
        let id = Some(entry.instance.id.as_str());
        FindingItem {
            since: known_timestamp(entry.since),
            ..new(id, &name, FindingSeverity::Wrong, text, "the log has all attempts")
        }
    })
}

/// Problems of the receiver, reports about unknown instances, and failed deliveries of reports.
fn receiver_findings(context: &ApiContext, view: &PublishedState) -> Vec<FindingItem> {
    let Some(status) = context.receiver_handle.status() else { return Vec::new() };
    let Ok(reports) = status.view.lock().map(|reports| reports.clone()) else { return Vec::new() };
    let mut items = Vec::new();
    for (name, text) in &reports.problems {
        let hint = match *name {
            "socket" => "stop the other process, or remove [receiver]; then restart this one",
            _ => {
                "check that the disk is writable and has free space; the receiver retries by itself"
            }
        };
        let name = format!("receiver-{name}");
        items.push(new(None, &name, FindingSeverity::Wrong, text.clone(), hint));
    }
    let unknown = reports.instances.keys().filter(|id| !view.entries.contains_key(*id));
    items.extend(unknown.take(MAX_UNKNOWN).map(|id| {
        new(
            Some(id.as_str()),
            "report-for-unknown-instance",
            FindingSeverity::Odd,
            "a monitor has reported a state, and this node has no such instance".to_owned(),
            "the router was deleted but its monitor still runs, or its keepalived.conf is not found",
        )
    }));
    for target in targets::of_receiver(context) {
        let Some(FailingDelivery { id, error }) = target.failing.first() else { continue };
        let others = match target.failing.len() {
            1 => String::new(),
            count => format!(" (and {} more)", count - 1),
        };
        items.push(new(
            Some(id.as_str()),
            "delivery-failed",
            FindingSeverity::Wrong,
            format!("{} {}: {error}{others}", target.kind.word(), target.name),
            "the log has all attempts; `vipwatch receiver status` has the pending deliveries",
        ));
    }
    items
}

/// Instances with the same VRID on the same link, and addresses that two instances configure.
fn clashes(view: &PublishedState) -> Vec<FindingItem> {
    let mut vrids: BTreeMap<_, &str> = BTreeMap::new();
    let mut addresses: BTreeMap<_, &str> = BTreeMap::new();
    let mut items = Vec::new();
    let mut add = |id: &str, name: &str, text: String, hint: &str| {
        items.push(new(Some(id), name, FindingSeverity::Broken, text, hint));
    };
    for entry in view.entries.values() {
        let config = &entry.instance;
        let (id, netns) = (config.id.as_str(), config.netns.clone());
        if let Some(vrid) = config.vrrp.vrid {
            // IPv4 and IPv6 have separate VRIDs.
            let is_ipv4 = config.vrrp.addresses.first().map(|first| first.cidr.addr().is_ipv4());
            let key = (netns.clone(), config.vrrp.interface.to_string(), is_ipv4, vrid);
            if let Some(other) = vrids.insert(key, id) {
                let link = config.vrrp.interface;
                let text = format!("virtual_router_id {vrid} on {link} is also used by {other}");
                add(id, "vrid-clash", text, "give one of them another virtual_router_id");
            }
        }
        for (_, cidr) in config.watched() {
            if let Some(other) = addresses.insert((netns.clone(), cidr.addr()), id) {
                let text = format!("{} is also configured for {other}", cidr.addr());
                let hint = "remove the address from one of the two instances";
                add(id, "address-configured-twice", text, hint);
            }
        }
    }
    items
}

fn flapping(context: &ApiContext) -> Vec<FindingItem> {
    let since = SystemTime::now().checked_sub(FLAP_SPAN).unwrap_or(SystemTime::UNIX_EPOCH);
    let flaps = read_history(context, |reader| reader.flaps(millis(since))).unwrap_or_default();
    let often = flaps.into_iter().filter(|flaps| {
        usize::try_from(flaps.transitions).is_ok_and(|count| count >= MIN_TRANSITIONS)
    });
    let hint = "check for lost advertisements, two equal priorities, or an overloaded node";
    let each = often.map(|flaps| {
        let minutes = FLAP_SPAN.as_secs() / 60;
        let text = format!("{} transitions within {minutes} minutes", flaps.transitions);
        FindingItem {
            since: Some(timestamp_from_millis(flaps.first)),
            ..new(Some(&flaps.instance), "flapping", FindingSeverity::Broken, text, hint)
        }
    });
    each.collect()
}
