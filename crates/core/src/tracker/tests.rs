// SPDX-License-Identifier: Apache-2.0
//! Single cases of the tracker, and a property test against a simple model of the kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ipnet::IpNet;
use proptest::prelude::*;

use super::*;
use crate::snapshot::{AddressFacts, LinkFacts, LinkState};
use crate::{LinkAddress, LinkName, parse_vip};

const NOON: Moment = Moment::new(Duration::from_hours(12));
const HA: LinkIndex = LinkIndex(3);
const OTHER: LinkIndex = LinkIndex(4);

fn vip() -> IpNet {
    parse_vip("169.254.0.1/24").unwrap()
}

fn name(text: &str) -> LinkName {
    text.parse().unwrap()
}

fn added(link: LinkIndex) -> Observation {
    Observation::AddressSeen { link, cidr: vip(), usability: Usability::Usable }
}

fn removed(link: LinkIndex) -> Observation {
    Observation::AddressRemoved { link, cidr: vip() }
}

fn linked(link: LinkIndex, text: &str) -> Observation {
    Observation::LinkSeen { link, name: name(text) }
}

fn link_facts(link: LinkIndex, name: LinkName) -> LinkFacts {
    let state = LinkState::Working;
    LinkFacts {
        link,
        name,
        mac: None,
        state,
        is_loopback: false,
        is_dummy: false,
        is_router: false,
    }
}

/// The watched address, usable, on this link.
fn held_on(link: LinkIndex) -> AddressFacts {
    let target = LinkAddress { link, ip: vip().addr() };
    AddressFacts {
        target,
        prefix: vip().prefix_len(),
        is_tentative: false,
        is_duplicate: false,
        protocol: 0,
    }
}

fn snapshot(reason: SnapshotReason, held: &[LinkIndex]) -> Observation {
    let snapshot = Snapshot {
        links: vec![link_facts(HA, name("ha-1")), link_facts(OTHER, name("qr-1"))],
        addresses: held.iter().copied().map(held_on).collect(),
    };
    Observation::Snapshot { reason, snapshot }
}

fn tracker_with(held: &[LinkIndex]) -> Tracker {
    let mut tracker = Tracker::new(WatchedAddress { link: name("ha-1"), vip: vip() });
    tracker.apply(&snapshot(SnapshotReason::First, held), NOON);
    tracker
}

#[test]
fn the_first_snapshot_is_a_change_with_either_state() {
    for (held, state) in [(&[][..], NeutronState::Backup), (&[HA][..], NeutronState::Primary)] {
        let mut tracker = Tracker::new(WatchedAddress { link: name("ha-1"), vip: vip() });
        let change = tracker.apply(&snapshot(SnapshotReason::First, held), NOON);
        let expected =
            StateChange { from: None, to: state, cause: ChangeCause::FirstSnapshot, at: NOON };
        assert_eq!(change, Some(expected));
    }
}

#[test]
fn an_event_before_the_first_snapshot_changes_nothing() {
    let mut tracker = Tracker::new(WatchedAddress { link: name("ha-1"), vip: vip() });
    assert_eq!(tracker.apply(&added(HA), NOON), None);
    assert_eq!(tracker.state(), None);
}

#[test]
fn a_state_follows_the_address_on_the_watched_link() {
    let mut tracker = tracker_with(&[]);
    assert_eq!(tracker.apply(&added(HA), NOON).unwrap().to, NeutronState::Primary);
    assert_eq!(tracker.apply(&removed(HA), NOON).unwrap().to, NeutronState::Backup);
}

#[test]
fn a_refresh_of_the_address_is_no_change() {
    let mut tracker = tracker_with(&[HA]);
    assert_eq!(tracker.apply(&added(HA), NOON), None);
}

#[test]
fn the_same_address_on_another_link_or_with_another_prefix_does_not_count() {
    let mut tracker = tracker_with(&[]);
    assert_eq!(tracker.apply(&added(OTHER), NOON), None);
    let cidr = parse_vip("169.254.0.1/32").unwrap();
    let seen = Observation::AddressSeen { link: HA, cidr, usability: Usability::Usable };
    assert_eq!(tracker.apply(&seen, NOON), None);
}

