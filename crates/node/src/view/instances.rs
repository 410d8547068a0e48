// SPDX-License-Identifier: Apache-2.0
//! Instances: which of them a client means, and their documents.

use std::net::IpAddr;
use std::sync::Arc;

use vipwatch_api::{
    AddressItem, AgentItem, AnswerSource, ConfigProblemItem, ErrorCode, FailureItem,
    InstanceDetail, InstanceFilter, InstanceItem, InstanceList, ProblemDocument, Schema,
};
use vipwatch_core::role::AddressState;
use vipwatch_core::{InstanceId, NeutronState, Role, first_of};
use vipwatch_history::Query;
use vipwatch_linux::netns_query::NetnsQuery;

use super::adverts::adverts;
use super::history::transition_item;
use super::{
    ApiContext, findings, known_timestamp, read_history, report_of, silenced_until, timestamp,
};
use crate::cause::cause_item;
use crate::cluster::hears_other;
use crate::discovery::{ConfigProblem, InstanceConfig};
use crate::event::latency_map;
use crate::selection::Selection;
use crate::state::{InstanceEntry, PublishedState};

/// Maximum number of transitions in the timeline of one instance.
const MAX_TIMELINE_ENTRIES: u64 = 20;

/// Maximum number of ids that an error names.
const MAX_NAMED_IDS: usize = 5;

/// The instances that a filter selects, in the order of their ids. It holds no [`PublishedState`], so the node can
/// change the state without a copy while a client reads.
#[derive(Debug)]
pub struct SelectedInstances {
    entries: std::vec::IntoIter<Arc<InstanceEntry>>,
    context: ApiContext,
}

impl Iterator for SelectedInstances {
    type Item = InstanceItem;

    fn next(&mut self) -> Option<InstanceItem> {
        self.entries.next().map(|entry| instance_item(&self.context, &entry))
    }
}

/// Selects instances. It is an error if an id or an address selects none.
pub fn select(
    context: &ApiContext,
    filter: &InstanceFilter,
) -> Result<SelectedInstances, ProblemDocument> {
    let view = context.store.view();
    let selection = Selection::of_instances(&filter.ids, &filter.addresses, &view);
    if let Some(missing) = selection.missing(&view.entries.keys().map(InstanceId::as_str)) {
        return Err(unknown_instance(missing));
    }
    let is_selected = |entry: &&Arc<InstanceEntry>| {
        let instance = &entry.instance;
        let netns = instance.netns.as_ref().map(ToString::to_string).unwrap_or_default();
        selection.covers(instance.id.as_str())
            && is_one_of(&filter.roles, &entry.role.kind())
            && is_one_of(&filter.netns, &netns)
            && is_one_of(&filter.origins, &instance.origin.word().to_owned())
    };
    let entries: Vec<_> = view.entries.values().filter(is_selected).cloned().collect();
    Ok(SelectedInstances { entries: entries.into_iter(), context: context.clone() })
}

/// The selected instances as one document.
pub fn instances(
    context: &ApiContext,
    filter: &InstanceFilter,
) -> Result<InstanceList, ProblemDocument> {
    Ok(InstanceList {
        schema: Schema::Instances,
        node: context.node.to_string(),
        source: context.source,
        items: select(context, filter)?.collect(),
    })
}

/// One instance with its findings and its last transitions; `text` is its id, the beginning of its id, or one of its
/// addresses. Reads the history. Without a node, the instance is audited now.
pub fn instance(context: &ApiContext, text: &str) -> Result<InstanceDetail, ProblemDocument> {
    let id = find(&context.store.view(), text)?;
    if context.source == AnswerSource::Kernel {
        context.audit.run([id.clone()], &mut NetnsQuery::open().ok(), || {});
    }
    let entry = context.store.entry(&id).ok_or_else(|| unknown_instance(text))?;
    let query = Query {
        instance: Some(id.to_string()),
        exact: true,
        limit: Some(MAX_TIMELINE_ENTRIES),
        ..Query::default()
    };
    let (timeline, history_error) = match read_history(context, |reader| reader.transitions(&query))
    {
        Ok(entries) => (entries.into_iter().map(transition_item).collect(), None),
        Err(error) => (Vec::new(), Some(error.to_string())),
    };
    let audit = entry.current_audit();
    let dated = audit.map(|audit| &*audit.findings).unwrap_or_default();
    Ok(InstanceDetail {
        schema: Schema::Instance,
        node: context.node.to_string(),
        source: context.source,
        instance: instance_item(context, &entry),
        keepalived: context.store.processes().and_then(|view| view.item(&entry.instance)),
        adverts: adverts(&context.store, &entry.instance),
        findings: dated.iter().map(|dated| findings::item(context, &id, dated)).collect(),
        audited_at: audit.map(|audit| timestamp(audit.at)),
        timeline,
        history_error,
    })
}

