// SPDX-License-Identifier: Apache-2.0
//! A run of one seed.

mod act;

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use super::NODES;
use super::fault::{Action, FaultKind, Scheduled, schedule};
use super::keepalived::{InstanceNumber, Vrrp};
use super::network::Network;
use super::node::SimulatedNode;
use super::trace::Trace;

/// What a run found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RunResult {
    pub(super) seed: u64,
    /// The properties that do not hold; empty if all hold.
    pub(super) failures: Vec<String>,
    pub(super) trace: String,
    /// The number of findings that were opened.
    pub(super) opened: usize,
    /// The number of verdicts that a node can be taken down.
    pub(super) yes_verdicts: usize,
}

/// Runs a seed on a runtime of its own.
pub(super) fn run_seed(seed: u64, kinds: &[FaultKind]) -> RunResult {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut cluster = SimulatedCluster::new(seed, kinds.contains(&FaultKind::WatchLost));
        for Scheduled { at, action } in schedule(seed, kinds) {
            cluster.run_until(at).await;
            cluster.act(action).await;
            if !cluster.failures().is_empty() {
                break;
            }
        }
        cluster.finish(seed)
    })
}

/// All parts of a run.
pub(super) struct SimulatedCluster {
    start: Instant,
    pub(super) trace: Trace,
    pub(super) network: Arc<Network>,
    pub(super) vrrp: Vrrp,
    pub(super) nodes: Vec<SimulatedNode>,
    /// When each node was stopped in an orderly way; `None` if it was not.
    stopped_at: [Option<u64>; NODES],
    /// The number of verdicts that a node can be taken down.
    pub(super) yes_verdicts: usize,
}

impl SimulatedCluster {
    fn new(seed: u64, loses_events: bool) -> Self {
        let start = Instant::now();
        let trace = Trace::new(start);
        let network = Network::new(seed, &trace);
        let clock = network.clone();
        tokio::spawn(async move { clock.run_clock().await });
        let vrrp = Vrrp::new(seed, start);
        let node = |number| SimulatedNode::new(number, &network, loses_events);
        let nodes = (0..NODES).map(node).collect();
        let (stopped_at, yes_verdicts) = ([None; NODES], 0);
        let mut cluster = Self { start, trace, network, vrrp, nodes, stopped_at, yes_verdicts };
        cluster.publish_all();
        for node in &mut cluster.nodes {
            node.start();
        }
        cluster
    }

    /// Lets keepalived and the nodes run up to a time since the start.
    async fn run_until(&mut self, at: Duration) {
        let until = self.start + at;
        loop {
            let next = self.vrrp.next_transition().map_or(until, |next| next.min(until));
            sleep_until(next).await;
            for changed in self.vrrp.step(Instant::now()) {
                self.publish(changed);
            }
            if Instant::now() >= until {
                return;
            }
        }
    }

    /// The node finds the present role of an instance.
    fn publish(&self, instance: InstanceNumber) {
        let InstanceNumber { group, node } = instance;
        let Some(role) = self.vrrp.role(instance) else { return };
        let side = &self.nodes[node].side;
        let works = self.vrrp.works(instance);
        if side.wanted(group) == Some((role, works)) {
            return;
        }
        self.trace.add(format_args!("keepalived {}: r{group} is {role:?}", super::NAMES[node]));
        side.set(group, role, works);
    }

    fn publish_all(&self) {
        for group in 0..super::GROUPS {
            for node in 0..NODES {
                self.publish(InstanceNumber { group, node });
            }
        }
    }

    pub(super) fn fail(&self, text: &str) {
        self.network.state().content.failures.push(format!("{}: {text}", self.trace.now()));
    }

    fn failures(&self) -> Vec<String> {
        self.network.state().content.failures.clone()
    }

    fn finish(mut self, seed: u64) -> RunResult {
        let failures = self.failures();
        for failure in &failures {
            self.trace.add(format_args!("FAILED {failure}"));
        }
        for node in &mut self.nodes {
            node.kill();
        }
        let opened = self.network.state().content.opened;
        let yes_verdicts = self.yes_verdicts;
        RunResult { seed, failures, trace: self.trace.take(), opened, yes_verdicts }
    }

    /// Polls until the check is empty, for up to three seconds: heartbeats are always on their way.
    pub(super) async fn wait_for(&mut self, check: impl Fn(&Self) -> Vec<String>) {
        let mut differences = check(self);
        for _ in 0..60 {
            if differences.is_empty() {
                return;
            }
            sleep(Duration::from_millis(50)).await;
            for changed in self.vrrp.step(Instant::now()) {
                self.publish(changed);
            }
            differences = check(self);
        }
        for difference in differences {
            self.fail(&difference);
        }
    }

    pub(super) async fn act(&mut self, action: Action) {
        if let Action::Check = action {
            self.check().await;
        } else {
            self.inject(action);
        }
        for number in 0..NODES {
            if self.nodes[number].has_failed() {
                self.fail(&format!("the session of {} has ended", super::NAMES[number]));
            }
        }
    }
}