#[test]
fn a_tentative_address_counts_after_detection_found_no_duplicate() {
    let mut tracker = tracker_with(&[]);
    let address = |usability| Observation::AddressSeen { link: HA, cidr: vip(), usability };
    assert_eq!(tracker.apply(&address(Usability::NotUsable), NOON), None);
    assert_eq!(tracker.apply(&address(Usability::Usable), NOON).unwrap().to, NeutronState::Primary);
    assert_eq!(
        tracker.apply(&address(Usability::NotUsable), NOON).unwrap().to,
        NeutronState::Backup
    );
}

#[test]
fn renaming_the_watched_link_changes_the_state() {
    let mut tracker = tracker_with(&[HA, OTHER]);
    assert_eq!(tracker.apply(&linked(HA, "old"), NOON).unwrap().to, NeutronState::Backup);
    assert_eq!(tracker.apply(&linked(OTHER, "ha-1"), NOON).unwrap().to, NeutronState::Primary);
}

#[test]
fn a_link_recreated_under_the_same_name_starts_without_the_address() {
    let mut tracker = tracker_with(&[HA]);
    let removed = Observation::LinkRemoved { link: HA };
    assert_eq!(tracker.apply(&removed, NOON).unwrap().to, NeutronState::Backup);
    assert_eq!(tracker.apply(&linked(LinkIndex(9), "ha-1"), NOON), None);
    assert_eq!(tracker.apply(&added(LinkIndex(9)), NOON).unwrap().to, NeutronState::Primary);
}

#[test]
fn a_snapshot_without_the_vip_means_backup() {
    let mut tracker = tracker_with(&[HA]);
    let change = tracker.apply(&snapshot(SnapshotReason::Resync, &[]), NOON).unwrap();
    assert_eq!((change.to, change.cause), (NeutronState::Backup, ChangeCause::Resync));
}

#[test]
fn an_overdue_first_snapshot_is_assumed_backup_and_corrected_by_the_snapshot() {
    let mut tracker = Tracker::new(WatchedAddress { link: name("ha-1"), vip: vip() });
    let change = tracker.apply(&Observation::FirstSnapshotOverdue, NOON).unwrap();
    assert_eq!((change.to, change.cause), (NeutronState::Backup, ChangeCause::Assumed));
    let change = tracker.apply(&snapshot(SnapshotReason::First, &[HA]), NOON).unwrap();
    assert_eq!((change.from, change.to), (Some(NeutronState::Backup), NeutronState::Primary));
    assert_eq!(tracker.apply(&Observation::FirstSnapshotOverdue, NOON), None);
}

/// A simple model of the kernel: links with names, and the links that hold the address.
#[derive(Debug, Default, Clone)]
struct Kernel {
    links: BTreeMap<u32, LinkName>,
    holders: BTreeSet<u32>,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Add(u32),
    Remove(u32),
    Refresh(u32),
    Create(u32, bool),
    Delete(u32),
    Rename(u32, bool),
    /// Events from here on are lost until the next resync.
    Overrun,
    Resync,
}

impl Kernel {
    fn state(&self) -> NeutronState {
        let holds = |(link, link_name): (&u32, &LinkName)| {
            *link_name == name("ha-1") && self.holders.contains(link)
        };
        if self.links.iter().any(holds) { NeutronState::Primary } else { NeutronState::Backup }
    }

    fn link_name(&self, is_watched: bool, link: u32) -> LinkName {
        let is_taken = self.links.values().any(|other| *other == name("ha-1"));
        if is_watched && !is_taken { name("ha-1") } else { name(&format!("x{link}")) }
    }

