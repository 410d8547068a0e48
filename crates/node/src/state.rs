//! What is so now, for whoever asks; and what happens, for whoever listens.
//!
//! The loop writes, everybody else reads. A reader takes the whole [`PublishedState`] as it is at that
//! moment, and nobody waits for him: the loop replaces what has changed, and copies only what a
//! reader still holds.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use crate::discovery::{ConfigProblem, InstanceConfig};
use crate::watch::instance_table::Cause;
use serde_json::json;
use vipwatch_core::audit::AgentKnowledge;
use vipwatch_core::{InstanceId, Role};
use vipwatch_history::{Latencies, Stage};

/// How far a listener may fall behind before he misses something.
const BACKLOG: usize = 4096;

/// One instance, as it is.
#[derive(Debug, Clone)]
pub struct InstanceEntry {
    /// What it is.
    pub found: Arc<InstanceConfig>,
    /// Where it stands.
    pub role: Role,
    /// Since when; as far back as is known.
    pub since: SystemTime,
    /// The number of its last change.
    pub seq: i64,
    /// What told.
    pub cause: Cause,
    /// Who was told how soon.
    pub latencies: Latencies,
    /// Who could not be told yet: one of a stage, and why.
    pub failures: BTreeMap<(Stage, String), String>,
    /// What the agent has acknowledged; `None` if it is not ours to tell.
    pub agent: Option<AgentKnowledge>,
    /// Who is told.
    pub stages: Arc<[Stage]>,
    /// Whether hooks and webhooks were to be told of the last change. A start that finds the role
    /// unchanged is no news.
    pub is_news: bool,
}

/// Everything, at one moment.
#[derive(Debug, Clone, Default)]
pub struct PublishedState {
    /// Every instance.
    pub entries: BTreeMap<InstanceId, Arc<InstanceEntry>>,
    /// What is wrong with the configuration.
    pub problems: Arc<Vec<ConfigProblem>>,
}

/// What is counted. The names are those of the metrics.
#[derive(Debug, Default)]
pub struct Counters {
    /// Changes of role.
    pub transitions: AtomicU64,
    /// Times that events were lost.
    pub overruns: AtomicU64,
    /// Snapshots of namespaces, audits aside.
    pub snapshots: AtomicU64,
    /// Changes that only an audit noticed.
    pub audit_corrections: AtomicU64,
    /// Namespaces that were looked into by audits.
    pub audits: AtomicU64,
    /// Namespaces that are listened to.
    pub namespaces: AtomicU64,
    /// Sockets that listen; one, unless that could not be had.
    pub netlink_sockets: AtomicU64,
    /// Letters for hooks and webhooks that were left out for newer ones.
    pub superseded: AtomicU64,
    /// Letters for hooks and webhooks that wait.
    pub pending: AtomicU64,
    /// Failures to tell somebody.
    pub outlet_failures: AtomicU64,
    /// Changes that the history does not have.
    pub history_dropped: AtomicU64,
    /// 1 if the history can be written, else 0.
    pub history_up: AtomicU64,
    /// Lines that listeners have missed.
    pub feed_missed: AtomicU64,
}

impl Counters {
    /// Every metric, by its name.
    pub fn metrics(&self) -> [(&'static str, u64); 13] {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        [
            ("vipwatch_transitions_total", of(&self.transitions)),
            ("vipwatch_netlink_overruns_total", of(&self.overruns)),
            ("vipwatch_netlink_snapshots_total", of(&self.snapshots)),
            ("vipwatch_audit_corrections_total", of(&self.audit_corrections)),
            ("vipwatch_audits_total", of(&self.audits)),
            ("vipwatch_namespaces", of(&self.namespaces)),
            ("vipwatch_netlink_sockets", of(&self.netlink_sockets)),
            ("vipwatch_outlet_superseded_total", of(&self.superseded)),
            ("vipwatch_outlet_pending", of(&self.pending)),
            ("vipwatch_outlet_failures_total", of(&self.outlet_failures)),
            ("vipwatch_history_dropped_total", of(&self.history_dropped)),
            ("vipwatch_history_up", of(&self.history_up)),
            ("vipwatch_feed_missed_total", of(&self.feed_missed)),
        ]
    }
}

/// Somebody who listens.
#[derive(Debug)]
struct Listener {
    number: u64,
    sender: SyncSender<Arc<str>>,
    /// Lines he has missed and was not told of.
    missed: u64,
}

/// The one board of a node.
#[derive(Debug, Default)]
pub struct StateStore {
    view: Mutex<Arc<PublishedState>>,
    listeners: Mutex<Vec<Listener>>,
    next_listener: AtomicU64,
    /// What is counted.
    pub counters: Counters,
    /// What is wrong with the node itself, by name.
    health_problems: Mutex<BTreeMap<&'static str, (SystemTime, String)>>,
    /// A reader of the history has met damage.
    has_history_damage: AtomicBool,
}

impl StateStore {
    /// Everything, as it is now.
    pub fn view(&self) -> Arc<PublishedState> {
        self.view.lock().map(|view| Arc::clone(&view)).unwrap_or_default()
    }

    /// One instance, as it is now.
    pub(crate) fn entry(&self, id: &InstanceId) -> Option<Arc<InstanceEntry>> {
        // Not by way of `view`: whoever holds a view has the next change copy all of it.
        self.view.lock().ok()?.entries.get(id).cloned()
    }

