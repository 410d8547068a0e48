// SPDX-License-Identifier: Apache-2.0
//! The random schedule of a seed.

use std::time::Duration;

use super::{Action, FaultKind, Scheduled, WatchTrouble};
use crate::simulation::keepalived::InstanceFault;
use crate::simulation::random::SeededRandom;
use crate::simulation::{GROUPS, NODES};

const ROUNDS: u32 = 3;
const FAULTS_IN_ROUND: usize = 5;
const BEGIN: Duration = Duration::from_secs(20);
const FAULT_TIME: Duration = Duration::from_secs(85);
/// The last time of a fault in its round.
const LAST_FAULT: Duration = Duration::from_secs(80);
const QUIET_TIME: Duration = Duration::from_secs(110);

const SECOND: Duration = Duration::from_secs(1);

/// The schedule of a seed, in the order of time.
pub(in crate::simulation) fn schedule(seed: u64, kinds: &[FaultKind]) -> Vec<Scheduled> {
    let mut plan = Plan { random: SeededRandom::new(seed, 3), actions: Vec::new(), end: BEGIN };
    for round in 0..ROUNDS {
        let begin = BEGIN + round * (FAULT_TIME + QUIET_TIME);
        plan.end = begin + FAULT_TIME;
        for _ in 0..FAULTS_IN_ROUND {
            let at = begin + plan.random.between(Duration::ZERO, LAST_FAULT);
            let kind = plan.random.one_of(kinds);
            plan.add_fault(kind, at);
        }
        let mut starts: Vec<usize> = (0..NODES).collect();
        starts.retain(|_| plan.random.chance(75));
        plan.add(plan.end, Action::Heal { starts });
        plan.add(plan.end + QUIET_TIME, Action::Check);
    }
    plan.actions.sort_by_key(|scheduled| scheduled.at);
    plan.actions
}

struct Plan {
    random: SeededRandom,
    actions: Vec<Scheduled>,
    /// The end of the round's faults.
    end: Duration,
}

impl Plan {
    fn add(&mut self, at: Duration, action: Action) {
        self.actions.push(Scheduled { at, action });
    }

    /// A fault of etcd or of a session, with its end before the quiet time.
    fn add_both(&mut self, at: Duration, begin: Action, end: Action, max: u64) {
        let lasts = self.random.between(SECOND / 2, SECOND * u32::try_from(max).unwrap_or(1));
        self.add(at, begin);
        self.add((at + lasts).min(self.end), end);
    }

    fn node(&mut self) -> usize {
        self.random.below(NODES)
    }

    /// Some groups, all of them now and then.
    fn groups(&mut self) -> Vec<usize> {
        let share = self.random.one_of(&[5, 20, 20, 50, 100]);
        let mut groups: Vec<usize> = (0..GROUPS).collect();
        groups.retain(|_| self.random.chance(share));
        groups
    }

    fn add_fault(&mut self, kind: FaultKind, at: Duration) {
        match kind {
            FaultKind::EtcdCut
            | FaultKind::CutWhileReporting
            | FaultKind::CutWhilePublishing
            | FaultKind::EtcdSlow
            | FaultKind::EtcdRestarted
            | FaultKind::EtcdWithoutLeader
            | FaultKind::Compaction
            | FaultKind::LeaseLost
            | FaultKind::MembershipDeleted
            | FaultKind::ForeignWrites => self.add_etcd_fault(kind, at),
            FaultKind::WatchLate
            | FaultKind::WatchRepeated
            | FaultKind::WatchBroken
            | FaultKind::WatchLost => self.add_watch_fault(kind, at),
            FaultKind::Restored
            | FaultKind::RestoredAsOther
            | FaultKind::RestoredPassed
            | FaultKind::Emptied
            | FaultKind::EmptiedPassed => self.add_data_loss(kind, at),
            FaultKind::NodeKilled
            | FaultKind::MembershipOfKilledDeleted
            | FaultKind::NodeStopped
            | FaultKind::NodeRestarted
            | FaultKind::SessionFrozen
            | FaultKind::MainLoopStuck
            | FaultKind::Maintenance
            | FaultKind::NodeSilenced => self.add_node_fault(kind, at),
            FaultKind::AdvertsCut
            | FaultKind::KeepalivedStopped
            | FaultKind::KeepalivedKilled
            | FaultKind::InterfaceDown
            | FaultKind::AllInterfacesDown
            | FaultKind::PrioritiesChanged => self.add_instance_fault(kind, at),
        }
    }

