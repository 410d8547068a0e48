// SPDX-License-Identifier: Apache-2.0
//! The simulated keepalived of each node: elections by VRRP, moved on from event to event.
//!
//! ```text
//!            no higher primary is heard for 3 adverts and the skew
//!   backup ─────────────────────────────────────────────────────────▶ primary
//!     ▲                                                                  │
//!     └──────────── an advert of a higher primary, within 1 s ───────────┘
//! ```
//!
//! A killed process leaves its addresses. A backup does not hear adverts across a cut.

use std::time::Duration;

use tokio::time::Instant;
use vipwatch_api::RoleKind;

use super::random::SeededRandom;
use super::{GROUPS, NODES};

/// The time between two adverts.
const ADVERT: Duration = Duration::from_secs(1);

/// The longest time until another node holds the addresses.
pub(super) const MASTER_DOWN: Duration = Duration::from_secs(4);

/// The instances of all groups.
#[derive(Debug, Clone)]
pub(super) struct Vrrp {
    groups: Vec<VrrpGroup>,
    random: SeededRandom,
}

#[derive(Debug, Clone)]
struct VrrpGroup {
    /// `None` on a node without an instance of the group.
    instances: [Option<Instance>; NODES],
    /// Whether the adverts between two nodes are lost.
    cuts: [[bool; NODES]; NODES],
}

#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each of them changes alone")]
struct Instance {
    priority: u8,
    /// Whether keepalived runs.
    is_running: bool,
    /// Whether the interface is up.
    has_link: bool,
    /// Whether keepalived is primary and sends adverts.
    is_primary: bool,
    has_addresses: bool,
    due: Option<Transition>,
}

#[derive(Debug, Clone, Copy)]
struct Transition {
    at: Instant,
    is_primary: bool,
}

/// What happens to an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InstanceFault {
    /// keepalived is stopped: it says so to the others.
    Stop,
    /// keepalived is killed, and its addresses stay.
    Kill,
    Start,
    LinkDown,
    LinkUp,
    Priority(u8),
}

/// An instance by the numbers of its group and its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct InstanceNumber {
    pub(super) group: usize,
    pub(super) node: usize,
}

impl Vrrp {
    /// Most groups have an instance on each node, and every fourth one on two nodes.
    pub(super) fn new(seed: u64, now: Instant) -> Self {
        let mut random = SeededRandom::new(seed, 2);
        let groups = (0..GROUPS).map(|number| {
            let mut priorities = [50, 100, 150];
            random.shuffle(&mut priorities);
            let absent = (number % 4 == 3).then_some(number % NODES);
            let instance =
                |node: usize| (Some(node) != absent).then(|| Instance::new(priorities[node]));
            VrrpGroup { instances: std::array::from_fn(instance), cuts: Default::default() }
        });
        let groups = groups.collect();
        let mut vrrp = Self { groups, random };
        for group in 0..GROUPS {
            vrrp.plan(group, now, false);
        }
        vrrp
    }

    /// The role of an instance; `None` if there is no such instance.
    pub(super) fn role(&self, instance: InstanceNumber) -> Option<RoleKind> {
        let instance = self.groups[instance.group].instances[instance.node].as_ref()?;
        Some(match instance {
            Instance { has_link: false, .. } => RoleKind::Fault,
            Instance { has_addresses: true, .. } => RoleKind::Primary,
            _ => RoleKind::Backup,
        })
    }

    /// Whether the keepalived of an instance runs.
    pub(super) fn works(&self, instance: InstanceNumber) -> bool {
        let instance = self.groups[instance.group].instances[instance.node].as_ref();
        instance.is_some_and(|instance| instance.is_running)
    }

    /// Whether another node than this one has the addresses of a group.
    fn is_held_beside(&self, group: usize, node: usize) -> bool {
        let others = (0..NODES).filter(|other| *other != node);
        let mut roles = others.map(|node| self.role(InstanceNumber { group, node }));
        roles.any(|role| role == Some(RoleKind::Primary))
    }

    /// The groups of a node that no other node holds within [`MASTER_DOWN`] after keepalived was stopped there.
    pub(super) fn unheld_after_stop(&self, node: usize, now: Instant) -> Vec<usize> {
        let mut after = self.clone();
        let of_node = |group: &usize| self.role(InstanceNumber { group: *group, node }).is_some();
        let groups: Vec<usize> = (0..GROUPS).filter(of_node).collect();
        for &group in &groups {
            after.inject(InstanceNumber { group, node }, InstanceFault::Stop, now);
        }
        while let Some(at) = after.next_transition().filter(|at| *at <= now + MASTER_DOWN) {
            after.step(at);
        }
        groups.into_iter().filter(|group| !after.is_held_beside(*group, node)).collect()
    }

