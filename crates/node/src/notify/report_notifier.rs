//! Delivers the states that monitors reported, once they have settled, to the targets of `[receiver]`.
//!
//! ```text
//!   SettledReport ─┬─ IPv6 parameters   a queue, in order for each router
//!                  ├─ hooks             a queue for each, in order for each router
//!                  ├─ webhooks          a queue for each, in order for each router
//!                  └─ upstream          a thread, all routers in one request
//!                        └──▶ DeliveryLog ──▶ the receiver's journal, and status queries
//! ```
//!
//! The receiver's journal records the last report that each target received. So after a kill the next process delivers
//! the reports that are missing: at least once, and always the last state. A new target receives the current state of
//! every router.

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
use crate::notify::post::display_name;
use crate::notify::queue::{TargetQueue, TargetSettings as _};
use crate::notify::{hook, webhook};
use crate::transition::{millis, time_text};

/// How long pending deliveries may take when the receiver is stopped.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum number of routers for which IPv6 parameters are set at a time.
const MAX_IPV6_JOBS_AT_ONCE: usize = 4;

/// A settled report as a notification; its JSON is `vipwatch.report/1`.
#[derive(Debug)]
pub(crate) struct ReportNotification {
    settled: SettledReport,
    read_at: Moment,
}

impl Notification for ReportNotification {
    fn instance(&self) -> &InstanceId {
        &self.settled.instance
    }

    fn seq(&self) -> i64 {
        self.settled.seq
    }

    fn read_at(&self) -> Moment {
        self.read_at
    }

    fn json(&self, node: &str) -> Value {
        let SettledReport { instance, state: reported, from, seq, at } = &self.settled;
        let at = millis(*at);
        json!({
            "schema": "vipwatch.report/1", "node": node, "seq": seq, "at": at, "time": time_text(at),
            "id": instance.as_str(), "from": from.map(ReportedState::as_str), "to": reported.as_str(),
            "state": reported.neutron_server_name(),
        })
    }
}

/// The outlet of one target, with its queue.
enum TargetSender {
    Ipv6(PathBuf, KeyedQueue<InstanceId, ipv6::Ipv6Job>),
    Hook(TargetQueue<Hook, hook::HookJob>),
    Webhook(TargetQueue<Webhook, webhook::WebhookJob>),
    Upstream(Arc<Upstream>, UpstreamHandle),
}

