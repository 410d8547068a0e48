//! The answer to each kind of question. docs/reference/cli.md describes their JSON.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, SystemTime};

use crate::discovery::ConfigProblem;
use serde_json::{Value, json};
use vipwatch_api::AnswerSource;
use vipwatch_core::role::AddressState;
use vipwatch_core::{InstanceId, NeutronState, Role};
use vipwatch_history::{HistoryEntry as Recorded, HistoryError, Query, Reader, RecorderRun};
use vipwatch_linux::netns_query::NetnsQuery;
use vipwatch_linux::process::release_spare_heap;

use super::{RefusalReason, refusal, reports, write_line};
use crate::audit::DatedFinding;
use crate::selection::Selection;
use crate::state::{HealthProblem, HealthTopic, InstanceEntry, PublishedState};
use crate::transition::{latencies_json, millis, time_text};
use crate::view::ApiContext;

/// With more instances than this, an answer is large, and spare heap is released after it.
const LARGE_ANSWER_INSTANCES: usize = 500;

/// Interval of the pulse lines of `watch`, by which the server notices that the client has gone.
const PULSE_INTERVAL: Duration = Duration::from_secs(5);

/// Maximum number of transitions in the timeline of `show`.
const MAX_TIMELINE_ENTRIES: u64 = 20;

/// Maximum number of transitions in one answer to `history`.
const MAX_HISTORY_ENTRIES: u64 = 100_000;

/// An instance is flapping if it has at least [`MIN_FLAPS`] transitions within this time.
const FLAP_SPAN: Duration = Duration::from_mins(10);
/// The number of transitions within [`FLAP_SPAN`] from which on an instance is flapping.
const MIN_FLAPS: i64 = 6;

/// Writes the answer to `question`.
pub(super) fn answer(
    question: &Value,
    context: &ApiContext,
    stream: &UnixStream,
) -> io::Result<()> {
    if question["ask"] == "watch" {
        return watch(context, &wanted_ids(question), stream);
    }
    let written = write_line(stream, &answer_once(question, context));
    if context.store.view().entries.len() > LARGE_ANSWER_INSTANCES {
        release_spare_heap();
    }
    written
}

/// Answers a question that has an answer of one line.
pub fn answer_once(question: &Value, context: &ApiContext) -> Value {
    match question["ask"].as_str().unwrap_or_default() {
        "ids" => ids(context),
        "status" => status(context, &wanted_ids(question)),
        "show" => show(context, question["id"].as_str().unwrap_or_default()),
        "doctor" => doctor(context),
        "history" => history(context, question),
        "receiver" => reports::answer(context),
        other => refusal(RefusalReason::Failed, &format!("unknown question {other:?}")),
    }
}

/// The ids in the question, or beginnings of ids; empty for all instances.
fn wanted_ids(question: &Value) -> Vec<String> {
    let ids = question["ids"].as_array().into_iter().flatten();
    ids.filter_map(|id| id.as_str().map(str::to_owned)).collect()
}

fn selection(view: &PublishedState, wanted: &[String]) -> Selection {
    Selection::new(wanted, view.entries.keys().map(InstanceId::as_str))
}

fn selected<'v>(
    view: &'v PublishedState,
    selection: &'v Selection,
) -> impl Iterator<Item = &'v Arc<InstanceEntry>> {
    let each = view.entries.iter();
    each.filter(|(id, _)| selection.covers(id.as_str())).map(|(_, entry)| entry)
}

fn ids(context: &ApiContext) -> Value {
    let view = context.store.view();
    let ids: Vec<&str> = view.entries.keys().map(InstanceId::as_str).collect();
    json!({ "schema": "vipwatch.ids/1", "ids": ids })
}

fn status(context: &ApiContext, wanted: &[String]) -> Value {
    let view = context.store.view();
    let selection = selection(&view, wanted);
    if let Some(missing) = selection.missing(&view.entries.keys().map(InstanceId::as_str)) {
        let text = format!("there is no instance {missing:?} on this node");
        return refusal(RefusalReason::Missing, &text);
    }
    let instances: Value =
        selected(&view, &selection).map(|entry| instance_json(context, entry)).collect();
    let metrics = context.store.counters.metrics();
    let metrics: serde_json::Map<String, Value> =
        metrics.iter().map(|(name, value)| ((*name).to_owned(), Value::from(*value))).collect();
    json!({
        "schema": "vipwatch.status/1", "node": &*context.node,
        "source": match context.source { AnswerSource::Node => "node", AnswerSource::Kernel => "kernel" },
        "instances": instances, "problems": problems_json(&view.problems), "metrics": metrics,
    })
}