    fn add_etcd_fault(&mut self, kind: FaultKind, at: Duration) {
        let node = self.node();
        match kind {
            FaultKind::EtcdCut => {
                let cut = |is_cut| Action::CutEtcd { node, is_cut };
                self.add_both(at, cut(true), cut(false), 40);
            }
            FaultKind::CutWhileReporting | FaultKind::CutWhilePublishing => {
                let is_finding = kind == FaultKind::CutWhileReporting;
                let prefix = if is_finding { "finding/" } else { "role/" };
                let heal = Action::CutEtcd { node, is_cut: false };
                self.add_both(at, Action::CutAtWrite { node, prefix }, heal, 60);
            }
            FaultKind::EtcdSlow => {
                let delay = self.random.between(SECOND / 10, SECOND * 5 / 2);
                let (slow, usual) = (delay, Duration::ZERO);
                let slowed = |delay| Action::SlowEtcd { node, delay };
                self.add_both(at, slowed(slow), slowed(usual), 30);
            }
            FaultKind::EtcdRestarted => {
                self.add_both(at, Action::StopEtcd { has_process: false }, Action::StartEtcd, 25);
            }
            FaultKind::EtcdWithoutLeader => {
                self.add_both(at, Action::StopEtcd { has_process: true }, Action::StartEtcd, 25);
            }
            FaultKind::Compaction => {
                let back = self.random.number(20);
                self.add(at, Action::Compact { back });
            }
            FaultKind::LeaseLost => self.add(at, Action::EndLease { node }),
            FaultKind::MembershipDeleted => {
                self.add(at, Action::DeleteMembership { node, is_running: true });
            }
            _ => {
                let revisions = 1 + self.random.number(1000);
                self.add(at, Action::Raise { revisions });
            }
        }
    }

    fn add_watch_fault(&mut self, kind: FaultKind, at: Duration) {
        let node = self.node();
        let mut trouble = WatchTrouble::default();
        match kind {
            FaultKind::WatchLate => {
                trouble.lateness = self.random.between(SECOND, 8 * SECOND);
            }
            FaultKind::WatchRepeated => trouble.repeated = 50,
            FaultKind::WatchBroken => trouble.broken = 50,
            _ => trouble.lost = 20,
        }
        let watches = |trouble| Action::Watches { node, trouble };
        self.add_both(at, watches(trouble), watches(WatchTrouble::default()), 30);
    }

    fn add_data_loss(&mut self, kind: FaultKind, at: Duration) {
        let age = self.random.between(SECOND, 40 * SECOND);
        let is_empty = matches!(kind, FaultKind::Emptied | FaultKind::EmptiedPassed);
        let is_passed = matches!(kind, FaultKind::RestoredPassed | FaultKind::EmptiedPassed);
        let is_other_cluster = match kind {
            FaultKind::RestoredAsOther => true,
            FaultKind::Emptied => self.random.chance(50),
            _ => false,
        };
        if !is_empty {
            self.add(at.saturating_sub(age), Action::Snapshot);
        }
        // The revision of a usual restore stays below that of the views.
        self.add(at, Action::Raise { revisions: 100_000 });
        let replaced = at + 4 * SECOND;
        self.add(replaced, Action::ReplaceData { is_empty, is_other_cluster, is_passed });
    }

