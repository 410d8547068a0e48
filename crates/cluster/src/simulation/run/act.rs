// SPDX-License-Identifier: Apache-2.0
//! Carries out the actions of a schedule.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::SimulatedCluster;
use crate::session::ClusterHandle;
use crate::simulation::content::Disturbance;
use crate::simulation::fault::{Action, WatchTrouble};
use crate::simulation::keepalived::{InstanceFault, InstanceNumber};
use crate::simulation::network::{EtcdService, LinkState, NetworkState};
use crate::simulation::node::SimulatedNode;
use crate::simulation::{NAMES, NODES};

/// How long a session may not notice that etcd is silent, in milliseconds: a heartbeat and the time limit of a request.
const UNNOTICED: u64 = 8000;

/// The number of messages that may wait for a slow session.
const MESSAGES_IN_TURN: u32 = 40;

/// The longest fault, in milliseconds.
const LONGEST: u64 = 60_000;

/// The wait before a new connection after an outage, in milliseconds: several attempts, with up to 10 s between them.
const RECONNECTION: u64 = 30_000;

/// A node connects again before etcd has counted so many revisions after a restore.
const MARGIN: i64 = 5000;

/// A node that was stopped is not started again for so long, in milliseconds, but by a restart.
const MIN_STOP: u64 = 15_000;

impl SimulatedCluster {
    pub(super) fn inject(&mut self, action: Action) {
        self.trace.add(format_args!("== {action:?}"));
        match action {
            Action::CutEtcd { .. }
            | Action::CutAtWrite { .. }
            | Action::SlowEtcd { .. }
            | Action::Watches { .. }
            | Action::StopEtcd { .. }
            | Action::StartEtcd
            | Action::Compact { .. }
            | Action::EndLease { .. }
            | Action::DeleteMembership { .. }
            | Action::Raise { .. }
            | Action::Snapshot
            | Action::ReplaceData { .. } => self.inject_into_etcd(&action),
            Action::Kill { node } => self.nodes[node].kill(),
            Action::Stop { node } => {
                if self.nodes[node].handle().is_some() {
                    self.stopped_at[node] = Some(self.trace.now());
                }
                self.nodes[node].stop();
            }
            Action::Start { node } => self.start_node(node),
            Action::Freeze { node, is_frozen, lasts } => {
                self.nodes[node].freeze(is_frozen);
                self.disturb(lasts);
            }
            Action::Stick { node, is_stuck } => {
                self.nodes[node].side.is_stuck.store(is_stuck, Ordering::Relaxed);
            }
            Action::CutAdverts { groups, nodes, is_cut } => {
                for group in groups {
                    self.vrrp.cut(group, nodes, is_cut, Instant::now());
                }
            }
            Action::Instances { groups, nodes, fault } => self.instances(&groups, &nodes, fault),
            Action::Silence { node, is_on } => self.nodes[node].side.silence(is_on),
            Action::Heal { starts } => self.heal(&starts),
            Action::Check => {}
        }
    }