/// The one instance that a text means.
pub(super) fn find(view: &PublishedState, text: &str) -> Result<InstanceId, ProblemDocument> {
    let selection = Selection::of_instances(&[text.to_owned()], &[], view);
    let mut ids = view.entries.keys().filter(|id| selection.covers(id.as_str()));
    let first = ids.next().ok_or_else(|| unknown_instance(text))?;
    let others: Vec<&str> = ids.map(InstanceId::as_str).collect();
    if others.is_empty() {
        return Ok(first.clone());
    }
    let named = first_of([first.as_str()].into_iter().chain(others), MAX_NAMED_IDS, ", ");
    let detail = format!("{text:?} matches several instances: {named}");
    Err(ProblemDocument::new(ErrorCode::AmbiguousId, detail)
        .with_hint("use more characters of the id"))
}

pub(super) fn unknown_instance(text: &str) -> ProblemDocument {
    let detail = match text.parse::<IpAddr>() {
        Ok(_) => format!("no instance on this node has the address {text}"),
        Err(_) => format!("there is no instance {text:?} on this node"),
    };
    ProblemDocument::new(ErrorCode::UnknownInstance, detail)
        .with_hint("`vipwatch status` lists the instances of this node")
}

/// Whether the list is empty or contains the value.
fn is_one_of<T: PartialEq>(list: &[T], value: &T) -> bool {
    list.is_empty() || list.contains(value)
}

fn instance_item(context: &ApiContext, entry: &InstanceEntry) -> InstanceItem {
    let config = &entry.instance;
    let reason = entry.role.reason();
    let failures = entry.failures.iter().map(|((stage, target), failure)| FailureItem {
        stage: stage.word().to_owned(),
        target: target.clone(),
        error: failure.error.clone(),
    });
    InstanceItem {
        id: config.id.to_string(),
        name: config.vrrp.name.clone(),
        group: entry.group.to_string(),
        role: entry.role.kind(),
        reason: (!reason.is_empty()).then_some(reason),
        since: known_timestamp(entry.since),
        seq: entry.seq,
        trigger: entry.trigger.as_str().to_owned(),
        cause: cause_item(entry.cause.as_deref()),
        origin: config.origin.word().to_owned(),
        netns: config.netns.as_ref().map(ToString::to_string),
        interface: config.vrrp.interface_name(),
        vrid: config.vrrp.vrid,
        priority: config.vrrp.priority,
        file: config.file.display().to_string(),
        line: u64::from(config.vrrp.position.line),
        addresses: addresses(entry),
        stages: entry.stages.iter().map(|stage| stage.word().to_owned()).collect(),
        latencies: latency_map(&entry.latencies),
        failures: failures.collect(),
        findings: finding_names(entry),
        agent: entry.agent.as_ref().map(|agent| AgentItem {
            acknowledged: agent.acknowledged.map(|state| NeutronState::as_str(state).to_owned()),
            failing: agent.failing.clone(),
        }),
        report: report_of(context, &config.id),
        silenced_until: silenced_until(context, Some(config.id.as_str())),
        advert_ms: config.vrrp.advert_interval.and_then(|every| every.as_millis().try_into().ok()),
        hears_other: hears_other(&context.store, config),
    }
}

/// The names of the findings of the last audit that are old enough, each once.
fn finding_names(entry: &InstanceEntry) -> Vec<String> {
    let audited = entry.current_audit().map(|audit| &*audit.findings).unwrap_or_default();
    let settled = audited.iter().filter(|dated| !dated.is_young(entry));
    let mut names: Vec<String> =
        settled.map(|dated| dated.finding.kind.name().to_owned()).collect();
    names.dedup();
    names
}

/// All addresses of an instance with their state: that of the addresses that decide the role from the instance
/// table, that of the others from the last audit. The table reads the watched links only, so the audit knows better
/// whether an absent address is on another link.
fn addresses(entry: &InstanceEntry) -> Vec<AddressItem> {
    let audited = entry.current_audit().map(|audit| &*audit.addresses).unwrap_or_default();
    let mut audited = audited.iter();
    let mut watched = entry.addresses.iter();
    let config: &InstanceConfig = &entry.instance;
    let each = config.vrrp.addresses.iter().map(|address| {
        let audited = audited.next();
        let is_watched = config.watches(address);
        let state = match is_watched.then(|| watched.next()) {
            None => audited,
            Some(Some(AddressState::Absent)) => audited
                .filter(|state| matches!(state, AddressState::OtherLink(_)))
                .or(Some(&AddressState::Absent)),
            Some(state) => state,
        };
        let held = match &entry.role {
            Role::Primary if is_watched => Some(true),
            Role::Backup | Role::Fault(_) if is_watched => Some(false),
            Role::Unknown(_) if is_watched => None,
            _ => state.map(|state| *state == AddressState::Held),
        };
        AddressItem {
            cidr: address.cidr.to_string(),
            link: address.link.to_string(),
            held,
            state: state.map(ToString::to_string),
            floating: !is_watched,
        }
    });
    each.collect()
}

/// Problems with keepalived's configuration files.
pub fn config_problems(problems: &[ConfigProblem]) -> Vec<ConfigProblemItem> {
    let item = |problem: &ConfigProblem| ConfigProblemItem {
        file: problem.file.display().to_string(),
        line: problem.line.map(u64::from),
        text: problem.text.clone(),
    };
    problems.iter().map(item).collect()
}