    /// Changes the view.
    pub(crate) fn update(&self, change: impl FnOnce(&mut PublishedState)) {
        if let Ok(mut view) = self.view.lock() {
            change(Arc::make_mut(&mut view));
        }
    }

    /// Changes one entry, if it is there.
    pub(crate) fn amend(&self, id: &InstanceId, change: impl FnOnce(&mut InstanceEntry)) {
        self.update(|view| {
            if let Some(entry) = view.entries.get_mut(id) {
                change(Arc::make_mut(entry));
            }
        });
    }

    /// Listens from now on, until the ear is dropped. What is in the view already is not told again.
    pub fn listen(self: &Arc<Self>) -> (Arc<PublishedState>, Subscription) {
        let (sender, lines) = sync_channel(BACKLOG);
        let number = self.next_listener.fetch_add(1, Ordering::Relaxed);
        // ORDER: listen before the view is taken. A change between the two is then told twice,
        // with the same number; the other way round it would be missed.
        if let Ok(mut listeners) = self.listeners.lock() {
            listeners.push(Listener { number, sender, missed: 0 });
        }
        (self.view(), Subscription { lines, number, store: Arc::clone(self) })
    }

    /// Tells everybody who listens. Nobody is waited for.
    pub(crate) fn tell(&self, line: impl FnOnce() -> Arc<str>) {
        let Ok(mut listeners) = self.listeners.lock() else { return };
        if listeners.is_empty() {
            return;
        }
        let line = line();
        let missed = &self.counters.feed_missed;
        listeners.retain_mut(|listener| listener.tell(&line, missed));
    }

    /// Notes that something is wrong with the node itself, or no longer is.
    pub(crate) fn set_health(&self, name: &'static str, what: Option<String>) {
        let Ok(mut health_problems) = self.health_problems.lock() else { return };
        match what {
            Some(what) => {
                let known = health_problems
                    .entry(name)
                    .or_insert_with(|| (SystemTime::now(), String::new()));
                known.1 = what;
            }
            None => {
                health_problems.remove(name);
            }
        }
    }

    /// Notes that a reader of the history has met damage; the loop has the file examined.
    pub(crate) fn report_history_damage(&self) {
        self.has_history_damage.store(true, Ordering::Relaxed);
    }

    /// Whether that was noted since the last call.
    pub(crate) fn take_history_damage(&self) -> bool {
        self.has_history_damage.swap(false, Ordering::Relaxed)
    }

    /// What is wrong with the node itself: by name, since when, and what.
    pub fn health_problems(&self) -> Vec<(&'static str, SystemTime, String)> {
        let health_problems = self.health_problems.lock();
        let each = health_problems.map(|health_problems| {
            health_problems
                .iter()
                .map(|(name, (since, what))| (*name, *since, what.clone()))
                .collect()
        });
        each.unwrap_or_default()
    }
}

/// What a listener hears with.
#[derive(Debug)]
pub struct Subscription {
    /// The lines.
    pub lines: Receiver<Arc<str>>,
    number: u64,
    store: Arc<StateStore>,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if let Ok(mut listeners) = self.store.listeners.lock() {
            listeners.retain(|listener| listener.number != self.number);
        }
    }
}

impl Listener {
    /// False if he has gone.
    fn tell(&mut self, line: &Arc<str>, count: &AtomicU64) -> bool {
        if self.missed > 0 {
            let gap = json!({ "schema": "vipwatch.gap/1", "missed": self.missed }).to_string();
            match self.sender.try_send(gap.into()) {
                Ok(()) => self.missed = 0,
                Err(TrySendError::Full(_)) => {}
                Err(TrySendError::Disconnected(_)) => return false,
            }
        }
        let sent = match self.missed {
            0 => self.sender.try_send(Arc::clone(line)),
            _ => Err(TrySendError::Full(Arc::clone(line))),
        };
        match sent {
            Ok(()) => true,
            Err(TrySendError::Full(_)) => {
                self.missed += 1;
                count.fetch_add(1, Ordering::Relaxed);
                true
            }
            Err(TrySendError::Disconnected(_)) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_is_slow_is_told_how_much_he_missed_and_holds_nobody_up() {
        let store = Arc::new(StateStore::default());
        let (_, ear) = store.listen();
        let receiver = &ear.lines;
        for number in 0..BACKLOG + 10 {
            store.tell(|| number.to_string().into());
        }
        assert_eq!(receiver.recv().unwrap().as_ref(), "0");
        // There is room for one again: it is the word about the rest.
        store.tell(|| "lost too".into());
        let rest: Vec<Arc<str>> = receiver.try_iter().collect();
        assert_eq!(rest.len(), BACKLOG);
        let gap = rest.last().unwrap();
        assert!(gap.contains("vipwatch.gap/1") && gap.contains("10"), "{gap}");
        assert_eq!(store.counters.feed_missed.load(Ordering::Relaxed), 11);
        drop(ear);
        assert!(store.listeners.lock().unwrap().is_empty());
    }

    #[test]
    fn an_ailment_keeps_its_age_and_goes() {
        let store = StateStore::default();
        store.set_health("history", Some("disk full".to_owned()));
        let since = store.health_problems()[0].1;
        store.set_health("history", Some("still full".to_owned()));
        assert_eq!(store.health_problems(), [("history", since, "still full".to_owned())]);
        store.set_health("history", None);
        assert_eq!(store.health_problems(), []);
    }
}
