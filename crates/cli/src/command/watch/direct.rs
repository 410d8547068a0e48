// SPDX-License-Identifier: Apache-2.0
//! Follows the instances without a node: reads the events of the kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use vipwatch_api::{
    AddressItem, CauseItem, ErrorCode, LatencyMap, NodeEvent, ProblemDocument, RemovedEvent,
    RoleKind, Schema, Timestamp, TransitionEvent,
};
use vipwatch_core::role::{AddressState, Role};
use vipwatch_node::config::Listen;
use vipwatch_node::discovery::InstanceConfig;
use vipwatch_node::discovery::read_processes;
use vipwatch_node::selection::Selection;
use vipwatch_node::view::config_problems;
use vipwatch_node::watch::follower::Follower;
use vipwatch_node::watch::instance_table::RoleChange;

use super::super::node_name;
use super::super::status::problem_text;
use super::printer::{Flow, Printer};
use super::selection::EventSelection;
use crate::args::WatchArgs;
use crate::failure::{CommandError, ExitStatus, note};

/// The epoch of events that no history has.
const EPOCH: &str = "0";

/// Prints the current roles as transitions, and then each transition.
pub(super) fn follow(options: &WatchArgs, mut printer: Printer) -> Result<(), CommandError> {
    let config = options.query.settings()?;
    let processes = read_processes(&config.locations);
    let opened = Follower::open(config.locations, config.instances, Listen::Auto);
    let mut follower = opened.map_err(|error| {
        let message = format!("cannot listen to all namespaces: {error}");
        CommandError::new(ExitStatus::NotPermitted, message).hint("run it as root")
    })?;
    follower.set_sources(processes.map(|table| table.sources()).unwrap_or_default());
    let mut update = follower.rediscover();
    let mut selection = selection(options, &follower)?;
    let mut event_selection = EventSelection::new(options);
    let mut seq = 0;
    let mut roles = Followed::default();
    loop {
        for problem in update.problems.iter().flat_map(|problems| config_problems(problems)) {
            note(options.query.output(), &problem_text(&problem));
        }
        let mut events = Vec::new();
        for change in update.changes_before_scan {
            roles.add_change(&change, &mut events);
        }
        if let Some(instances) = &update.instances {
            roles.remove_others(instances, &mut events);
        }
        for change in update.changes {
            roles.add_change(&change, &mut events);
        }
        for mut event in events {
            let Some(id) = event.instance().map(str::to_owned) else { continue };
            selection.notice(&id);
            if !(selection.covers(&id) && event_selection.covers(&event)) {
                continue;
            }
            // The role at the start is not a transition.
            let is_initial = matches!(&event, NodeEvent::Transition(event) if event.from.is_none());
            seq += i64::from(!is_initial);
            set_seq(&mut event, seq);
            let flow = if is_initial { printer.initial(&event) } else { printer.take(&event) };
            if flow == Flow::Stop {
                return Ok(());
            }
        }
        update = follower.wait().map_err(|error| {
            CommandError::new(ExitStatus::No, format!("cannot wait for events: {error}"))
        })?;
    }
}

/// The role and the namespace of each instance that is followed, by id.
#[derive(Debug, Default)]
struct Followed(BTreeMap<String, FollowedInstance>);

#[derive(Debug)]
struct FollowedInstance {
    role: RoleKind,
    netns: Option<String>,
}

impl Followed {
    /// Adds the event of a change of role.
    fn add_change(&mut self, change: &RoleChange, events: &mut Vec<NodeEvent>) {
        let netns = change.instance.netns.as_ref().map(ToString::to_string);
        let role = change.to.kind();
        self.0.insert(change.instance.id.to_string(), FollowedInstance { role, netns });
        events.push(NodeEvent::Transition(Box::new(transition(change))));
    }

    /// Adds the events of instances that are no longer configured.
    fn remove_others(&mut self, instances: &[Arc<InstanceConfig>], events: &mut Vec<NodeEvent>) {
        let configured: BTreeSet<&str> =
            instances.iter().map(|instance| instance.id.as_str()).collect();
        self.0.retain(|id, instance| {
            let is_configured = configured.contains(id.as_str());
            if !is_configured {
                events.push(NodeEvent::Removed(removal(id, instance)));
            }
            is_configured
        });
    }
}

fn set_seq(event: &mut NodeEvent, number: i64) {
    match event {
        NodeEvent::Transition(event) => event.seq = number,
        NodeEvent::Removed(event) => event.seq = number,
        NodeEvent::Cause(_)
        | NodeEvent::Delivery(_)
        | NodeEvent::Finding(_)
        | NodeEvent::Dropped(_)
        | NodeEvent::Reset(_) => {}
    }
}

fn removal(id: &str, instance: &FollowedInstance) -> RemovedEvent {
    RemovedEvent {
        schema: Schema::Removed,
        node: node_name(),
        epoch: EPOCH.to_owned(),
        source: "kernel".to_owned(),
        seq: 0,
        at: Timestamp::now(),
        id: id.to_owned(),
        netns: instance.netns.clone(),
        from: Some(instance.role),
    }
}

/// The selected instances. An address stands for the instances that have it now.
fn selection(options: &WatchArgs, follower: &Follower) -> Result<Selection, CommandError> {
    let mut texts = Vec::new();
    for text in &options.ids {
        let address: Option<IpAddr> = text.parse().ok();
        let Some(address) = address else {
            texts.push(text.clone());
            continue;
        };
        let count = texts.len();
        let instances = follower.instances().iter();
        let holders = instances.filter(|instance| {
            instance.vrrp.addresses.iter().any(|known| known.cidr.addr() == address)
        });
        texts.extend(holders.map(|instance| instance.id.to_string()));
        if texts.len() == count {
            let detail = format!("no instance has the address {address}");
            return Err(CommandError::from(&ProblemDocument::new(
                ErrorCode::UnknownInstance,
                detail,
            )));
        }
    }
    let ids = follower.instances().iter().map(|instance| instance.id.as_str());
    Ok(Selection::new(&texts, ids))
}

fn transition(change: &RoleChange) -> TransitionEvent {
    let instance = &change.instance;
    let reason = change.to.reason();
    let addresses = instance.watched().into_iter().enumerate();
    let addresses = addresses.map(|(at, (link, cidr))| AddressItem {
        cidr: cidr.to_string(),
        link: link.to_string(),
        held: change.addresses.get(at).map(|state| *state == AddressState::Held),
        state: None,
        floating: false,
    });
    TransitionEvent {
        schema: Schema::Transition,
        node: node_name(),
        epoch: EPOCH.to_owned(),
        source: "kernel".to_owned(),
        seq: 0,
        at: Timestamp::now(),
        id: instance.id.to_string(),
        netns: instance.netns.as_ref().map(ToString::to_string),
        origin: instance.origin.word().to_owned(),
        from: change.from.as_ref().map(Role::kind),
        to: change.to.kind(),
        trigger: change.trigger.as_str().to_owned(),
        cause: CauseItem::default(),
        reason: (!reason.is_empty()).then_some(reason),
        addresses: addresses.collect(),
        latencies: LatencyMap::new(),
        stages: Vec::new(),
    }
}