fn instance_json(context: &ApiContext, entry: &InstanceEntry) -> Value {
    let InstanceEntry {
        instance: config,
        role,
        addresses: known,
        since,
        seq,
        cause,
        latencies,
        failures,
        agent,
        stages,
        must_notify: _,
        audit: _,
    } = entry;
    let held = |at: usize| match role {
        Role::Primary => Some(true),
        Role::Backup | Role::Fault(_) => Some(false),
        Role::Partial { .. } => known.get(at).map(|state| *state == AddressState::Held),
        Role::Unknown(_) => None,
    };
    let watched = config.watched();
    let addresses = watched.iter().enumerate().map(|(at, (link, cidr))| {
        json!({ "cidr": cidr.to_string(), "link": link.to_string(), "held": held(at) })
    });
    let addresses: Value = addresses.collect();
    let since = Some(millis(*since)).filter(|since| *since > 0);
    let reason = role.reason();
    let failures: Value = failures
        .iter()
        .map(|((stage, target), why)| json!({ "stage": stage.word(), "target": target, "error": why }))
        .collect();
    let stages: Vec<&str> = stages.iter().map(|stage| stage.word()).collect();
    let agent = agent.as_ref().map(|agent| {
        let known = agent.acknowledged.map(NeutronState::as_str);
        json!({ "acknowledged": known, "failing": agent.failing })
    });
    json!({
        "id": config.id.as_str(), "role": role.as_str(),
        "reason": (!reason.is_empty()).then_some(reason),
        "since": since, "since_time": since.map(time_text), "seq": seq, "cause": cause.as_str(),
        "origin": config.origin.word(), "netns": config.netns.as_ref().map(ToString::to_string),
        "name": config.vrrp.name, "interface": config.vrrp.interface.to_string(),
        "vrid": config.vrrp.vrid, "priority": config.vrrp.priority,
        "file": config.file.display().to_string(), "line": config.vrrp.position.line,
        "addresses": addresses, "stages": stages, "latencies": latencies_json(latencies),
        "failures": failures, "agent": agent, "report": reports::of(context, &config.id),
    })
}

/// Problems with keepalived's configuration files as JSON.
pub fn problems_json(problems: &[ConfigProblem]) -> Value {
    let each = problems.iter().map(|problem| {
        json!({
            "file": problem.file.display().to_string(), "line": problem.line, "text": problem.text,
        })
    });
    each.collect()
}

/// One instance with its findings and its last transitions. Without a node, it is audited now.
fn show(context: &ApiContext, prefix: &str) -> Value {
    let view = context.store.view();
    let selection = selection(&view, &[prefix.to_owned()]);
    let matches: Vec<&Arc<InstanceEntry>> = selected(&view, &selection).collect();
    let entry = match matches.as_slice() {
        [entry] => entry,
        [] => {
            return refusal(
                RefusalReason::Missing,
                &format!("there is no instance {prefix:?} on this node"),
            );
        }
        several => {
            let ids: Vec<&str> =
                several.iter().take(5).map(|one| one.instance.id.as_str()).collect();
            let text = format!("{prefix:?} matches {} instances", several.len());
            return refusal(RefusalReason::Missing, &format!("{text}: {} …", ids.join(", ")));
        }
    };
    let id = entry.instance.id.clone();
    drop(view);
    if context.source == AnswerSource::Kernel {
        context.audit.run([id.clone()], &mut NetnsQuery::open().ok(), || {});
    }
    let Some(entry) = context.store.entry(&id) else {
        return refusal(
            RefusalReason::Missing,
            &format!("instance {prefix:?} was removed during the query"),
        );
    };
    let mut shown = instance_json(context, &entry);
    shown["addresses"] = addresses(&entry);
    let id = entry.instance.id.to_string();
    let query = Query {
        instance: Some(id.clone()),
        exact: true,
        limit: Some(MAX_TIMELINE_ENTRIES),
        ..Query::default()
    };
    let (timeline, error) = match read_history(context, |reader| reader.transitions(&query)) {
        Ok(changes) => (changes.iter().map(transition_json).collect(), None),
        Err(error) => (json!([]), Some(error.to_string())),
    };
    let audit = entry.current_audit();
    let findings = audit.map(|audit| &*audit.findings).unwrap_or_default();
    let findings: Value = findings.iter().map(|aged| finding(Some(&id), aged)).collect();
    json!({
        "schema": "vipwatch.show/1", "node": &*context.node, "instance": shown,
        "findings": findings, "audited": audit.map(|audit| millis(audit.at)),
        "timeline": timeline, "history_error": error,
    })
}

