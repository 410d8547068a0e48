// SPDX-License-Identifier: Apache-2.0
//! Runs a receiver together with the notifier of its reports: inside the node, or as `vipwatch receiver`.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use vipwatch_core::{InstanceId, Moment};
use vipwatch_history::{HistoryError, Retention, SetAsideFile, Writer};
use vipwatch_linux::wake_queue::WakeQueue;
use vipwatch_linux::{clock, listen};
use vipwatch_receiver::{
    ListenSource, Receiver, ReceiverError, ReceiverPolicy, ReceiverSettings, ReceiverView,
    RouterReport, SettledReport,
};

use crate::config::{Config, ReceiverConfig};
use crate::event::NodeIdentity;
use crate::notify::report_outlet::ReportOutlet;
use crate::notify::{Notifier, NotifierSetup};
use crate::silence::Silences;

/// Time between two searches for routers that no longer exist.
const CLEANUP_INTERVAL: Duration = Duration::from_hours(24);

/// How long a router must not have reported before the receiver deletes its state.
const STATE_RETENTION: Duration = Duration::from_hours(30 * 24);

/// A running receiver and its notifier.
pub struct ReceiverService {
    receiver: Receiver,
    report_outlet: ReportOutlet,
    status: ReceiverStatus,
    config: ReceiverConfig,
    keep_undelivered: u64,
    /// `None` before the first search.
    last_cleanup: Option<Instant>,
    /// ORDER: dropped after the receiver, which records deliveries until its end.
    history: Option<Arc<Writer>>,
}

/// Reported states, counters and deliveries of one receiver, for status queries and the audit.
#[derive(Debug, Clone)]
pub struct ReceiverStatus {
    /// Reported states and counters.
    pub view: Arc<Mutex<ReceiverView>>,
    /// Deliveries to each target.
    pub notifier: Notifier,
    /// When the receiver started.
    pub since: SystemTime,
}

/// A shared place for the status of the current receiver. A reload may replace, start or stop the receiver.
#[derive(Debug, Clone, Default)]
pub struct ReceiverHandle(Arc<Mutex<Option<ReceiverStatus>>>);

impl ReceiverHandle {
    /// The status of the current receiver; `None` if no receiver runs.
    pub fn status(&self) -> Option<ReceiverStatus> {
        self.0.lock().ok()?.clone()
    }

    /// Replaces the status, after a receiver was started or stopped.
    pub fn set(&self, status: Option<ReceiverStatus>) {
        if let Ok(mut current) = self.0.lock() {
            *current = status;
        }
    }

    /// The reported state of one router; `None` if it has not reported, or no receiver runs.
    pub fn router_report(&self, id: &InstanceId) -> Option<RouterReport> {
        self.status()?.view.lock().ok()?.instances.get(id).cloned()
    }
}

/// The directory of a receiver process in its state directory, with the history of its deliveries. A node may use the
/// same state directory, and has a history of its own.
const OWN_DIRECTORY: &str = "receiver";

/// Key in [`ReceiverView::problems`]: the history of the deliveries cannot be written.
const DELIVERIES_PROBLEM: &str = "deliveries";

/// Key in [`ReceiverView::problems`]: another version has written that history, and a new file was begun.
const DELIVERIES_FORMAT_PROBLEM: &str = "deliveries-format";

/// What a receiver uses besides its part of the configuration.
#[derive(Debug, Clone)]
pub struct ServiceContext {
    /// Directory of the journal.
    pub state_dir: PathBuf,
    /// Delivers the settled reports.
    pub notifier: Notifier,
    /// Stores the deliveries of a receiver process; `None` inside a node, which has a history.
    pub history: Option<Arc<Writer>>,
    /// Maximum number of settled reports that the journal keeps for targets that have not received them.
    pub keep_undelivered: u64,
}

