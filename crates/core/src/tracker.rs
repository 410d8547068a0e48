// SPDX-License-Identifier: Apache-2.0
//! Computes the Neutron state of one watched address from observations.
//!
//! ```text
//!                 Snapshot (always)           VIP usable on the watched link
//!      no state ────────────────────▶ backup ────────────────────────────▶ primary
//!         │                            ▲  ▲                                   │
//!         └── FirstSnapshotOverdue ────┘  └───── VIP or link removed ─────────┘
//! ```
//!
//! The state depends on two facts: which link has the watched name now, and which links hold the
//! address now. The tracker stores both by kernel index. A link that is renamed or deleted therefore takes
//! its address along, in whatever order the events arrive.

use crate::snapshot::Snapshot;
use crate::{
    LinkIndex, Moment, NeutronState, Observation, SnapshotReason, Usability, WatchedAddress,
};

/// Why the state changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeCause {
    /// The first snapshot of the namespace arrived.
    FirstSnapshot,
    /// The address became usable on the watched link.
    AddressAdded,
    /// The address was removed from the watched link, or is no longer usable.
    AddressRemoved,
    /// A link was created, deleted or renamed.
    LinkChanged,
    /// A snapshot after lost events shows another state.
    Resync,
    /// A periodic snapshot shows another state: an event was missed, which is a defect.
    Audit,
    /// The kernel could not be read in time; the state is assumed until it can.
    Assumed,
    /// The namespace was removed.
    NamespaceRemoved,
}

/// A change of the Neutron state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateChange {
    /// The state before; `None` if this is the first state.
    pub from: Option<NeutronState>,
    /// The state after the change.
    pub to: NeutronState,
    /// Why the state changed.
    pub cause: ChangeCause,
    /// When the tracker took the observation.
    pub at: Moment,
}

impl StateChange {
    /// The first state of an instance if its namespace cannot be read.
    pub fn assumed(at: Moment) -> Self {
        Self { from: None, to: NeutronState::Backup, cause: ChangeCause::Assumed, at }
    }
}

/// Follows one [`WatchedAddress`] by the observations of its namespace.
#[derive(Debug)]
pub struct Tracker {
    watch: WatchedAddress,
    /// The link with the watched name; `None` while there is no such link.
    link: Option<LinkIndex>,
    /// The links of any name on which the address is usable.
    holders: Vec<LinkIndex>,
    /// The state after the last change; `None` before the first.
    state: Option<NeutronState>,
    /// False until the first snapshot. Before it, single events are ignored.
    is_informed: bool,
}

impl Tracker {
    /// A tracker without a state.
    pub fn new(watch: WatchedAddress) -> Self {
        Self { watch, link: None, holders: Vec::new(), state: None, is_informed: false }
    }

    /// The state after the last change; `None` before the first.
    pub fn state(&self) -> Option<NeutronState> {
        self.state
    }

    /// Whether a snapshot was applied. Before that, a state is an assumption.
    pub fn is_informed(&self) -> bool {
        self.is_informed
    }

    /// Whether a link with the watched name exists, by the observations so far.
    pub fn has_link(&self) -> bool {
        self.link.is_some()
    }

    /// The state that `snapshot` shows, without applying it.
    pub fn state_in(&self, snapshot: &Snapshot) -> NeutronState {
        let mut other = Self::new(self.watch);
        other.replace(snapshot);
        other.current_state()
    }

    /// Applies one observation; returns the change of state, if there is one.
    pub fn apply(&mut self, observation: &Observation, at: Moment) -> Option<StateChange> {
        let cause = self.update(observation)?;
        let to = match cause {
            ChangeCause::Assumed | ChangeCause::NamespaceRemoved => NeutronState::Backup,
            ChangeCause::FirstSnapshot
            | ChangeCause::AddressAdded
            | ChangeCause::AddressRemoved
            | ChangeCause::LinkChanged
            | ChangeCause::Resync
            | ChangeCause::Audit => self.current_state(),
        };
        if self.state == Some(to) {
            return None;
        }
        let from = self.state.replace(to);
        Some(StateChange { from, to, cause, at })
    }

    /// Stores the observed fact; `None` if it cannot change the state.
    fn update(&mut self, observation: &Observation) -> Option<ChangeCause> {
        match observation {
            Observation::Snapshot { reason, snapshot } => {
                self.replace(snapshot);
                self.is_informed = true;
                return Some(match reason {
                    SnapshotReason::First => ChangeCause::FirstSnapshot,
                    SnapshotReason::Resync => ChangeCause::Resync,
                    SnapshotReason::Audit => ChangeCause::Audit,
                });
            }
            Observation::FirstSnapshotOverdue => {
                return self.state.is_none().then_some(ChangeCause::Assumed);
            }
            Observation::NamespaceRemoved => return Some(ChangeCause::NamespaceRemoved),
            Observation::AddressSeen { .. }
            | Observation::AddressRemoved { .. }
            | Observation::LinkSeen { .. }
            | Observation::LinkRemoved { .. } => {}
        }
        if !self.is_informed {
            return None;
        }
        match *observation {
            Observation::AddressSeen { link, cidr, usability } if cidr == self.watch.vip => {
                self.set_usability(link, usability);
                Some(match usability {
                    Usability::Usable => ChangeCause::AddressAdded,
                    Usability::NotUsable => ChangeCause::AddressRemoved,
                })
            }
            Observation::AddressRemoved { link, cidr } if cidr == self.watch.vip => {
                self.set_usability(link, Usability::NotUsable);
                Some(ChangeCause::AddressRemoved)
            }
            Observation::LinkSeen { link, name } if name == self.watch.link => {
                self.link = Some(link);
                Some(ChangeCause::LinkChanged)
            }
            // The watched link got another name.
            Observation::LinkSeen { link, .. } if self.link == Some(link) => {
                self.link = None;
                Some(ChangeCause::LinkChanged)
            }
            Observation::LinkRemoved { link } => {
                self.set_usability(link, Usability::NotUsable);
                if self.link == Some(link) {
                    self.link = None;
                }
                Some(ChangeCause::LinkChanged)
            }
            Observation::AddressSeen { .. }
            | Observation::AddressRemoved { .. }
            | Observation::LinkSeen { .. }
            | Observation::Snapshot { .. }
            | Observation::FirstSnapshotOverdue
            | Observation::NamespaceRemoved => None,
        }
    }

    fn replace(&mut self, snapshot: &Snapshot) {
        self.link = snapshot
            .links
            .iter()
            .find_map(|link| (link.name == self.watch.link).then_some(link.link));
        self.holders.clear();
        for address in &snapshot.addresses {
            if address.cidr() == Some(self.watch.vip) {
                self.set_usability(address.target.link, address.usability());
            }
        }
    }

    fn set_usability(&mut self, link: LinkIndex, usability: Usability) {
        self.holders.retain(|holder| *holder != link);
        if usability == Usability::Usable {
            self.holders.push(link);
        }
    }

    fn current_state(&self) -> NeutronState {
        match self.link {
            Some(link) if self.holders.contains(&link) => NeutronState::Primary,
            Some(_) | None => NeutronState::Backup,
        }
    }
}

#[cfg(test)]
mod tests;