    /// Does the step, and returns the events that the kernel sends.
    fn perform(&mut self, step: Step) -> Vec<Observation> {
        match step {
            Step::Add(link) if self.links.contains_key(&link) => {
                self.holders.insert(link);
                vec![added(LinkIndex(link))]
            }
            Step::Remove(link) if self.holders.remove(&link) => vec![removed(LinkIndex(link))],
            Step::Refresh(link) if self.holders.contains(&link) => vec![added(LinkIndex(link))],
            Step::Create(link, is_watched) if !self.links.contains_key(&link) => {
                let name = self.link_name(is_watched, link);
                self.links.insert(link, name);
                vec![Observation::LinkSeen { link: LinkIndex(link), name }]
            }
            Step::Delete(link) if self.links.remove(&link).is_some() => {
                let was_holding = self.holders.remove(&link);
                let index = LinkIndex(link);
                let mut events = vec![Observation::LinkRemoved { link: index }];
                if was_holding {
                    events.insert(0, removed(index));
                }
                events
            }
            Step::Rename(link, is_watched) if self.links.contains_key(&link) => {
                let name = self.link_name(is_watched, link);
                self.links.insert(link, name);
                vec![Observation::LinkSeen { link: LinkIndex(link), name }]
            }
            Step::Add(_)
            | Step::Remove(_)
            | Step::Refresh(_)
            | Step::Create(..)
            | Step::Delete(_)
            | Step::Rename(..)
            | Step::Overrun
            | Step::Resync => Vec::new(),
        }
    }

    fn snapshot(&self, reason: SnapshotReason) -> Observation {
        let links = self.links.iter().map(|(link, name)| link_facts(LinkIndex(*link), *name));
        let addresses = self.holders.iter().map(|link| held_on(LinkIndex(*link)));
        let snapshot = Snapshot { links: links.collect(), addresses: addresses.collect() };
        Observation::Snapshot { reason, snapshot }
    }
}

fn step() -> impl Strategy<Value = Step> {
    let link = 1_u32..4;
    prop_oneof![
        4 => link.clone().prop_map(Step::Add),
        4 => link.clone().prop_map(Step::Remove),
        2 => link.clone().prop_map(Step::Refresh),
        2 => (link.clone(), any::<bool>()).prop_map(|(link, watched)| Step::Create(link, watched)),
        1 => link.clone().prop_map(Step::Delete),
        2 => (link, any::<bool>()).prop_map(|(link, watched)| Step::Rename(link, watched)),
        1 => Just(Step::Overrun),
        1 => Just(Step::Resync),
    ]
}

proptest! {
    /// For any order of events, losses and resyncs, the tracker ends with the kernel's state, and reports
    /// exactly the changes that the kernel made.
    #[test]
    fn the_tracker_ends_with_the_kernels_state(steps in prop::collection::vec(step(), 0..60)) {
        let mut kernel = Kernel::default();
        let mut tracker = Tracker::new(WatchedAddress { link: name("ha-1"), vip: vip() });
        tracker.apply(&kernel.snapshot(SnapshotReason::First), NOON);
        let mut is_losing_events = false;

        for step in steps {
            match step {
                Step::Overrun => is_losing_events = true,
                Step::Resync => {
                    is_losing_events = false;
                    tracker.apply(&kernel.snapshot(SnapshotReason::Resync), NOON);
                }
                Step::Add(_) | Step::Remove(_) | Step::Refresh(_) | Step::Create(..)
                | Step::Delete(_) | Step::Rename(..) => {
                    let before = kernel.state();
                    let events = kernel.perform(step);
                    if is_losing_events {
                        continue;
                    }
                    let changes: Vec<_> =
                        events.iter().filter_map(|event| tracker.apply(event, NOON)).collect();
                    prop_assert_eq!(changes.len(), usize::from(before != kernel.state()));
                }
            }
            if !is_losing_events {
                prop_assert_eq!(tracker.state(), Some(kernel.state()));
            }
        }
        tracker.apply(&kernel.snapshot(SnapshotReason::Resync), NOON);
        prop_assert_eq!(tracker.state(), Some(kernel.state()));
    }
}
