//! The queue of one target: its notifications, in order for each instance.
//!
//! Each target has a queue and workers of its own, so that a target that hangs delays no other. A reload
//! that changes the settings of a target keeps its queue: every attempt reads the settings anew.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use vipwatch_core::InstanceId;

use crate::config::{DeliveryMode, Hook, Webhook};
use crate::notify::keyed_queue::{KeyedQueue, Next};
use crate::notify::post::display_name;

/// The configuration of a target.
pub(crate) trait TargetSettings: PartialEq {
    /// A name to show, without secrets. Two targets of one kind may share it, but rarely do.
    fn name(&self) -> String;
    /// Whether both configure the same consumer, perhaps with other settings.
    fn is_same_consumer(&self, other: &Self) -> bool;
    /// The roles that the target is notified of.
    fn on(&self) -> &[&'static str];
    /// Whether newer notifications replace older ones.
    fn deliver(&self) -> DeliveryMode;
}

impl TargetSettings for Hook {
    fn name(&self) -> String {
        self.program.join(" ")
    }

    fn is_same_consumer(&self, other: &Self) -> bool {
        self.program == other.program
    }

    fn on(&self) -> &[&'static str] {
        &self.on
    }

    fn deliver(&self) -> DeliveryMode {
        self.deliver
    }
}

impl TargetSettings for Webhook {
    fn name(&self) -> String {
        display_name(&self.target.url)
    }

    fn is_same_consumer(&self, other: &Self) -> bool {
        self.target.url == other.target.url
    }

    fn on(&self) -> &[&'static str] {
        &self.on
    }

    fn deliver(&self) -> DeliveryMode {
        self.deliver
    }
}

/// The current settings of a target, shared by its queue and its workers.
#[derive(Debug)]
pub(crate) struct SharedSettings<T>(Arc<Mutex<Arc<T>>>);

impl<T> SharedSettings<T> {
    pub(crate) fn current(&self) -> Arc<T> {
        Arc::clone(&self.0.lock().expect("no thread panics while it holds the lock"))
    }
}

/// The queue of one target.
#[derive(Debug)]
pub(crate) struct TargetQueue<T, J> {
    settings: SharedSettings<T>,
    entries: KeyedQueue<InstanceId, J>,
}

impl<T: TargetSettings + 'static, J: Send + 'static> TargetQueue<T, J> {
    /// A queue with at most `at_once` threads called `thread`; `start` returns the function that delivers one
    /// notification.
    pub(crate) fn new<W>(
        thread: &str,
        target: &Arc<T>,
        at_once: usize,
        start: impl FnOnce(SharedSettings<T>) -> W,
    ) -> Self
    where
        W: Fn(&mut J) -> Next + Send + Sync + 'static,
    {
        let shared = Arc::new(Mutex::new(Arc::clone(target)));
        let entries = KeyedQueue::new(thread, at_once, start(SharedSettings(Arc::clone(&shared))));
        Self { settings: SharedSettings(shared), entries }
    }

    pub(crate) fn target(&self) -> Arc<T> {
        self.settings.current()
    }

    /// Adds a notification; returns the number of older ones that it replaces.
    pub(crate) fn put(&self, instance: InstanceId, job: J) -> usize {
        self.entries.put(instance, job, self.target().deliver())
    }

    pub(crate) fn pending(&self) -> usize {
        self.entries.pending()
    }

    /// Waits until the queue is empty, at most `limit`; returns the number of notifications that are left.
    pub(crate) fn close(&self, limit: Duration) -> usize {
        self.entries.close(limit)
    }

    /// Replaces the settings if `target` configures the same consumer. Waiting notifications stay in the queue, and
    /// those that wait for another attempt are sent now. Returns false, and changes nothing, for another consumer.
    pub(crate) fn reconfigure(&self, target: &Arc<T>) -> bool {
        let mut settings =
            self.settings.0.lock().expect("no thread panics while it holds the lock");
        if !settings.is_same_consumer(target) {
            return false;
        }
        if *settings != *target {
            settings.clone_from(target);
            drop(settings);
            self.entries.retry_now();
        }
        true
    }
}

/// Changes `queues` to those of the `wanted` targets: keeps the queue of each consumer that stays, and drops the others.
pub(crate) fn reconcile<T: TargetSettings + 'static, J: Send + 'static>(
    queues: &mut Vec<TargetQueue<T, J>>,
    wanted: &[Arc<T>],
    start: impl Fn(&Arc<T>) -> TargetQueue<T, J>,
) {
    let mut before = std::mem::take(queues);
    let mut others: Vec<&Arc<T>> = Vec::new();
    // One consumer may be configured twice with different settings, so targets with unchanged settings are matched first.
    for target in wanted {
        match before.iter().position(|queue| queue.target() == *target) {
            Some(at) => queues.push(before.swap_remove(at)),
            None if queues.iter().any(|queue| queue.target() == *target) => {}
            None if others.contains(&target) => {}
            None => others.push(target),
        }
    }
    for target in others {
        let same = before.iter().position(|queue| queue.reconfigure(target));
        queues.push(same.map_or_else(|| start(target), |at| before.swap_remove(at)));
    }
}