/// Why a receiver process cannot store its deliveries.
#[derive(Debug, thiserror::Error)]
pub enum ReceiverHistoryError {
    /// The history cannot be written.
    #[error(transparent)]
    History(#[from] HistoryError),
    /// A queue cannot be created.
    #[error("cannot start the notifier")]
    Start(#[from] std::io::Error),
}

impl ServiceContext {
    /// The context of a receiver process, with a history for its deliveries below the state directory of `config`.
    pub fn standalone(config: &Config) -> Result<Self, ReceiverHistoryError> {
        let directory = config.state_dir.join(OWN_DIRECTORY);
        let (history, opened) = Writer::open(&directory, Retention::default())?;
        if let Some(error) = &opened.open_error {
            tracing::error!(
                error,
                "deliveries cannot be stored; they may be repeated after a restart"
            );
        }
        if let Some(SetAsideFile { path, format }) = &opened.set_aside {
            let kept_as = path.display();
            match format {
                Some(format) => tracing::error!(
                    format,
                    %kept_as,
                    "delivery history has another format; a new one is begun"
                ),
                None => {
                    tracing::error!(%kept_as, "delivery history is damaged; a new one is begun");
                }
            }
        }
        let setup = NotifierSetup {
            identity: NodeIdentity { node: config.node_name(), epoch: opened.epoch.into() },
            deliveries: history.delivery_store(),
            stored: opened.deliveries,
            is_uncertain: opened.killed.is_some() || opened.open_error.is_some(),
            state_dir: &directory,
            states: &Arc::default(),
            silences: Arc::new(Silences::new(Vec::new())?),
            config,
        };
        Ok(Self {
            state_dir: config.state_dir.clone(),
            notifier: setup.start(),
            history: Some(Arc::new(history)),
            keep_undelivered: config.keep.undelivered,
        })
    }
}

impl ReceiverService {
    /// Starts a receiver and its notifier.
    pub fn open(
        config: &ReceiverConfig,
        context: &ServiceContext,
        listen_source: ListenSource,
    ) -> Result<Self, ReceiverError> {
        if let ListenSource::Given(socket) = &listen_source {
            warn_of_differences(&listen::differences(socket, &config.socket, config.options));
        }
        let settings = ReceiverSettings {
            socket: config.socket.clone(),
            listen_source,
            options: config.options,
            policy: policy(config, context.keep_undelivered),
            journal_dir: context.state_dir.clone(),
        };
        let notifier = context.notifier.clone();
        // Without settled states: the receiver restores them.
        let report_outlet = ReportOutlet::new(notifier.clone(), config);
        let receiver = Receiver::start(settings, Box::new(report_outlet.clone()))?;
        let status = ReceiverStatus { view: receiver.view(), notifier, since: SystemTime::now() };
        let history = context.history.clone();
        let (config, keep_undelivered) = (config.clone(), context.keep_undelivered);
        let last_cleanup = None;
        Ok(Self {
            receiver,
            report_outlet,
            status,
            config,
            keep_undelivered,
            last_cleanup,
            history,
        })
    }

    /// Applies another configuration while the receiver runs. Monitors do not notice it. If the new socket cannot be
    /// opened, the old configuration stays in use.
    pub fn configure(&mut self, config: &ReceiverConfig) -> Result<(), ReceiverError> {
        let mut config = config.clone();
        let is_socket_changed =
            config.socket != self.config.socket || config.options != self.config.options;
        if is_socket_changed && self.receiver.is_given() {
            tracing::warn!("socket settings ignored: the socket belongs to the service manager");
            config.socket.clone_from(&self.config.socket);
            config.options = self.config.options;
        } else if is_socket_changed {
            self.receiver.move_to(&config.socket, config.options)?;
        }
        self.receiver.set_policy(policy(&config, self.keep_undelivered));
        self.config = config;
        // ORDER: the outlet calls the closure after it has replaced the targets, so that a new target misses no state:
        // see `act_on` in `receiver::server::reports`.
        self.report_outlet.configure(&self.config, || self.settled_reports());
        Ok(())
    }

    /// The current state of every router that has at least one delivery.
    fn settled_reports(&self) -> Vec<SettledReport> {
        let Ok(view) = self.status.view.lock() else { return Vec::new() };
        let delivered = view.instances.iter().filter(|(_, report)| report.acted_seq > 0);
        let settled = delivered.filter_map(|(instance, report)| {
            Some(SettledReport {
                instance: instance.clone(),
                state: report.settled?,
                from: None,
                seq: report.acted_seq,
                at: report.at,
            })
        });
        settled.collect()
    }

    /// Deletes, once a day, the states of routers that have not reported for a month and no longer exist:
    /// `is_known` is false, and the agent has no configuration for them.
    pub fn forget_old_routers(&mut self, is_known: impl Fn(&InstanceId) -> bool) {
        if self.last_cleanup.is_some_and(|last| last.elapsed() < CLEANUP_INTERVAL) {
            return;
        }
        self.last_cleanup = Some(Instant::now());
        let confs = self.config.state_path.join("ha_confs");
        let is_old = |(id, report): &(&InstanceId, &RouterReport)| {
            age(report) >= STATE_RETENTION && !is_known(id) && !confs.join(id.as_str()).exists()
        };
        let old: Vec<InstanceId> = match self.status.view.lock() {
            Ok(view) => view.instances.iter().filter(is_old).map(|(id, _)| id.clone()).collect(),
            Err(_) => Vec::new(),
        };
        if !old.is_empty() {
            tracing::info!(count = old.len(), "deleting routers without a report for 30 days");
            self.receiver.forget(old);
        }
    }

    /// Checks that the socket's file is still this receiver's; see [`Receiver::check_socket`].
    pub fn check_socket(&self) {
        self.receiver.check_socket();
    }

    /// Shows whether the deliveries of a receiver process can be stored, and stores them again after the file was
    /// replaced.
    pub fn check_history(&self) {
        let Some(history) = &self.history else { return };
        let error = history.failing();
        if history.take_outdated() {
            self.status.notifier.store_again();
        }
        let Ok(mut view) = self.status.view.lock() else { return };
        match history.other_format() {
            Some(text) => view.problems.insert(DELIVERIES_FORMAT_PROBLEM, text),
            None => view.problems.remove(DELIVERIES_FORMAT_PROBLEM),
        };
        let was_failing = view.problems.contains_key(DELIVERIES_PROBLEM);
        match error {
            Some(error) => {
                if !was_failing {
                    tracing::error!(error, "deliveries cannot be stored");
                }
                let text = format!("deliveries are not durable: {error}");
                view.problems.insert(DELIVERIES_PROBLEM, text);
            }
            None if was_failing => {
                tracing::info!("deliveries are stored again");
                view.problems.remove(DELIVERIES_PROBLEM);
            }
            None => {}
        }
    }

    /// The configuration in use.
    pub fn config(&self) -> &ReceiverConfig {
        &self.config
    }

    /// The path of the socket, for messages.
    pub fn socket(&self) -> &Path {
        if self.receiver.is_given() {
            return Path::new("(socket of the service manager)");
        }
        &self.config.socket
    }

    /// Reported states, counters and deliveries.
    pub fn status(&self) -> ReceiverStatus {
        self.status.clone()
    }

    /// Whether the receiver thread runs.
    pub fn is_alive(&self) -> bool {
        self.receiver.is_alive()
    }

    /// Shuts the receiver down on a thread of its own. `None`: no thread could be started, and the receiver has
    /// already shut down.
    pub(crate) fn close(self) -> Option<ReceiverShutdown> {
        let ended = WakeQueue::new().ok()?;
        let signal = ended.clone();
        let work = move || {
            drop(self);
            tracing::info!("receiver stopped");
            signal.push(());
        };
        // If the thread cannot be started, the closure is dropped here, and the receiver with it.
        let thread = std::thread::Builder::new().name("receiver-close".to_owned()).spawn(work);
        Some(ReceiverShutdown { ended, thread: thread.ok()? })
    }
}

/// The time since the last report of a router.
fn age(report: &RouterReport) -> Duration {
    // Only the wall clock knows a report from before the start of the host.
    if report.moment == Moment::new(Duration::ZERO) {
        return report.at.elapsed().unwrap_or_default();
    }
    clock::now().since(report.moment)
}

/// A receiver that is shutting down. The descriptor becomes readable when it has ended.
#[derive(Debug)]
pub(crate) struct ReceiverShutdown {
    /// BOUND: one entry, when the thread ends.
    ended: WakeQueue<()>,
    thread: JoinHandle<()>,
}

impl ReceiverShutdown {
    /// Whether the receiver has ended since the last call.
    pub(crate) fn has_ended(&self) -> bool {
        !self.ended.take_all().is_empty()
    }

    /// Blocks until the receiver has ended.
    pub(crate) fn wait(self) {
        let _ = self.thread.join();
    }
}

vipwatch_linux::as_fd!(ReceiverShutdown.ended);

/// The settings of the socket have no effect on a socket of the service manager.
fn warn_of_differences(differences: &[String]) {
    if !differences.is_empty() {
        tracing::warn!(
            differences = differences.join(", "),
            hint = "set ListenStream=, SocketMode=, SocketUser= and SocketGroup= in a drop-in of the socket unit, or disable the socket unit",
            "the socket of the service manager is not as in [receiver]"
        );
    }
}

/// Root and the receiver's own user may report, besides the configured users and groups.
fn policy(config: &ReceiverConfig, keep_undelivered: u64) -> ReceiverPolicy {
    let mut allowed_users = vec![0, rustix::process::geteuid().as_raw()];
    allowed_users.extend(&config.allow.users);
    ReceiverPolicy {
        allowed_users,
        allowed_groups: config.allow.groups.clone(),
        debounce_interval: config.interval,
        keep_undelivered,
        ..ReceiverPolicy::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wall_clock_that_is_set_does_not_change_the_age_of_a_report() {
        let now = clock::now();
        let report = |days: u64, moment| RouterReport {
            at: SystemTime::now() - Duration::from_hours(24 * days),
            moment,
            state: vipwatch_core::debounce::ReportedState::Primary,
            settled: None,
            is_held: false,
            reports: 1,
            acted_seq: 0,
        };
        assert!(age(&report(40, now)) < Duration::from_mins(1));
        let before_boot = now.before(Duration::MAX);
        assert!(age(&report(40, before_boot)) >= STATE_RETENTION);
        assert!(age(&report(20, before_boot)) < STATE_RETENTION);
    }
}
