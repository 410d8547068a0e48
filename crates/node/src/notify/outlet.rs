//! The types that all outlets of the node share: a notification, and the report about its delivery.
//!
//! Hooks, webhooks and announcements run on their own threads and send a [`DeliveryReport`] after each attempt. The
//! state file and the agent's socket are in the `outlets` crate.

use std::fmt::Debug;
use std::sync::Arc;

use serde_json::Value;
use vipwatch_core::{InstanceId, Moment};
use vipwatch_history::Stage;
use vipwatch_linux::clock;
use vipwatch_linux::wake_queue::WakeQueue;

use crate::transition::micros;

/// The content that hooks and webhooks receive: a transition, or a state that monitors reported.
pub(crate) trait Notification: Debug + Send + Sync {
    /// The instance that has changed.
    fn instance(&self) -> &InstanceId;
    /// The sequence number of the transition or of the report.
    fn seq(&self) -> i64;
    /// When the change was read from the kernel or from the monitor's request. Latencies count from this moment.
    fn read_at(&self) -> Moment;
    /// The JSON object that is sent to the target; `node` is the name of this node.
    fn json(&self, node: &str) -> Value;
}

/// The function that a worker calls with the result of each attempt.
pub(crate) type ReportCallback = Arc<dyn Fn(DeliveryReport) + Send + Sync>;

/// The result of one attempt to deliver a notification.
#[derive(Debug)]
pub(crate) struct DeliveryReport {
    /// The instance that the notification is about.
    pub(crate) instance: InstanceId,
    /// The sequence number of the notification.
    pub(crate) seq: i64,
    /// The kind of outlet.
    pub(crate) stage: Stage,
    /// The name of the target: a program with its arguments, or an address without secrets.
    pub(crate) target: String,
    /// The time since the change was read from the kernel, in microseconds.
    pub(crate) micros: i64,
    /// The error as text; empty if it is the same error as at the last attempt.
    pub(crate) outcome: Result<(), String>,
    /// Whether this was the last attempt: the target has the notification, or it was given up.
    pub(crate) is_final: bool,
}

/// Reports from the workers to the node's main loop.
///
/// BOUND: one report for each attempt. An entry waits at least 250 ms between two attempts, and the main loop empties the
/// queue in every turn.
pub(crate) type ReportQueue = WakeQueue<DeliveryReport>;

/// A callback that adds each report to `reports`.
pub(crate) fn callback_into(reports: &ReportQueue) -> ReportCallback {
    let reports = reports.clone();
    Arc::new(move |report| reports.push(report))
}

impl DeliveryReport {
    /// A report that `notification` has reached `target` now.
    pub(crate) fn new(notification: &dyn Notification, stage: Stage, target: &str) -> Self {
        Self {
            instance: notification.instance().clone(),
            seq: notification.seq(),
            stage,
            target: target.to_owned(),
            micros: micros(notification.read_at(), clock::now()),
            outcome: Ok(()),
            is_final: true,
        }
    }
}
