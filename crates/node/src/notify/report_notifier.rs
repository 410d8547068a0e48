//! What an agent does when something holds: its duties, each for a party that wants to know.
//!
//! ```text
//!   Settled ─┬─ IPv6 parameters   lanes, in order for each router
//!            ├─ hooks             a queue for each, in order for each router
//!            ├─ webhooks          a queue for each, in order for each router
//!            └─ upstream          a thread, all routers at once
//!                  └──▶ Notes ──▶ ledger (on the disk), and whoever asks
//! ```
//!
//! Who was told of what is kept in the receiver's journal, so a party that was not told when the
//! process was killed is told by the next one: at least once, and the last state in any case. A party
//! that is new is told where everybody stands.

mod delivery_log;
mod ipv6;
mod upstream;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde_json::{Value, json};
use vipwatch_core::debounce::ReportedState;
use vipwatch_core::{InstanceId, Moment};
use vipwatch_linux::clock;
use vipwatch_receiver::{ReportSink, SettledReport};

pub use self::delivery_log::{DeliveryLog, ReportTargetView};
use self::upstream::UpstreamHandle;
use crate::config::{DeliveryMode, Hook, ReceiverConfig, Upstream, Webhook};
use crate::notify::keyed_queue::KeyedQueue;
use crate::notify::outlet::Notification;
use crate::notify::post::known_as;
use crate::notify::queue::{TargetQueue, TargetSettings as _};
use crate::notify::{hook, webhook};
use crate::transition::{millis, time_text};

/// How long those who are being told may take when the receiver is stopped.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// Routers that are set up at a time.
const AT_ONCE: usize = 4;

/// What holds, as it is told: `vipwatch.report/1`.
#[derive(Debug)]
pub(crate) struct ReportNotification {
    settled: SettledReport,
    heard: Moment,
}

impl Notification for ReportNotification {
    fn instance(&self) -> &InstanceId {
        &self.settled.instance
    }

    fn seq(&self) -> i64 {
        self.settled.seq
    }

    fn heard(&self) -> Moment {
        self.heard
    }

    fn json(&self, node: &str) -> Value {
        let SettledReport { instance, state: claim, from, seq, at } = &self.settled;
        let at = millis(*at);
        json!({
            "schema": "vipwatch.report/1", "node": node, "seq": seq, "at": at, "time": time_text(at),
            "id": instance.as_str(), "from": from.map(ReportedState::as_str), "to": claim.as_str(),
            "state": claim.server_name(),
        })
    }
}

/// What one party is told with.
enum AnnounceKind {
    Ipv6(PathBuf, KeyedQueue<InstanceId, ipv6::Ipv6Job>),
    Hook(TargetQueue<Hook, hook::HookJob>),
    Webhook(TargetQueue<Webhook, webhook::WebhookJob>),
    Upstream(Arc<Upstream>, UpstreamHandle),
}