    pub(super) fn next_transition(&self) -> Option<Instant> {
        let instances = self.groups.iter().flat_map(|group| group.instances.iter().flatten());
        instances.filter_map(|instance| Some(instance.due?.at)).min()
    }

    /// Carries out the transitions that are due; returns the changed instances.
    pub(super) fn step(&mut self, now: Instant) -> Vec<InstanceNumber> {
        let mut changed = Vec::new();
        for group in 0..GROUPS {
            for node in 0..NODES {
                let Some(instance) = &mut self.groups[group].instances[node] else { continue };
                let Some(due) = instance.due.filter(|due| due.at <= now) else { continue };
                instance.due = None;
                instance.is_primary = due.is_primary;
                instance.has_addresses = due.is_primary;
                changed.push(InstanceNumber { group, node });
                self.plan(group, now, false);
            }
        }
        changed
    }

    /// Something happens to an instance.
    pub(super) fn inject(&mut self, instance: InstanceNumber, fault: InstanceFault, now: Instant) {
        let InstanceNumber { group, node } = instance;
        let Some(instance) = &mut self.groups[group].instances[node] else { return };
        let was_primary = instance.is_primary;
        match fault {
            InstanceFault::Stop => instance.reset(false),
            InstanceFault::Kill => {
                instance.is_running = false;
                instance.is_primary = false;
            }
            InstanceFault::Start if instance.is_running => {}
            InstanceFault::Start => instance.reset(true),
            InstanceFault::LinkDown => {
                instance.has_link = false;
                instance.is_primary = false;
                instance.has_addresses = false;
            }
            InstanceFault::LinkUp => instance.has_link = true,
            InstanceFault::Priority(priority) => instance.priority = priority,
        }
        let has_said_so = was_primary && fault == InstanceFault::Stop;
        self.plan(group, now, has_said_so);
    }

    /// Cuts two nodes of a group from each other, or connects them again.
    pub(super) fn cut(&mut self, group: usize, nodes: [usize; 2], is_cut: bool, now: Instant) {
        let [one, other] = nodes;
        self.groups[group].cuts[one][other] = is_cut;
        self.groups[group].cuts[other][one] = is_cut;
        self.plan(group, now, false);
    }

    /// Plans the next transition of each instance. `is_quick` says that the primary has just said that it stops.
    fn plan(&mut self, group: usize, now: Instant, is_quick: bool) {
        let group = &mut self.groups[group];
        for node in 0..NODES {
            let hears_higher = group.hears_higher(node);
            let Some(instance) = &mut group.instances[node] else { continue };
            let is_wanted = instance.is_active() && instance.is_primary == hears_higher;
            let wanted = is_wanted.then_some(!hears_higher);
            if !is_quick && instance.due.map(|due| due.is_primary) == wanted {
                continue;
            }
            instance.due = wanted.map(|is_primary| {
                let advert = self.random.between(Duration::ZERO, ADVERT);
                let skew = ADVERT * u32::from(u8::MAX - instance.priority) / 256;
                let wait = match is_primary {
                    true if is_quick => skew,
                    true => (3 * ADVERT + skew).saturating_sub(advert),
                    false => advert,
                };
                Transition { at: now + wait, is_primary }
            });
        }
    }
}

impl VrrpGroup {
    /// Whether the adverts of a primary with a higher priority arrive at a node.
    fn hears_higher(&self, node: usize) -> bool {
        let Some(own) = &self.instances[node] else { return false };
        (0..NODES).filter(|other| *other != node && !self.cuts[node][*other]).any(|other| {
            let other = self.instances[other].as_ref().map(|it| (it, (it.priority, other)));
            other.is_some_and(|(instance, rank)| {
                instance.is_active() && instance.is_primary && rank > (own.priority, node)
            })
        })
    }
}

impl Instance {
    fn new(priority: u8) -> Self {
        Self {
            priority,
            is_running: true,
            has_link: true,
            is_primary: false,
            has_addresses: false,
            due: None,
        }
    }

    fn reset(&mut self, is_running: bool) {
        self.is_running = is_running;
        self.is_primary = false;
        self.has_addresses = false;
    }

    fn is_active(&self) -> bool {
        self.is_running && self.has_link
    }
}