/// All addresses of an instance with their state: that of the addresses that decide the role from the instance
/// table, that of the others from the last audit; null if it is not known. The table reads the watched links
/// only, so the audit knows better whether an absent address is on another link.
fn addresses(entry: &InstanceEntry) -> Value {
    let audited = entry.current_audit().map(|audit| &*audit.addresses).unwrap_or_default();
    let mut watched = entry.addresses.iter();
    let mut audited = audited.iter();
    let each = entry.instance.vrrp.addresses.iter().map(|address| {
        let audited = audited.next();
        let state = match entry.instance.watches(address).then(|| watched.next()) {
            None => audited,
            Some(Some(AddressState::Absent)) => audited
                .filter(|state| matches!(state, AddressState::OtherLink(_)))
                .or(Some(&AddressState::Absent)),
            Some(state) => state,
        };
        json!({
            "cidr": address.cidr.to_string(), "link": address.link.to_string(),
            "held": state.map(|state| *state == AddressState::Held),
            "state": state.map(ToString::to_string), "excluded": address.is_excluded,
        })
    });
    each.collect()
}

fn finding(id: Option<&str>, aged: &DatedFinding) -> Value {
    let DatedFinding { finding, since } = aged;
    let age = SystemTime::now().duration_since(*since).unwrap_or_default();
    json!({
        "id": id, "name": finding.name, "severity": finding.severity.as_str(),
        "text": finding.text, "hint": finding.hint,
        "since": millis(*since), "age_seconds": age.as_secs(),
    })
}

/// Everything that is wrong on this node. All instances are audited now.
fn doctor(context: &ApiContext) -> Value {
    let view = context.store.view();
    let mut findings = Vec::new();
    if context.source == AnswerSource::Kernel {
        findings.push(json!({
            "id": null, "name": "node-not-running", "severity": "odd",
            "text": "no vipwatch node runs here", "since": null, "age_seconds": null,
            "hint": "no transition is recorded or delivered: systemctl start vipwatch-node",
        }));
    }
    for HealthProblem { topic, since, text } in context.store.health_problems() {
        let age = SystemTime::now().duration_since(since).unwrap_or_default();
        let hint = match topic {
            HealthTopic::Configuration => {
                "correct the file and reload; `vipwatch config check` lists its errors"
            }
            HealthTopic::Receiver => {
                "correct the cause and reload: monitors cannot report until then"
            }
            HealthTopic::Socket => "stop the other process and restart the node",
            HealthTopic::History => {
                "check that the disk is writable and has free space; the node retries by itself, \
                 and counts the transitions that are not recorded"
            }
            HealthTopic::OneSocket => {
                "the node works, with more sockets; as root on Linux 4.20 or later it needs one"
            }
        };
        findings.push(json!({
            "id": null, "name": format!("node-{}", topic.word()), "severity": "wrong", "text": text,
            "hint": hint, "since": millis(since), "age_seconds": age.as_secs(),
        }));
    }
    for problem in view.problems.iter() {
        let line = problem.line.map(|line| format!(":{line}")).unwrap_or_default();
        findings.push(json!({
            "id": null, "name": "configuration-problem", "severity": "wrong",
            "text": format!("{}{line}: {}", problem.file.display(), problem.text),
            "hint": "the last valid version of the file is used until it is corrected",
            "since": null, "age_seconds": null,
        }));
    }
    findings.extend(reports::findings(context, &view));
    findings.extend(clashes(&view));
    findings.extend(flapping(context));
    let mut young = 0;
    drop(view);
    // The one query that reads the kernel: all instances are audited now.
    let ids: Vec<InstanceId> = context.store.view().entries.keys().cloned().collect();
    context.audit.run(ids, &mut NetnsQuery::open().ok(), || {});
    let view = context.store.view();
    for (id, entry) in &view.entries {
        let audit = entry.current_audit();
        for aged in audit.map(|audit| &*audit.findings).unwrap_or_default() {
            // During a failover, kernel, agent and monitor change at different moments, so a new finding is no problem.
            if aged.is_young(entry) {
                young += 1;
            } else {
                findings.push(finding(Some(id.as_str()), aged));
            }
        }
        for ((stage, target), why) in &entry.failures {
            findings.push(json!({
                "id": entry.instance.id.as_str(), "name": format!("{}-failed", stage.word()),
                "severity": "wrong", "text": format!("{target}: {why}"), "since": millis(entry.since), "age_seconds": null,
                "hint": "the log has all attempts",
            }));
        }
    }
    json!({
        "schema": "vipwatch.doctor/1", "node": &*context.node, "instances": view.entries.len(),
        "findings": findings, "too_young": young,
    })
}

