//! The fold: observations in, transitions out.
//!
//! ```text
//!                 Inventory (always)          VIP usable on the watched link
//!   nothing known ──────────────────▶ backup ────────────────────────────▶ primary
//!         │                            ▲  ▲                                   │
//!         └── FirstLookOverdue ────────┘  └───── VIP or link gone ────────────┘
//! ```
//!
//! Two things make a primary: which link bears the watched name *now*, and which links hold
//! the address *now*. Both are kept by kernel index, so that a link which is renamed,
//! deleted or re-created takes its addresses with it, whatever order the news comes in.

use crate::{
    Inventory, LinkIndex, Moment, NeutronState, Observation, SnapshotReason, Usability,
    WatchedAddress,
};

/// What made a role change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeCause {
    /// The first picture of the namespace.
    FirstLook,
    /// The address came up on the watched link.
    AddressAdded,
    /// The address left the watched link, or stopped being usable.
    AddressRemoved,
    /// The watched name moved to, from, or with a link.
    LinkChanged,
    /// A picture taken after events were lost.
    Resync,
    /// A picture taken to check ourselves. This one is a defect of ours.
    Audit,
    /// Nothing could be read in time; an assumption, until it can.
    Assumed,
    /// The namespace is gone.
    NamespaceRemoved,
}

/// A change of role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateChange {
    /// The role before; `None` if nothing had been published yet.
    pub from: Option<NeutronState>,
    /// The role now.
    pub to: NeutronState,
    /// What made it change.
    pub cause: ChangeCause,
    /// When the observation was folded.
    pub at: Moment,
}

impl StateChange {
    /// The first word about something of which nothing can be known.
    pub fn assumed(at: Moment) -> Self {
        Self { from: None, to: NeutronState::Backup, cause: ChangeCause::Assumed, at }
    }
}

/// Follows one [`WatchedAddress`] through the observations of its namespace.
#[derive(Debug)]
pub struct Tracker {
    watch: WatchedAddress,
    /// The link that bears the watched name; `None` while there is no such link.
    link: Option<LinkIndex>,
    /// Links on which the address is usable, whatever they are called.
    holders: Vec<LinkIndex>,
    /// What was said last; `None` before the first word.
    role: Option<NeutronState>,
    /// False until the first inventory: until then single events mean nothing.
    is_informed: bool,
}

impl Tracker {
    /// A tracker that knows nothing yet.
    pub fn new(watch: WatchedAddress) -> Self {
        Self { watch, link: None, holders: Vec::new(), role: None, is_informed: false }
    }

    /// The role said last.
    pub fn role(&self) -> Option<NeutronState> {
        self.role
    }

    /// Whether the kernel's picture is known; before, a role is an assumption.
    pub fn is_informed(&self) -> bool {
        self.is_informed
    }

    /// Whether the watched link exists, as far as we know.
    pub fn has_link(&self) -> bool {
        self.link.is_some()
    }

    /// The role an inventory would lead to, without taking it in.
    pub fn role_in(&self, inventory: &Inventory) -> NeutronState {
        let mut other = Self::new(self.watch);
        other.replace(inventory);
        other.role_now()
    }

    /// Folds one observation into the role; returns the change, if there was one.
    pub fn apply(&mut self, seen: &Observation, at: Moment) -> Option<StateChange> {
        let cause = self.absorb(seen)?;
        let to = match cause {
            ChangeCause::Assumed | ChangeCause::NamespaceRemoved => NeutronState::Backup,
            ChangeCause::FirstLook
            | ChangeCause::AddressAdded
            | ChangeCause::AddressRemoved
            | ChangeCause::LinkChanged
            | ChangeCause::Resync
            | ChangeCause::Audit => self.role_now(),
        };
        if self.role == Some(to) {
            return None;
        }
        let from = self.role.replace(to);
        Some(StateChange { from, to, cause, at })
    }

    /// Takes the fact in; `None` if it cannot change the role.
    fn absorb(&mut self, seen: &Observation) -> Option<ChangeCause> {
        match seen {
            Observation::Inventory(inventory) => {
                self.replace(inventory);
                self.is_informed = true;
                return Some(match inventory.look {
                    SnapshotReason::First => ChangeCause::FirstLook,
                    SnapshotReason::Resync => ChangeCause::Resync,
                    SnapshotReason::Audit => ChangeCause::Audit,
                });
            }
            Observation::FirstLookOverdue => {
                return self.role.is_none().then_some(ChangeCause::Assumed);
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
        match *seen {
            Observation::AddressSeen { link, cidr, usability } if cidr == self.watch.vip => {
                self.hold(link, usability);
                Some(match usability {
                    Usability::Usable => ChangeCause::AddressAdded,
                    Usability::NotUsable => ChangeCause::AddressRemoved,
                })
            }
            Observation::AddressRemoved { link, cidr } if cidr == self.watch.vip => {
                self.hold(link, Usability::NotUsable);
                Some(ChangeCause::AddressRemoved)
            }
            Observation::LinkSeen { link, name } if name == self.watch.link => {
                self.link = Some(link);
                Some(ChangeCause::LinkChanged)
            }
            // Renamed away: the same link under another name.
            Observation::LinkSeen { link, .. } if self.link == Some(link) => {
                self.link = None;
                Some(ChangeCause::LinkChanged)
            }
            Observation::LinkRemoved { link } => {
                self.hold(link, Usability::NotUsable);
                if self.link == Some(link) {
                    self.link = None;
                }
                Some(ChangeCause::LinkChanged)
            }
            Observation::AddressSeen { .. }
            | Observation::AddressRemoved { .. }
            | Observation::LinkSeen { .. }
            | Observation::Inventory(_)
            | Observation::FirstLookOverdue
            | Observation::NamespaceRemoved => None,
        }
    }

    fn replace(&mut self, inventory: &Inventory) {
        self.link = inventory
            .links
            .iter()
            .find_map(|(link, name)| (*name == self.watch.link).then_some(*link));
        self.holders.clear();
        for (link, cidr, usability) in &inventory.addresses {
            if *cidr == self.watch.vip {
                self.hold(*link, *usability);
            }
        }
    }

    fn hold(&mut self, link: LinkIndex, usability: Usability) {
        self.holders.retain(|held| *held != link);
        if usability == Usability::Usable {
            self.holders.push(link);
        }
    }

    fn role_now(&self) -> NeutronState {
        match self.link {
            Some(link) if self.holders.contains(&link) => NeutronState::Primary,
            Some(_) | None => NeutronState::Backup,
        }
    }
}

#[cfg(test)]
mod tests;
