// SPDX-License-Identifier: Apache-2.0
//! The faults, and the random schedule of a seed.
//!
//! ```text
//!   start │ faults │ quiet │ faults │ quiet │ faults │ quiet
//!      20 s    85 s   110 s    85 s   110 s    85 s   110 s
//! ```
//!
//! Faults of etcd and of sessions end before a quiet time. Faults of keepalived, and killed or stopped nodes, may last.

mod plan;

use std::time::Duration;

use strum::{IntoStaticStr, VariantArray};

pub(super) use self::plan::schedule;
use super::keepalived::InstanceFault;

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub(super) enum FaultKind {
    /// Nothing arrives between a node and etcd.
    EtcdCut,
    /// The same from the moment on when the node writes a finding.
    CutWhileReporting,
    /// The same from the moment on when the node writes a role.
    CutWhilePublishing,
    EtcdSlow,
    EtcdRestarted,
    EtcdWithoutLeader,
    Compaction,
    /// An operator revokes the lease of a node.
    LeaseLost,
    /// An operator deletes the membership of a node, which writes it again.
    MembershipDeleted,
    /// An operator deletes the membership of a node that was killed, before its lease ends.
    MembershipOfKilledDeleted,
    WatchLate,
    WatchRepeated,
    /// The connection ends between two parts of one revision.
    WatchBroken,
    /// etcd never loses a message; a defect of a proxy could.
    WatchLost,
    /// Other clients write.
    ForeignWrites,
    /// An older snapshot, with a revision that stays below the last one.
    Restored,
    /// The same as another cluster of etcd.
    RestoredAsOther,
    /// The same, and the revision passes the last one before the nodes connect again.
    RestoredPassed,
    /// No data, as another cluster of etcd or with a low revision.
    Emptied,
    /// The same cluster without data, and the revision passes the last one before the nodes connect again.
    EmptiedPassed,
    NodeKilled,
    /// Stopped in an orderly way for longer than a restart takes.
    NodeStopped,
    /// Stopped in an orderly way, and started again at once.
    NodeRestarted,
    SessionFrozen,
    /// The main loop does not confirm the roles.
    MainLoopStuck,
    /// The adverts between two nodes are lost.
    AdvertsCut,
    KeepalivedStopped,
    KeepalivedKilled,
    InterfaceDown,
    /// All instances of a group have no link.
    AllInterfacesDown,
    PrioritiesChanged,
    /// keepalived is stopped for all groups of a node, and then the node.
    Maintenance,
    /// An operator silences a node for a while.
    NodeSilenced,
}

impl FaultKind {
    pub(super) fn word(self) -> &'static str {
        self.into()
    }

    /// The faults that a usual run injects: all.
    pub(super) fn usual() -> Vec<Self> {
        Self::VARIANTS.to_vec()
    }

    /// The kinds with these words; `+WORD` adds one to the usual faults, `-WORD` takes one away.
    pub(super) fn parse(words: &str) -> Vec<Self> {
        let mut kinds = Vec::new();
        if words.starts_with(['+', '-']) {
            kinds = Self::usual();
        }
        for word in words.split(',') {
            let name = word.trim_start_matches(['+', '-']);
            let kind = Self::VARIANTS.iter().find(|kind| kind.word() == name);
            let kind = *kind.unwrap_or_else(|| panic!("unknown fault {name:?}"));
            kinds.retain(|known| *known != kind);
            if !word.starts_with('-') {
                kinds.push(kind);
            }
        }
        kinds
    }
}

/// A moment of a fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Action {
    CutEtcd {
        node: usize,
        is_cut: bool,
    },
    /// Cuts the link when the node writes a key with this prefix.
    CutAtWrite {
        node: usize,
        prefix: &'static str,
    },
    SlowEtcd {
        node: usize,
        delay: Duration,
    },
    Watches {
        node: usize,
        trouble: WatchTrouble,
    },
    StopEtcd {
        has_process: bool,
    },
    StartEtcd,
    Compact {
        back: i64,
    },
    EndLease {
        node: usize,
    },
    DeleteMembership {
        node: usize,
        is_running: bool,
    },
    Raise {
        revisions: i64,
    },
    Snapshot,
    ReplaceData {
        is_empty: bool,
        is_other_cluster: bool,
        is_passed: bool,
    },
    Kill {
        node: usize,
    },
    Stop {
        node: usize,
    },
    Start {
        node: usize,
    },
    Freeze {
        node: usize,
        is_frozen: bool,
        lasts: Duration,
    },
    Stick {
        node: usize,
        is_stuck: bool,
    },
    CutAdverts {
        groups: Vec<usize>,
        nodes: [usize; 2],
        is_cut: bool,
    },
    Instances {
        groups: Vec<usize>,
        nodes: Vec<usize>,
        fault: InstanceFault,
    },
    Silence {
        node: usize,
        is_on: bool,
    },
    /// The faults of etcd and of sessions end.
    Heal {
        starts: Vec<usize>,
    },
    /// The properties are checked.
    Check,
}

/// What happens to the messages of watches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct WatchTrouble {
    pub(super) lateness: Duration,
    pub(super) repeated: usize,
    pub(super) broken: usize,
    pub(super) lost: usize,
}

/// An action and its time since the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Scheduled {
    pub(super) at: Duration,
    pub(super) action: Action,
}
