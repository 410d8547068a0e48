// SPDX-License-Identifier: Apache-2.0
//! The witness: captures the VRRP adverts on the links of the instances, and keeps them as evidence.
//!
//! ```text
//!   main loop ── instances, settings, drain now ──▶ WitnessWorker ──▶ threads "capture" ──▶ packet sockets
//!                                                        │  reads their queues once a second
//!                                                        ▼
//!   API, audit ◀────── evidence about an instance ── WitnessTable (core::witness)
//! ```
//!
//! The worker decides about all sockets, one for each link. They are in the file tables of the threads `capture`, which do
//! nothing but run system calls for the worker, one thread at a time: several tables make the end of a killed node fast.
//! The kernel queues adverts and wakes no thread; the worker reads the queues on a timer, and those of one namespace
//! soon after an instance there has changed its role. The worker closes a socket when the name of its namespace is removed:
//! an open packet socket would keep the namespace alive.
//!
//! The witness only listens and sends nothing. Its sockets make their links members of VRRP's multicast groups, so that a
//! network card passes the adverts up although no keepalived runs; that is no IGMP or MLD membership.

mod evidence;
mod links;
mod review;
mod worker;

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use vipwatch_core::NetnsName;
use vipwatch_linux::wake_queue::WakeQueue;
use vipwatch_linux::worker::spawn_worker;

pub use self::evidence::{CaptureStatus, InstanceEvidence, WitnessTable, WitnessTotals};
pub(crate) use self::evidence::{
    advert_interval, configured_settings, expected_down_interval, router_key,
};
use self::review::Reviewer;
use self::worker::WitnessWorker;
use crate::audit::AuditRequests;
use crate::config::WitnessConfig;
use crate::discovery::InstanceConfig;
use crate::evidence::EvidenceUpdates;
use crate::state::StateStore;

/// A message to the worker, by its kind. A newer message of the same key replaces the older one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum CommandKey {
    Configure,
    Follow,
    /// The namespace; `None` for the node's own.
    Drain(Option<NetnsName>),
    Search(Option<NetnsName>),
    Stop,
}

#[derive(Debug)]
enum Command {
    Configure(WitnessConfig),
    Follow(Vec<Arc<InstanceConfig>>),
    Drain,
    Search,
    Stop,
}

/// BOUND: two entries for each namespace, and three more.
type CommandQueue = WakeQueue<(CommandKey, Command), BTreeMap<CommandKey, Command>>;

/// The handle to the worker. None of its functions except [`Self::stop`] waits.
#[derive(Debug)]
pub(crate) struct Witness {
    commands: CommandQueue,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Witness {
    /// Starts the worker, without links. Its evidence appears in [`StateStore::witness`]. It requests an audit of an
    /// instance when the evidence about it has changed.
    pub(crate) fn start(
        config: WitnessConfig,
        store: &Arc<StateStore>,
        audit_requests: AuditRequests,
        evidence: EvidenceUpdates,
    ) -> io::Result<Self> {
        // BOUND: two entries for each namespace, and three more.
        let commands: CommandQueue = WakeQueue::newest_per_key()?;
        let reviewer = Reviewer::new(audit_requests, evidence.clone());
        let store = Arc::clone(store);
        let worker = WitnessWorker::new(commands.clone(), config, store, reviewer, evidence);
        let thread = spawn_worker("witness", move |heartbeat| worker.run(heartbeat))?;
        Ok(Self { commands, thread: Mutex::new(Some(thread)) })
    }

    /// Captures the adverts of these instances from now on, and of no others.
    pub(crate) fn follow(&self, instances: &[Arc<InstanceConfig>]) {
        self.commands.push((CommandKey::Follow, Command::Follow(instances.to_vec())));
    }

    /// Applies other settings.
    pub(crate) fn configure(&self, config: WitnessConfig) {
        self.commands.push((CommandKey::Configure, Command::Configure(config)));
    }

    /// Has the adverts in the namespace of an instance read soon, after the state files of a burst. An
    /// [`EvidenceUpdate`](crate::evidence) follows.
    pub(crate) fn drain(&self, instance: &InstanceConfig) {
        self.commands.push((CommandKey::Drain(instance.netns.clone()), Command::Drain));
    }

    /// Looks up the links in a namespace at once: one of them has appeared, or its state has changed.
    pub(crate) fn search(&self, netns: Option<NetnsName>) {
        self.commands.push((CommandKey::Search(netns), Command::Search));
    }

    /// Closes all sockets, and waits for the end of the worker: if the process closed them at its end, it would take
    /// some 10 ms for each.
    pub(crate) fn stop(&self) {
        self.commands.push((CommandKey::Stop, Command::Stop));
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}
