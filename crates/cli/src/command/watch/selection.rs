// SPDX-License-Identifier: Apache-2.0
//! Which events `--role`, `--netns` and `--origin` select. The node selects by id; this command does the rest.

use std::collections::BTreeMap;

use vipwatch_api::{InstanceFilter, InstanceItem, NodeEvent, RoleKind};

use crate::args::WatchArgs;

/// The filters of the command, and the namespace and origin of each instance.
#[derive(Debug, Default)]
pub(super) struct EventSelection {
    roles: Vec<RoleKind>,
    netns: Option<String>,
    origin: Option<String>,
    /// The place of each instance, by id: events about deliveries and findings do not have it.
    places: BTreeMap<String, InstancePlace>,
    /// The last selected transition of each instance, by id. Only for filters by role.
    selected: BTreeMap<String, i64>,
}

#[derive(Debug)]
struct InstancePlace {
    /// Empty for the node's own namespace.
    netns: String,
    origin: String,
}

impl EventSelection {
    pub(super) fn new(options: &WatchArgs) -> Self {
        Self {
            roles: options.role.clone(),
            netns: options.netns.clone(),
            origin: options.origin.clone(),
            ..Self::default()
        }
    }

    /// Whether events are selected by the place of their instance.
    pub(super) fn needs_places(&self) -> bool {
        self.netns.is_some() || self.origin.is_some()
    }

    fn is_empty(&self) -> bool {
        self.roles.is_empty() && !self.needs_places()
    }

    /// The filter for the current roles of these instances.
    pub(super) fn filter(&self, ids: Vec<String>) -> InstanceFilter {
        InstanceFilter {
            ids,
            roles: self.roles.clone(),
            netns: self.netns.iter().cloned().collect(),
            origins: self.origin.iter().cloned().collect(),
            ..InstanceFilter::default()
        }
    }

    /// Remembers the places of instances.
    pub(super) fn add_instances(&mut self, instances: &[InstanceItem]) {
        for instance in instances {
            let InstanceItem { id, netns, origin, .. } = instance;
            self.add(id, netns.as_deref(), origin);
        }
    }

    fn add(&mut self, id: &str, netns: Option<&str>, origin: &str) {
        if self.needs_places() {
            let netns = netns.unwrap_or_default().to_owned();
            let place = InstancePlace { netns, origin: origin.to_owned() };
            self.places.insert(id.to_owned(), place);
        }
    }

    /// Whether an event is printed. With a filter, events about the node itself are not.
    pub(super) fn covers(&mut self, event: &NodeEvent) -> bool {
        if let NodeEvent::Dropped(_) | NodeEvent::Reset(_) = event {
            return true;
        }
        if self.is_empty() {
            return true;
        }
        if let NodeEvent::Transition(transition) = event {
            self.add(&transition.id, transition.netns.as_deref(), &transition.origin);
        }
        let is_covered = event.instance().is_some_and(|id| self.covers_place(id));
        is_covered && (self.roles.is_empty() || self.covers_role(event))
    }

    fn covers_place(&self, id: &str) -> bool {
        let is_wanted = |place: &InstancePlace| {
            self.netns.as_ref().is_none_or(|netns| *netns == place.netns)
                && self.origin.as_ref().is_none_or(|origin| *origin == place.origin)
        };
        !self.needs_places() || self.places.get(id).is_some_and(is_wanted)
    }

    /// A transition to a selected role, its cause, or a delivery of it.
    fn covers_role(&mut self, event: &NodeEvent) -> bool {
        match event {
            NodeEvent::Transition(transition) => {
                let is_role = self.roles.contains(&transition.to);
                if is_role {
                    self.selected.insert(transition.id.clone(), transition.seq);
                }
                is_role
            }
            NodeEvent::Delivery(delivery) => {
                let selected = delivery.id.as_ref().and_then(|id| self.selected.get(id));
                delivery.source == "node" && selected == Some(&delivery.notification)
            }
            NodeEvent::Cause(cause) => self.selected.get(&cause.id) == Some(&cause.transition),
            NodeEvent::Removed(_)
            | NodeEvent::Finding(_)
            | NodeEvent::Dropped(_)
            | NodeEvent::Reset(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::printer::tests::{delivery, transition};
    use super::*;
    use crate::args::{CliArgs, Command};

    fn selection(args: &[&str]) -> EventSelection {
        let args = CliArgs::try_parse_from(["vipwatch", "watch"].iter().chain(args)).unwrap();
        let Command::Watch(options) = args.command else { panic!("not watch") };
        EventSelection::new(&options)
    }

    fn to(seq: i64, role: &str, netns: Option<&str>) -> NodeEvent {
        let mut event = transition(seq, &[]);
        event.to = RoleKind::from_word(role).unwrap();
        event.netns = netns.map(str::to_owned);
        NodeEvent::Transition(Box::new(event))
    }

    #[test]
    fn a_role_selects_transitions_and_their_deliveries() {
        let mut selection = selection(&["--role", "primary,fault"]);
        assert!(selection.covers(&to(5, "primary", None)));
        assert!(!selection.covers(&to(6, "backup", None)));
        assert!(selection.covers(&NodeEvent::Delivery(delivery(5, None, true))));
        assert!(!selection.covers(&NodeEvent::Delivery(delivery(6, None, true))));
    }

    #[test]
    fn a_namespace_and_an_origin_select_all_events_of_an_instance() {
        let mut blue = selection(&["--netns", "blue"]);
        let failed = NodeEvent::Delivery(delivery(4, Some("exit status 1"), false));
        assert!(!blue.covers(&failed), "the place of the instance is not known");
        assert!(blue.covers(&to(5, "backup", Some("blue"))) && blue.covers(&failed));
        assert!(!blue.covers(&to(6, "backup", None)) && !blue.covers(&failed));
        assert!(selection(&["--netns", ""]).covers(&to(5, "backup", None)));
        assert!(selection(&["--origin", "keepalived"]).covers(&to(5, "backup", None)));
        assert!(!selection(&["--origin", "neutron"]).covers(&to(5, "backup", None)));
        assert!(selection(&[]).covers(&failed));
    }
}