    fn add_node_fault(&mut self, kind: FaultKind, at: Duration) {
        let node = self.node();
        match kind {
            FaultKind::SessionFrozen => {
                let lasts =
                    self.random.between(SECOND, 40 * SECOND).min(self.end.saturating_sub(at));
                self.add(at, Action::Freeze { node, is_frozen: true, lasts });
                self.add(at + lasts, Action::Freeze { node, is_frozen: false, lasts });
            }
            FaultKind::MainLoopStuck => {
                let stick = |is_stuck| Action::Stick { node, is_stuck };
                self.add_both(at, stick(true), stick(false), 30);
            }
            FaultKind::MembershipOfKilledDeleted => {
                self.add(at + SECOND, Action::DeleteMembership { node, is_running: false });
                self.add_down(at, Action::Kill { node }, node, 30);
            }
            FaultKind::NodeKilled => self.add_down(at, Action::Kill { node }, node, 1),
            FaultKind::NodeStopped => self.add_down(at, Action::Stop { node }, node, 20),
            FaultKind::NodeRestarted => {
                self.add(at, Action::Stop { node });
                let lasts = self.random.between(SECOND / 10, 4 * SECOND);
                self.add(at + lasts, Action::Start { node });
            }
            FaultKind::NodeSilenced => {
                let silence = |is_on| Action::Silence { node, is_on };
                self.add_long(at, silence(true), silence(false));
            }
            _ => {
                let groups: Vec<usize> = (0..GROUPS).collect();
                self.add(at.saturating_sub(SECOND), Action::Silence { node, is_on: true });
                let instances =
                    |fault| Action::Instances { groups: groups.clone(), nodes: vec![node], fault };
                self.add(at, instances(InstanceFault::Stop));
                self.add_down(at + 5 * SECOND, Action::Stop { node }, node, 20);
                let lasts = self.random.between(30 * SECOND, 60 * SECOND);
                self.add(at + lasts, instances(InstanceFault::Start));
                self.add(at + lasts + 30 * SECOND, Action::Silence { node, is_on: false });
            }
        }
    }

    /// A node goes down, and usually starts again.
    fn add_down(&mut self, at: Duration, down: Action, node: usize, min: u32) {
        self.add(at, down);
        if self.random.chance(70) {
            let lasts = self.random.between(min * SECOND, 60 * SECOND);
            self.add(at + lasts, Action::Start { node });
        }
    }

    fn add_instance_fault(&mut self, kind: FaultKind, at: Duration) {
        let (groups, node) = (self.groups(), self.node());
        let all = || (0..NODES).collect();
        match kind {
            FaultKind::AdvertsCut => {
                let nodes = [node, (node + 1) % NODES];
                let cut = |is_cut| Action::CutAdverts { groups: groups.clone(), nodes, is_cut };
                self.add_long(at, cut(true), cut(false));
            }
            FaultKind::PrioritiesChanged => {
                for node in 0..NODES {
                    let priority = 1 + u8::try_from(self.random.below(250)).unwrap_or(0);
                    let fault = InstanceFault::Priority(priority);
                    let (groups, nodes) = (groups.clone(), vec![node]);
                    self.add(at, Action::Instances { groups, nodes, fault });
                }
            }
            _ => {
                let is_all = kind == FaultKind::AllInterfacesDown;
                let nodes: Vec<usize> = if is_all { all() } else { vec![node] };
                let (begin, end) = match kind {
                    FaultKind::KeepalivedStopped => (InstanceFault::Stop, InstanceFault::Start),
                    FaultKind::KeepalivedKilled => (InstanceFault::Kill, InstanceFault::Start),
                    _ => (InstanceFault::LinkDown, InstanceFault::LinkUp),
                };
                let instances = |fault| Action::Instances {
                    groups: groups.clone(),
                    nodes: nodes.clone(),
                    fault,
                };
                self.add_long(at, instances(begin), instances(end));
            }
        }
    }

    /// A fault of keepalived: it may last through the quiet time.
    fn add_long(&mut self, at: Duration, begin: Action, end: Action) {
        let lasts = match self.random.below(3) {
            0 => self.random.between(SECOND, 10 * SECOND),
            1 => self.random.between(10 * SECOND, 80 * SECOND),
            _ => self.random.between(80 * SECOND, 400 * SECOND),
        };
        self.add(at, begin);
        self.add(at + lasts, end);
    }
}
