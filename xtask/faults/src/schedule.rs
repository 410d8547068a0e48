// SPDX-License-Identifier: Apache-2.0
//! The faults of one seed, in their order.

use std::time::Duration;

use crate::FaultsError;
use crate::random::SeededRandom;
use crate::setup::LabSetup;

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FaultKind {
    /// SIGTERM to keepalived.
    Stop,
    /// SIGTERM to keepalived on all nodes.
    StopAll,
    /// SIGKILL to the parent; the VRRP child notices it and ends in an orderly way.
    KillParent,
    /// SIGKILL to both processes; the addresses stay.
    KillBoth,
    /// SIGKILL to the VRRP child; the parent starts another one.
    KillChild,
    /// SIGKILL to the VRRP child four times.
    CrashLoop,
    /// SIGKILL to the VRRP child while the parent is stopped.
    LoseChild,
    /// SIGSTOP to the VRRP child.
    FreezeChild,
    /// SIGSTOP to the parent.
    FreezeParent,
    /// The node's link is set down.
    LinkDown,
    /// The switch sets the port down: the node's link has no carrier.
    CarrierLoss,
    /// The node receives nothing, but sends.
    OneWayLoss,
    /// The node's port leaves the bridge; both sides stay up.
    Partition,
    /// The track script fails.
    PriorityDrop,
    /// One address is removed by hand.
    AddressRemoved,
    /// One address is added by hand on a backup.
    AddressAdded,
    /// The priority is edited, and keepalived reloads.
    EditPriority,
    /// One more address is configured, and keepalived reloads.
    EditAddresses,
    /// The priority is edited, and keepalived does not reload.
    EditOnly,
    /// A foreign keepalived advertises the same VRID with other addresses.
    VridClash,
}

/// The node on which a fault happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultVictim {
    Primary,
    Backup,
}

/// One step of a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FaultStep {
    pub kind: FaultKind,
    pub victim: FaultVictim,
    /// The time between the end of the recovery and the next fault.
    pub rest: Duration,
}

impl FaultKind {
    pub const ALL: [Self; 20] = [
        Self::Stop,
        Self::StopAll,
        Self::KillParent,
        Self::KillBoth,
        Self::KillChild,
        Self::CrashLoop,
        Self::LoseChild,
        Self::FreezeChild,
        Self::FreezeParent,
        Self::LinkDown,
        Self::CarrierLoss,
        Self::OneWayLoss,
        Self::Partition,
        Self::PriorityDrop,
        Self::AddressRemoved,
        Self::AddressAdded,
        Self::EditPriority,
        Self::EditAddresses,
        Self::EditOnly,
        Self::VridClash,
    ];

    pub fn word(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::StopAll => "stop-all",
            Self::KillParent => "kill-parent",
            Self::KillBoth => "kill-both",
            Self::KillChild => "kill-child",
            Self::CrashLoop => "crash-loop",
            Self::LoseChild => "lose-child",
            Self::FreezeChild => "freeze-child",
            Self::FreezeParent => "freeze-parent",
            Self::LinkDown => "link-down",
            Self::CarrierLoss => "carrier-loss",
            Self::OneWayLoss => "one-way-loss",
            Self::Partition => "partition",
            Self::PriorityDrop => "priority-drop",
            Self::AddressRemoved => "address-removed",
            Self::AddressAdded => "address-added",
            Self::EditPriority => "edit-priority",
            Self::EditAddresses => "edit-addresses",
            Self::EditOnly => "edit-only",
            Self::VridClash => "vrid-clash",
        }
    }

    /// How long the fault lasts after it has happened: longer than the deadline of each finding that it causes.
    pub fn hold(self) -> Duration {
        Duration::from_secs(match self {
            Self::FreezeChild | Self::FreezeParent | Self::EditOnly => 20,
            Self::CrashLoop | Self::LoseChild | Self::EditAddresses => 18,
            Self::OneWayLoss | Self::StopAll | Self::VridClash => 16,
            Self::KillChild => 2,
            _ => 11,
        })
    }

    /// The node on which the fault happens: some faults have an effect only on one role.
    fn victim(self, prefers_primary: bool) -> FaultVictim {
        match self {
            Self::AddressRemoved | Self::PriorityDrop => FaultVictim::Primary,
            Self::AddressAdded | Self::OneWayLoss => FaultVictim::Backup,
            _ if prefers_primary => FaultVictim::Primary,
            _ => FaultVictim::Backup,
        }
    }

    /// Whether the fault is possible in this lab.
    fn is_possible(self, setup: &LabSetup) -> bool {
        match self {
            Self::PriorityDrop => setup.has_track_script,
            // With a VMAC the foreign sender's adverts have the MAC address of the virtual router, which macvlan takes
            // for its own.
            Self::VridClash => !setup.has_vmac,
            _ => true,
        }
    }
}

/// The schedule of a seed: three to six different faults.
pub fn schedule(setup: &LabSetup) -> Vec<FaultStep> {
    let mut random = SeededRandom::new(setup.seed ^ 0x5EED_FA17);
    let mut kinds: Vec<FaultKind> =
        FaultKind::ALL.into_iter().filter(|kind| kind.is_possible(setup)).collect();
    random.shuffle(&mut kinds);
    let count = 3 + random.below(4);
    let steps = kinds.into_iter().take(count).map(|kind| FaultStep {
        kind,
        victim: kind.victim(random.chance(65)),
        rest: Duration::from_millis(3000 + 500 * u64::try_from(random.below(10)).unwrap_or(0)),
    });
    steps.collect()
}

/// A schedule of these faults, in this order; on the primary where that makes sense.
pub fn chosen(words: &str) -> Result<Vec<FaultStep>, FaultsError> {
    let step = |word: &str| {
        let kind = FaultKind::ALL.into_iter().find(|kind| kind.word() == word);
        let kind = kind.ok_or_else(|| FaultsError(format!("unknown fault {word:?}")))?;
        Ok(FaultStep { kind, victim: kind.victim(true), rest: Duration::from_secs(5) })
    };
    words.split(',').map(step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_hundred_seeds_contain_every_fault_many_times() {
        let all: Vec<FaultKind> =
            (0..200).flat_map(|seed| schedule(&LabSetup::of(seed))).map(|step| step.kind).collect();
        for kind in FaultKind::ALL {
            let count = all.iter().filter(|other| **other == kind).count();
            assert!(count >= 10, "{} {count}", kind.word());
        }
    }
}