    fn inject_into_etcd(&self, action: &Action) {
        let network = self.network.clone();
        let oldest_view = self.nodes.iter().filter_map(SimulatedNode::handle);
        let oldest_view = oldest_view.map(|handle| handle.view().revision()).min();
        network.change(|state| match *action {
            Action::CutEtcd { node, is_cut } => {
                self.interrupt(state);
                let since = state.links[node].cut_since.unwrap_or_else(Instant::now);
                state.links[node].cut_since = is_cut.then_some(since);
                state.links[node].cuts_at = None;
            }
            Action::CutAtWrite { node, prefix } => {
                self.interrupt(state);
                state.links[node].cuts_at = Some(prefix);
            }
            Action::SlowEtcd { node, delay } => {
                state.links[node].delay = delay.max(LinkState::GOOD.delay);
                // A session takes one message of a watch between two writes, so that messages wait for each other.
                self.disturb_state(state, MESSAGES_IN_TURN * delay);
            }
            Action::Watches { node, trouble } => {
                let WatchTrouble { lateness, repeated, broken, lost } = trouble;
                let link = &mut state.links[node];
                *link = LinkState { lateness, repeated, broken, lost, ..*link };
                self.disturb_state(state, lateness);
            }
            Action::StopEtcd { has_process } => {
                self.interrupt(state);
                let service = if has_process { EtcdService::NoLeader } else { EtcdService::Down };
                state.stop(service);
            }
            Action::StartEtcd => state.start(),
            Action::Compact { back } => {
                let revision = state.store.revision() - back;
                state.compact(revision);
            }
            Action::EndLease { node } => state.end_lease_of(node),
            Action::DeleteMembership { node, is_running } => {
                let handle = self.nodes[node].handle();
                let is_present = handle.is_some_and(ClusterHandle::is_registered)
                    && state.links[node].cut_since.is_none()
                    && state.is_serving().is_ok();
                if is_present == is_running {
                    state.delete_membership_of(node);
                }
            }
            Action::Raise { revisions } => state.store.raise(revisions),
            Action::Snapshot => state.snapshot(),
            Action::ReplaceData { is_empty, is_other_cluster, is_passed } => {
                let (last, cluster) = (state.store.revision(), state.store.cluster());
                state.replace_data(is_empty, cluster + u64::from(is_other_cluster));
                let is_near = oldest_view.is_some_and(|it| state.store.revision() + MARGIN >= it);
                if is_near && !is_passed {
                    // A node with an old view could not see that the data is older.
                    state.store.set_cluster(cluster + 1);
                }
                if is_passed {
                    let missing = last - state.store.revision();
                    state.store.raise(missing.max(0) + 10);
                }
            }
            _ => {}
        });
    }

    fn start_node(&mut self, node: usize) {
        if self.nodes[node].handle().is_some() {
            return;
        }
        self.nodes[node].start();
        let now = self.trace.now();
        if let Some(stopped) = self.stopped_at[node].take() {
            self.network.state().content.restarted(stopped, now);
        }
    }

    fn instances(&mut self, groups: &[usize], nodes: &[usize], fault: InstanceFault) {
        for &group in groups {
            for &node in nodes {
                let instance = InstanceNumber { group, node };
                self.vrrp.inject(instance, fault, Instant::now());
                self.publish(instance);
            }
        }
    }

    fn heal(&mut self, starts: &[usize]) {
        self.network.change(|state| {
            state.start();
            state.links = [LinkState::GOOD; NODES];
        });
        for node in 0..NODES {
            self.nodes[node].freeze(false);
            self.nodes[node].side.is_stuck.store(false, Ordering::Relaxed);
            let stopped = self.stopped_at[node].map_or(0, |at| at + MIN_STOP);
            if starts.contains(&node) && stopped <= self.trace.now() {
                self.start_node(node);
            }
        }
        self.trace.add(format_args!("nodes: {:?}", self.names()));
    }

    /// The names of the running nodes.
    fn names(&self) -> Vec<&'static str> {
        let running = (0..NODES).filter(|node| self.nodes[*node].handle().is_some());
        running.map(|node| NAMES[node]).collect()
    }

    /// The view of a node may lag behind etcd for a while.
    fn disturb(&self, lag: Duration) {
        self.disturb_state(&mut self.network.state(), lag);
    }

    fn disturb_state(&self, state: &mut NetworkState, lag: Duration) {
        let (from, lag) = (self.trace.now(), u64::try_from(lag.as_millis()).unwrap_or(u64::MAX));
        let to = from + LONGEST;
        state.content.disturb(Disturbance { from, to, lag, outage: 0 });
    }

    /// A session may not reach etcd for a while. It notices that with a request that is not answered: until then, a reporter
    /// evaluates a view that does not change.
    fn interrupt(&self, state: &mut NetworkState) {
        let from = self.trace.now();
        let (to, lag, outage) = (from + LONGEST, UNNOTICED, RECONNECTION);
        state.content.disturb(Disturbance { from, to, lag, outage });
    }
}