/// Instances with the same VRID on the same link, and addresses that two instances configure.
fn clashes(view: &PublishedState) -> Vec<Value> {
    use std::collections::BTreeMap;
    let mut vrids: BTreeMap<_, &str> = BTreeMap::new();
    let mut addresses: BTreeMap<_, &str> = BTreeMap::new();
    let mut findings = Vec::new();
    let mut add = |id: &str, name: &str, text: String, hint: &str| {
        findings.push(json!({
            "id": id, "name": name, "severity": "broken", "text": text, "hint": hint,
            "since": null, "age_seconds": null,
        }));
    };
    for entry in view.entries.values() {
        let config = &entry.instance;
        let (id, netns) = (config.id.as_str(), config.netns.clone());
        if let Some(vrid) = config.vrrp.vrid {
            // IPv4 and IPv6 have separate VRIDs.
            let is_ipv4 = config.vrrp.addresses.first().map(|first| first.cidr.addr().is_ipv4());
            let key = (netns.clone(), config.vrrp.interface.to_string(), is_ipv4, vrid);
            if let Some(other) = vrids.insert(key, id) {
                let text = format!(
                    "virtual_router_id {vrid} on {} is also used by {other}",
                    config.vrrp.interface
                );
                add(id, "vrid-clash", text, "give one of them another virtual_router_id");
            }
        }
        for (_, cidr) in config.watched() {
            if let Some(other) = addresses.insert((netns.clone(), cidr.addr()), id) {
                let text = format!("{} is also configured for {other}", cidr.addr());
                add(
                    id,
                    "address-configured-twice",
                    text,
                    "remove the address from one of the two instances",
                );
            }
        }
    }
    findings
}

fn flapping(context: &ApiContext) -> Vec<Value> {
    let since = SystemTime::now().checked_sub(FLAP_SPAN).unwrap_or(SystemTime::UNIX_EPOCH);
    let flaps = read_history(context, |reader| reader.flaps(millis(since)));
    let often =
        flaps.unwrap_or_default().into_iter().filter(|flaps| flaps.transitions >= MIN_FLAPS);
    let each = often.map(|flaps| {
        let minutes = FLAP_SPAN.as_secs() / 60;
        json!({
            "id": flaps.instance, "name": "flapping", "severity": "broken",
            "text": format!("{} transitions within {minutes} minutes", flaps.transitions),
            "hint": "check for lost advertisements, two equal priorities, or an overloaded node",
            "since": flaps.first, "age_seconds": null,
        })
    });
    each.collect()
}

/// Reads the history. A damaged file is reported to the node, which renames it and begins a new one.
fn read_history<T>(
    context: &ApiContext,
    read: impl FnOnce(&Reader) -> Result<T, HistoryError>,
) -> Result<T, HistoryError> {
    let read = Reader::open(&context.state_dir).and_then(|reader| read(&reader));
    if read.as_ref().is_err_and(HistoryError::is_damage) {
        context.store.report_history_damage();
    }
    read
}

fn history(context: &ApiContext, question: &Value) -> Value {
    let read = |reader: &Reader| {
        let instance = question["id"].as_str().map(str::to_owned);
        let query = Query {
            since: question["since"].as_i64(),
            exact: instance.as_deref().is_some_and(|id| is_known(context, reader, id)),
            instance,
            // LIMIT: a client that needs more transitions reads the database file.
            limit: Some(
                question["limit"].as_u64().unwrap_or(MAX_HISTORY_ENTRIES).min(MAX_HISTORY_ENTRIES),
            ),
            ..Query::default()
        };
        history_json(reader, &query, &context.node)
    };
    match read_history(context, read) {
        Ok(answer) => answer,
        Err(error) => {
            refusal(RefusalReason::Missing, &vipwatch_core::ErrorChain(&error).to_string())
        }
    }
}