/// What a configuration asks for.
enum Wanted<'c> {
    /// For routers whose configurations are below this.
    Ipv6(&'c Path),
    Hook(&'c Arc<Hook>),
    Webhook(&'c Arc<Webhook>),
    Upstream(&'c Arc<Upstream>),
}

/// Somebody who is told.
struct ReportTarget {
    name: Arc<str>,
    means: AnnounceKind,
}

/// All duties, shared by the receiver, which has them done, and whoever configures them.
#[derive(Clone)]
pub(crate) struct ReportNotifier(Arc<Mutex<TargetTable>>);

/// Everybody who is told.
struct TargetTable {
    parties: Vec<ReportTarget>,
    /// Runs of one hook at a time.
    hooks_at_once: usize,
    notes: Arc<DeliveryLog>,
    node: Arc<str>,
}

impl ReportNotifier {
    /// None yet.
    pub(crate) fn new(hooks_at_once: usize, node: Arc<str>, notes: Arc<DeliveryLog>) -> Self {
        Self(Arc::new(Mutex::new(TargetTable { parties: Vec::new(), hooks_at_once, notes, node })))
    }

    /// Those that `config` asks for, and no others. Who is a party already goes on as it is; who is new is told
    /// of all that holds, by `settled`, which is asked while nobody else is told.
    pub(crate) fn configure(
        &self,
        config: &ReceiverConfig,
        settled: impl FnOnce() -> Vec<SettledReport>,
    ) -> io::Result<()> {
        match self.0.lock() {
            Ok(mut hall) => hall.configure(config, &settled()),
            Err(_) => Ok(()),
        }
    }

    fn hall(&self) -> Option<MutexGuard<'_, TargetTable>> {
        self.0.lock().ok()
    }
}

impl TargetTable {
    fn configure(&mut self, config: &ReceiverConfig, settled: &[SettledReport]) -> io::Result<()> {
        let wanted = wanted(config);
        let mut before = std::mem::take(&mut self.parties);
        let mut others = Vec::new();
        for (name, wanted) in wanted {
            let is_same =
                |party: &ReportTarget| party.name == name && wanted.is_served_by(&party.means);
            let same = before.iter().position(is_same);
            match same {
                Some(at) => self.parties.push(before.swap_remove(at)),
                None => others.push((name, wanted)),
            }
        }
        let names = self.parties.iter().map(|party| &party.name);
        let names: Vec<Arc<str>> =
            names.chain(others.iter().map(|(name, _)| name)).cloned().collect();
        let new = self.notes.enrol(&names);
        // ORDER: those who are no parties any more are gone before others are told in their place.
        drop(before);
        for (name, wanted) in others {
            let means = self.means(&wanted, &name)?;
            let party = ReportTarget { name, means };
            // One who was known by this name, and is told otherwise now, knows what he was told.
            let owed = self.notes.owed(&party.name);
            let is_owed = |one: &&SettledReport| {
                new.contains(&party.name) || owed.contains_key(&one.instance)
            };
            for one in settled.iter().filter(is_owed) {
                let settlement = ReportNotification { settled: one.clone(), heard: clock::now() };
                self.tell_one(&party, &Arc::new(settlement));
            }
            self.parties.push(party);
        }
        Ok(())
    }

    fn means(&self, wanted: &Wanted<'_>, name: &Arc<str>) -> io::Result<AnnounceKind> {
        let (notes, party) = (Arc::clone(&self.notes), Arc::clone(name));
        Ok(match *wanted {
            Wanted::Ipv6(state_path) => {
                let confs = state_path.join("ha_confs");
                let work = move |job: &mut ipv6::Ipv6Job| ipv6::work(job, &confs, &party, &notes);
                AnnounceKind::Ipv6(state_path.to_owned(), KeyedQueue::new("ipv6", AT_ONCE, work))
            }
            Wanted::Hook(hook) => {
                AnnounceKind::Hook(hook::queue(hook, self.hooks_at_once, self.notes.sink(name)))
            }
            Wanted::Webhook(webhook) => {
                AnnounceKind::Webhook(webhook::queue(webhook, self.notes.sink(name)))
            }
            Wanted::Upstream(upstream) => {
                let node = Arc::clone(&self.node);
                let messenger = UpstreamHandle::start(Arc::clone(upstream), node, party, notes)?;
                AnnounceKind::Upstream(Arc::clone(upstream), messenger)
            }
        })
    }

    fn tell_one(&self, party: &ReportTarget, settlement: &Arc<ReportNotification>) {
        let SettledReport { instance, state: claim, seq, .. } = &settlement.settled;
        let wants = |on: &[&str]| on.contains(&claim.as_str());
        let (letter, node) = (Arc::clone(settlement), Arc::clone(&self.node));
        let (id, owe) = (instance.clone(), || self.notes.owe(&party.name, instance, *seq));
        let left_out = match &party.means {
            AnnounceKind::Hook(queue) if !wants(&queue.target().on) => 0,
            AnnounceKind::Webhook(queue) if !wants(&queue.target().on) => 0,
            AnnounceKind::Hook(queue) => {
                owe();
                queue.put(id, hook::HookJob { letter, node })
            }
            AnnounceKind::Webhook(queue) => {
                owe();
                queue.put(id, webhook::WebhookJob::new(letter, node))
            }
            AnnounceKind::Ipv6(_, lanes) => {
                owe();
                lanes.put(id, ipv6::Ipv6Job::new(letter), DeliveryMode::Latest)
            }
            AnnounceKind::Upstream(_, messenger) => {
                owe();
                messenger.put(id, *claim, *seq);
                0
            }
        };
        self.notes.superseded(&party.name, left_out);
    }

    /// Lets those finish who are being told, but not for longer than [`SHUTDOWN_TIMEOUT`].
    fn close(&self) {
        self.notes.close();
        let owed: usize = self.notes.parties().values().map(|party| party.owed.len()).sum();
        if owed > 0 {
            let seconds = SHUTDOWN_TIMEOUT.as_secs();
            tracing::info!(owed, seconds, "stopping; those who are being told may take so long");
        }
        let end = clock::now() + SHUTDOWN_TIMEOUT;
        for party in &self.parties {
            if let AnnounceKind::Upstream(_, messenger) = &party.means {
                messenger.close();
            }
        }
        let mut left = 0;
        for party in &self.parties {
            let limit = end.since(clock::now());
            left += match &party.means {
                AnnounceKind::Hook(queue) => queue.close(limit),
                AnnounceKind::Ipv6(_, lanes) => lanes.close(limit),
                AnnounceKind::Webhook(queue) => queue.close(limit),
                AnnounceKind::Upstream(_, messenger) => messenger.wait(limit),
            };
        }
        if left > 0 {
            tracing::warn!(left, "stopped before everybody was told; the next one goes on");
        }
    }
}

/// Who is told by a configuration, for people.
pub fn parties(config: &ReceiverConfig) -> Vec<String> {
    wanted(config).into_iter().map(|(name, _)| name.to_string()).collect()
}

/// What a configuration asks for, each with a name of its own.
fn wanted(config: &ReceiverConfig) -> Vec<(Arc<str>, Wanted<'_>)> {
    let ipv6 = config
        .has_ipv6_params
        .then(|| ("ipv6 parameters".to_owned(), Wanted::Ipv6(config.state_path.as_path())));
    let hooks = config.hooks.iter();
    let hooks = hooks.map(|hook| (format!("hook {}", hook.name()), Wanted::Hook(hook)));
    let webhooks = config.webhooks.iter();
    let webhooks = webhooks.map(|one| (format!("webhook {}", one.name()), Wanted::Webhook(one)));
    let upstream = config.upstream.iter();
    let upstream = upstream
        .map(|one| (format!("upstream {}", known_as(&one.target.url)), Wanted::Upstream(one)));
    let mut all: Vec<(Arc<str>, Wanted<'_>)> = Vec::new();
    for (name, wanted) in ipv6.into_iter().chain(hooks).chain(webhooks).chain(upstream) {
        let again = (2..).map(|number| format!("{name} #{number}"));
        let mut names = std::iter::once(name.clone()).chain(again);
        let is_free = |name: &String| all.iter().all(|(other, _)| **other != **name);
        let name = names.find(is_free).unwrap_or(name);
        all.push((name.into(), wanted));
    }
    all
}

impl Wanted<'_> {
    /// Whether `means` serves this configuration; a hook or webhook takes other settings without losing
    /// notifications that wait.
    fn is_served_by(&self, means: &AnnounceKind) -> bool {
        match (self, means) {
            (Self::Ipv6(wanted), AnnounceKind::Ipv6(known, _)) => *wanted == known,
            (Self::Hook(wanted), AnnounceKind::Hook(queue)) => queue.reconfigure(wanted),
            (Self::Webhook(wanted), AnnounceKind::Webhook(queue)) => queue.reconfigure(wanted),
            (Self::Upstream(wanted), AnnounceKind::Upstream(known, _)) => *wanted == known,
            _ => false,
        }
    }
}

impl ReportSink for ReportNotifier {
    fn deliver(&mut self, settled: &SettledReport) {
        let SettledReport { instance, state: claim, seq, .. } = settled;
        let (claim, state) = (claim.as_str(), claim.server_name());
        tracing::info!(%instance, claim, state, seq, "settled");
        let Some(hall) = self.hall() else { return };
        let settlement = ReportNotification { settled: settled.clone(), heard: clock::now() };
        let settlement = Arc::new(settlement);
        for party in &hall.parties {
            hall.tell_one(party, &settlement);
        }
    }

    fn restore(&mut self, settled: &SettledReport, told: &BTreeMap<String, i64>) {
        let Some(hall) = self.hall() else { return };
        let settlement = ReportNotification { settled: settled.clone(), heard: clock::now() };
        let settlement = Arc::new(settlement);
        for party in &hall.parties {
            if told.get(&*party.name).is_none_or(|seq| *seq < settled.seq) {
                hall.tell_one(party, &settlement);
            }
        }
    }

    fn forget(&mut self, instance: &InstanceId) {
        if let Some(hall) = self.hall() {
            hall.notes.forget(instance);
        }
    }

    fn close(&mut self) {
        if let Some(hall) = self.hall() {
            hall.close();
        }
    }
}
