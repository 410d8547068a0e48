// SPDX-License-Identifier: Apache-2.0
//! What the loop does every ten seconds: it restarts a receiver that has ended, and checks the socket and the history.
//! Counters are copied in each turn.

use std::sync::atomic::Ordering;

use vipwatch_linux::netns_watcher::NetnsWatcher;

use super::Node;
use crate::state::StateStore;
use vipwatch_core::FindingKind;

impl Node {
    pub(super) fn run_housekeeping(&mut self) {
        self.check_receiver();
        self.check_socket();
        self.check_history();
        self.notifier.start_workers();
        if let Some(cluster) = &self.cluster {
            cluster.start_session();
        }
    }

    /// Copies the counters of other parts to the published state.
    pub(super) fn copy_counters(&mut self) {
        let counters = &self.store.counters;
        let table = self.follower.table();
        counters.overruns.store(table.overruns(), Ordering::Relaxed);
        counters.resyncs.store(table.resyncs(), Ordering::Relaxed);
        counters.snapshots.store(table.snapshots(), Ordering::Relaxed);
        counters.namespaces.store(table.namespaces() as u64, Ordering::Relaxed);
        counters.netlink_sockets.store(table.watcher().sockets() as u64, Ordering::Relaxed);
    }

    fn check_receiver(&mut self) {
        if self.receiver.as_ref().is_some_and(|receiver| !receiver.is_alive()) {
            tracing::error!("receiver ended unexpectedly; restarting it");
            self.replace_receiver(None);
            let text = "the receiver has ended and is started again; see the log".to_owned();
            self.store.set_health(FindingKind::NodeReceiver, Some(text));
        }
        if let Some(receiver) = &mut self.receiver {
            let store = &self.store;
            receiver.forget_old_routers(|id| store.entry(id).is_some());
            receiver.check_socket();
        }
    }

    /// Checks that the socket file is still the one that this node created. Another process may have replaced
    /// or removed it, and then no client reaches this node.
    fn check_socket(&self) {
        let problem = self.api_server.check_socket().err().map(|lost| lost.to_string());
        let known = self.store.health_problem(FindingKind::NodeSocket);
        if let Some(problem) = problem.as_ref().filter(|problem| Some(*problem) != known.as_ref()) {
            tracing::error!(problem, "clients cannot reach this node");
        }
        if problem.is_none() && known.is_some() {
            tracing::info!("clients can reach this node again");
        }
        self.store.set_health(FindingKind::NodeSocket, problem);
    }
}

/// Reports that each namespace needs a netlink socket of its own, because one socket for all of them could
/// not be opened.
pub(super) fn report_fallback(watcher: &NetnsWatcher, store: &StateStore) {
    if let Some(reason) = watcher.fallback_reason() {
        tracing::warn!(%reason, "using one netlink socket per namespace");
        let text = format!("each namespace has a socket of its own: {reason}");
        store.set_health(FindingKind::NodeOneSocket, Some(text));
    }
}
