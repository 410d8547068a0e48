//! What an instance's change leads to, beyond what the engine has: programs, the web, and the
//! network of many namespaces. Each works on threads of its own and reports when it is done.

use std::fmt::Debug;
use std::sync::Arc;

use serde_json::Value;
use vipwatch_core::{InstanceId, Moment};
use vipwatch_history::Stage;
use vipwatch_linux::clock;
use vipwatch_linux::wake_queue::WakeQueue;

use crate::transition::micros;

/// What programs and addresses are told: that a role has changed, or what monitors claim.
pub(crate) trait Notification: Debug + Send + Sync {
    /// About whom.
    fn instance(&self) -> &InstanceId;
    /// Its number.
    fn seq(&self) -> i64;
    /// When it was heard of.
    fn heard(&self) -> Moment;
    /// As it is read.
    fn json(&self, node: &str) -> Value;
}

/// Where workers leave their reports.
pub(crate) type ReportCallback = Arc<dyn Fn(DeliveryReport) + Send + Sync>;

/// Somebody was told of a change, or could not be.
#[derive(Debug)]
pub(crate) struct DeliveryReport {
    /// Of whose change.
    pub(crate) instance: InstanceId,
    /// Of which.
    pub(crate) seq: i64,
    /// Who was told.
    pub(crate) stage: Stage,
    /// The name of the target: a program with its arguments, an address without secrets.
    pub(crate) whom: String,
    /// How long after the kernel's word, in microseconds.
    pub(crate) micros: i64,
    /// What came of it.
    pub(crate) outcome: Result<(), String>,
    /// Whether it will be tried again.
    pub(crate) is_final: bool,
}

/// Where workers leave their reports, and the loop finds them.
///
/// BOUND: one report for each attempt. An entry waits at least 250 ms between two attempts, and the loop empties the tray in
/// every turn.
pub(crate) type ReportQueue = WakeQueue<DeliveryReport>;

/// For a worker who leaves his reports in `tray`.
pub(crate) fn sink_into(tray: &ReportQueue) -> ReportCallback {
    let tray = tray.clone();
    Arc::new(move |report| tray.push(report))
}

impl DeliveryReport {
    /// Now.
    pub(crate) fn new(letter: &dyn Notification, stage: Stage, whom: &str) -> Self {
        Self {
            instance: letter.instance().clone(),
            seq: letter.seq(),
            stage,
            whom: whom.to_owned(),
            micros: micros(letter.heard(), clock::now()),
            outcome: Ok(()),
            is_final: true,
        }
    }
}