/// Whether an instance has exactly this id, now or in the history.
fn is_known(context: &ApiContext, reader: &Reader, id: &str) -> bool {
    let is_followed =
        id.parse().is_ok_and(|id: InstanceId| context.store.view().entries.contains_key(&id));
    is_followed || reader.has_instance(id).unwrap_or(false)
}

/// Transitions, flapping instances and recorder runs as JSON.
fn history_json(
    reader: &Reader,
    query: &Query,
    node: &str,
) -> Result<Value, vipwatch_history::HistoryError> {
    let changes: Value = reader.transitions(query)?.iter().map(transition_json).collect();
    let since = query.since.unwrap_or(i64::MIN);
    // The run before the first one in the range is included, because it shows the gap between the two.
    let runs = reader.runs()?;
    let from = runs.iter().position(|run| run.seen >= since).unwrap_or(runs.len());
    let runs = &runs[from.saturating_sub(1)..];
    let wanted = |instance: &str| {
        query.instance.as_ref().is_none_or(|wanted| {
            if query.exact { instance == wanted } else { instance.starts_with(wanted.as_str()) }
        })
    };
    let flaps = reader.flaps(since)?;
    let flaps = flaps.iter().filter(|flaps| wanted(&flaps.instance)).map(|flaps| {
        json!({
            "id": flaps.instance, "transitions": flaps.transitions, "primary": flaps.primary,
            "first": flaps.first, "last": flaps.last,
        })
    });
    let flaps: Value = flaps.collect();
    let run_json = |run: &RecorderRun| json!({ "began": run.began, "seen": run.seen, "ended": run.ended, "dropped": run.dropped });
    Ok(json!({
        "schema": "vipwatch.history/1", "node": node, "transitions": changes, "flaps": flaps,
        "runs": runs.iter().map(run_json).collect::<Value>(),
    }))
}

fn transition_json(entry: &Recorded) -> Value {
    let Recorded { record, latencies } = entry;
    json!({
        "seq": record.seq, "at": record.at, "time": time_text(record.at),
        "id": record.instance, "netns": record.netns, "from": record.from, "to": record.to,
        "cause": record.cause, "reason": record.reason, "latencies": latencies_json(latencies),
    })
}

/// Writes all selected instances, and then each event, until the client closes the connection.
fn watch(context: &ApiContext, wanted: &[String], mut stream: &UnixStream) -> io::Result<()> {
    let (view, subscription) = context.store.subscribe();
    let mut selection = selection(&view, wanted);
    let mut text = String::new();
    for entry in selected(&view, &selection) {
        let mut line = instance_json(context, entry);
        line["schema"] = json!("vipwatch.instance/1");
        line["node"] = json!(&*context.node);
        let _ = writeln!(text, "{line}");
        if text.len() > 32 << 10 {
            stream.write_all(text.as_bytes())?;
            text.clear();
        }
    }
    let all = view.entries.values().map(|entry| entry.seq).max().unwrap_or(0);
    let _ = writeln!(text, "{}", json!({ "schema": "vipwatch.live/1", "seq": all }));
    drop(view);
    stream.write_all(text.as_bytes())?;
    drop(text);
    loop {
        let line = match subscription.lines.recv_timeout(PULSE_INTERVAL) {
            Ok(line) => line,
            // Only a failed write shows that the client has closed the connection.
            Err(RecvTimeoutError::Timeout) => {
                json!({ "schema": "vipwatch.pulse/1" }).to_string().into()
            }
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        };
        if is_wanted(&line, &mut selection, all) {
            stream.write_all(format!("{line}\n").as_bytes())?;
        }
    }
}

/// Whether a line is about a selected instance, and newer than transition `seen`.
fn is_wanted(line: &str, selection: &mut Selection, seen: i64) -> bool {
    let Ok(line) = serde_json::from_str::<Value>(line) else { return false };
    // The instances that were written first include this transition.
    if line["schema"] == "vipwatch.transition/1"
        && line["seq"].as_i64().is_some_and(|seq| seq <= seen)
    {
        return false;
    }
    line["id"].as_str().is_none_or(|id| {
        selection.notice(id);
        selection.covers(id)
    })
}