/// A target in the configuration.
enum Wanted<'c> {
    /// The directory below which Neutron keeps the configurations of its routers (`state_path`).
    Ipv6(&'c Path),
    Hook(&'c Arc<Hook>),
    Webhook(&'c Arc<Webhook>),
    Upstream(&'c Arc<Upstream>),
}

/// One target.
struct ReportTarget {
    name: Arc<str>,
    sender: TargetSender,
}

/// The targets of the receiver, shared by the receiver, which delivers to them, and the code that configures them.
#[derive(Clone)]
pub(crate) struct ReportNotifier(Arc<Mutex<TargetTable>>);

/// All targets, and what their deliveries need.
struct TargetTable {
    targets: Vec<ReportTarget>,
    /// Maximum number of processes of one hook that run at a time.
    hooks_at_once: usize,
    log: Arc<DeliveryLog>,
    node: Arc<str>,
}

impl ReportNotifier {
    /// A notifier without targets.
    pub(crate) fn new(hooks_at_once: usize, node: Arc<str>, log: Arc<DeliveryLog>) -> Self {
        Self(Arc::new(Mutex::new(TargetTable { targets: Vec::new(), hooks_at_once, log, node })))
    }

    /// Replaces the targets by those of `config`. A target that stays keeps its queue. A new target receives the
    /// reports that `settled` returns; it is called under the lock, so that no delivery is under way.
    pub(crate) fn configure(
        &self,
        config: &ReceiverConfig,
        settled: impl FnOnce() -> Vec<SettledReport>,
    ) -> io::Result<()> {
        match self.0.lock() {
            Ok(mut table) => table.configure(config, &settled()),
            Err(_) => Ok(()),
        }
    }

    fn table(&self) -> Option<MutexGuard<'_, TargetTable>> {
        self.0.lock().ok()
    }
}

impl TargetTable {
    fn configure(&mut self, config: &ReceiverConfig, settled: &[SettledReport]) -> io::Result<()> {
        let wanted = wanted(config);
        let mut before = std::mem::take(&mut self.targets);
        let mut others = Vec::new();
        for (name, wanted) in wanted {
            let is_same =
                |target: &ReportTarget| target.name == name && wanted.is_served_by(&target.sender);
            let same = before.iter().position(is_same);
            match same {
                Some(at) => self.targets.push(before.swap_remove(at)),
                None => others.push((name, wanted)),
            }
        }
        let names = self.targets.iter().map(|target| &target.name);
        let names: Vec<Arc<str>> =
            names.chain(others.iter().map(|(name, _)| name)).cloned().collect();
        let new = self.log.set_targets(&names);
        // ORDER: the removed targets are dropped before the new targets receive their first notification.
        drop(before);
        for (name, wanted) in others {
            let sender = self.sender(&wanted, &name)?;
            let target = ReportTarget { name, sender };
            // A target with a known name and other settings receives only the reports that it does not have yet.
            let pending = self.log.pending(&target.name);
            let has_undelivered = |report: &&SettledReport| {
                new.contains(&target.name) || pending.contains_key(&report.instance)
            };
            for report in settled.iter().filter(has_undelivered) {
                let notification =
                    ReportNotification { settled: report.clone(), read_at: clock::now() };
                self.deliver_to(&target, &Arc::new(notification));
            }
            self.targets.push(target);
        }
        Ok(())
    }

    fn sender(&self, wanted: &Wanted<'_>, name: &Arc<str>) -> io::Result<TargetSender> {
        let (log, target) = (Arc::clone(&self.log), Arc::clone(name));
        Ok(match *wanted {
            Wanted::Ipv6(state_path) => {
                let confs = state_path.join("ha_confs");
                let work = move |job: &mut ipv6::Ipv6Job| ipv6::work(job, &confs, &target, &log);
                TargetSender::Ipv6(
                    state_path.to_owned(),
                    KeyedQueue::new("ipv6", MAX_IPV6_JOBS_AT_ONCE, work),
                )
            }
            Wanted::Hook(hook) => {
                TargetSender::Hook(hook::queue(hook, self.hooks_at_once, self.log.callback(name)))
            }
            Wanted::Webhook(webhook) => {
                TargetSender::Webhook(webhook::queue(webhook, self.log.callback(name)))
            }
            Wanted::Upstream(upstream) => {
                let node = Arc::clone(&self.node);
                let upstream_handle =
                    UpstreamHandle::start(Arc::clone(upstream), node, target, log)?;
                TargetSender::Upstream(Arc::clone(upstream), upstream_handle)
            }
        })
    }

    fn deliver_to(&self, target: &ReportTarget, notification: &Arc<ReportNotification>) {
        let SettledReport { instance, state: reported, seq, .. } = &notification.settled;
        let wants = |on: &[&str]| on.contains(&reported.as_str());
        let (notification, node) = (Arc::clone(notification), Arc::clone(&self.node));
        let id = instance.clone();
        let mark_pending = || self.log.mark_pending(&target.name, instance, *seq);
        let replaced = match &target.sender {
            TargetSender::Hook(queue) if !wants(&queue.target().on) => 0,
            TargetSender::Webhook(queue) if !wants(&queue.target().on) => 0,
            TargetSender::Hook(queue) => {
                mark_pending();
                queue.put(id, hook::HookJob { notification, node })
            }
            TargetSender::Webhook(queue) => {
                mark_pending();
                queue.put(id, webhook::WebhookJob::new(notification, node))
            }
            TargetSender::Ipv6(_, queue) => {
                mark_pending();
                queue.put(id, ipv6::Ipv6Job::new(notification), DeliveryMode::Latest)
            }
            TargetSender::Upstream(_, handle) => {
                mark_pending();
                handle.put(id, *reported, *seq);
                0
            }
        };
        self.log.superseded(&target.name, replaced);
    }

    /// Waits until all pending deliveries have ended, at most [`SHUTDOWN_TIMEOUT`].
    fn close(&self) {
        self.log.close();
        let pending: usize = self.log.targets().values().map(|target| target.pending.len()).sum();
        if pending > 0 {
            let seconds = SHUTDOWN_TIMEOUT.as_secs();
            tracing::info!(pending, seconds, "shutting down: waiting for pending deliveries");
        }
        let end = clock::now() + SHUTDOWN_TIMEOUT;
        for target in &self.targets {
            if let TargetSender::Upstream(_, upstream_handle) = &target.sender {
                upstream_handle.close();
            }
        }
        let mut left = 0;
        for target in &self.targets {
            let limit = end.since(clock::now());
            left += match &target.sender {
                TargetSender::Hook(queue) => queue.close(limit),
                TargetSender::Ipv6(_, queue) => queue.close(limit),
                TargetSender::Webhook(queue) => queue.close(limit),
                TargetSender::Upstream(_, upstream_handle) => upstream_handle.wait(limit),
            };
        }
        if left > 0 {
            tracing::warn!(
                left,
                "shut down with pending deliveries: the next process delivers them"
            );
        }
    }
}

/// The names of all targets in a configuration.
pub fn target_names(config: &ReceiverConfig) -> Vec<String> {
    wanted(config).into_iter().map(|(name, _)| name.to_string()).collect()
}

/// The targets in a configuration with their names. If two have the same name, a number is added to the second one.
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
        .map(|one| (format!("upstream {}", display_name(&one.target.url)), Wanted::Upstream(one)));
    let mut all: Vec<(Arc<str>, Wanted<'_>)> = Vec::new();
    for (name, wanted) in ipv6.into_iter().chain(hooks).chain(webhooks).chain(upstream) {
        let numbered = (2..).map(|number| format!("{name} #{number}"));
        let mut names = std::iter::once(name.clone()).chain(numbered);
        let is_free = |name: &String| all.iter().all(|(other, _)| **other != **name);
        let name = names.find(is_free).unwrap_or(name);
        all.push((name.into(), wanted));
    }
    all
}

impl Wanted<'_> {
    /// Whether `sender` serves this target. A hook or webhook takes other settings and keeps its waiting
    /// notifications.
    fn is_served_by(&self, sender: &TargetSender) -> bool {
        match (self, sender) {
            (Self::Ipv6(wanted), TargetSender::Ipv6(known, _)) => *wanted == known,
            (Self::Hook(wanted), TargetSender::Hook(queue)) => queue.reconfigure(wanted),
            (Self::Webhook(wanted), TargetSender::Webhook(queue)) => queue.reconfigure(wanted),
            (Self::Upstream(wanted), TargetSender::Upstream(known, _)) => *wanted == known,
            _ => false,
        }
    }
}

impl ReportSink for ReportNotifier {
    fn deliver(&mut self, settled: &SettledReport) {
        let SettledReport { instance, state: reported, seq, .. } = settled;
        let (reported, state) = (reported.as_str(), reported.neutron_server_name());
        tracing::info!(%instance, reported, state, seq, "reported state settled");
        let Some(table) = self.table() else { return };
        let notification = ReportNotification { settled: settled.clone(), read_at: clock::now() };
        let notification = Arc::new(notification);
        for target in &table.targets {
            table.deliver_to(target, &notification);
        }
    }

    fn restore(&mut self, settled: &SettledReport, delivered: &BTreeMap<String, i64>) {
        let Some(table) = self.table() else { return };
        let notification = ReportNotification { settled: settled.clone(), read_at: clock::now() };
        let notification = Arc::new(notification);
        for target in &table.targets {
            if delivered.get(&*target.name).is_none_or(|seq| *seq < settled.seq) {
                table.deliver_to(target, &notification);
            }
        }
    }

    fn forget(&mut self, instance: &InstanceId) {
        if let Some(table) = self.table() {
            table.log.forget(instance);
        }
    }

    fn close(&mut self) {
        if let Some(table) = self.table() {
            table.close();
        }
    }
}
