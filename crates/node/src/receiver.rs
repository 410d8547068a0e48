//! The receiver with its duties, as `vipwatch agent` and a node have it.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use vipwatch_core::InstanceId;
use vipwatch_linux::file::is_storage_error;
use vipwatch_linux::wake_queue::WakeQueue;
use vipwatch_receiver::{
    ListenSource, Receiver, ReceiverError, ReceiverPolicy, ReceiverSettings, ReceiverView,
    RouterReport, SettledReport,
};

use crate::config::AgentConfig;
use crate::notify::report_notifier::{DeliveryLog, ReportNotifier};

/// How often those are looked for who are gone, and for how long they must be.
const TIDYING: Duration = Duration::from_hours(24);
const FORGOTTEN: Duration = Duration::from_hours(30 * 24);

/// A receiver that runs, and does its duties.
pub struct ReceiverService {
    receiver: Receiver,
    report_notifier: ReportNotifier,
    claims: ReportedStates,
    config: AgentConfig,
    tidied: Option<Instant>,
}

/// What is known here of what monitors claim.
#[derive(Debug, Clone)]
pub struct ReportedStates {
    /// What was claimed and settled.
    pub view: Arc<Mutex<ReceiverView>>,
    /// Who was told of it.
    pub notes: Arc<DeliveryLog>,
    /// Since when monitors can report.
    pub since: SystemTime,
}

/// Where whoever asks finds the claims, if there are any; another reception may take the place of one.
#[derive(Debug, Clone, Default)]
pub struct ReceiverHandle(Arc<Mutex<Option<ReportedStates>>>);

impl ReceiverHandle {
    /// What is known, now.
    pub fn claims(&self) -> Option<ReportedStates> {
        self.0.lock().ok()?.clone()
    }

    /// From now on it is known here.
    pub fn set(&self, claims: Option<ReportedStates>) {
        if let Ok(mut place) = self.0.lock() {
            *place = claims;
        }
    }

    /// What is claimed of one instance.
    pub fn claim(&self, id: &InstanceId) -> Option<RouterReport> {
        self.claims()?.view.lock().ok()?.instances.get(id).cloned()
    }
}

/// What every reception of a process has in common.
#[derive(Debug, Clone)]
pub struct ServiceContext {
    /// Where the journal is kept.
    pub directory: PathBuf,
    /// This node's name.
    pub node: Arc<str>,
    /// Programs that may run at a time.
    pub hooks_at_once: usize,
}

impl ReceiverService {
    /// Opens.
    pub fn open(
        config: &AgentConfig,
        service_context: &ServiceContext,
        listen_source: ListenSource,
    ) -> Result<Self, ReceiverError> {
        match std::fs::create_dir_all(&service_context.directory) {
            // The journal says so, and tries again.
            Err(error) if is_storage_error(&error) => {}
            made => made.map_err(ReceiverError::Start)?,
        }
        let settings = ReceiverSettings {
            socket: config.socket.clone(),
            listen_source,
            options: config.options,
            policy: policy(config),
            directory: service_context.directory.clone(),
        };
        let mut kept = None;
        let receiver = Receiver::start(settings, |ledger| {
            let notes = Arc::new(DeliveryLog::new(ledger));
            let report_notifier = ReportNotifier::new(
                service_context.hooks_at_once,
                Arc::clone(&service_context.node),
                Arc::clone(&notes),
            );
            // What holds is recalled by the receiver, with who was told of it.
            report_notifier.configure(config, Vec::new)?;
            kept = Some((notes, report_notifier.clone()));
            Ok(Box::new(report_notifier))
        })?;
        let (notes, report_notifier) =
            kept.expect("a receiver that started has asked for its audience");
        let claims = ReportedStates { view: receiver.view(), notes, since: SystemTime::now() };
        let (config, tidied) = (config.clone(), None);
        Ok(Self { receiver, report_notifier, claims, config, tidied })
    }

    /// Takes another configuration while it receives; what cannot be had of it leaves it as it was. Nobody who
    /// is about to report notices.
    pub fn configure(&mut self, config: &AgentConfig) -> Result<(), ReceiverError> {
        let mut config = config.clone();
        let is_moved = config.socket != self.config.socket || config.options != self.config.options;
        if is_moved && self.receiver.is_given() {
            tracing::warn!("the socket is a service manager's: how it looks is not ours to change");
        } else if is_moved {
            self.receiver.move_to(&config.socket, config.options)?;
        }
        if is_moved && self.receiver.is_given() {
            (config.socket, config.options) = (self.config.socket.clone(), self.config.options);
        }
        self.receiver.set_policy(policy(&config));
        self.config = config;
        // ORDER: what is shown is read while nobody is told: see `receiver::server`.
        self.report_notifier
            .configure(&self.config, || self.settled())
            .map_err(ReceiverError::Start)
    }

    /// Everything that was ever acted on, as it holds now.
    fn settled(&self) -> Vec<SettledReport> {
        let Ok(view) = self.claims.view.lock() else { return Vec::new() };
        let each = view.instances.iter().filter(|(_, role)| role.acted > 0);
        let each = each.filter_map(|(instance, role)| {
            let (instance, seq, at) = (instance.clone(), role.acted, role.at);
            Some(SettledReport { instance, state: role.settled?, from: None, seq, at })
        });
        each.collect()
    }

    /// Forgets, once a day, who has not been heard of for a month and is not there any more, as `is_known` and
    /// Neutron's directory say.
    pub fn tidy(&mut self, is_known: impl Fn(&InstanceId) -> bool) {
        let is_time = self.tidied.is_none_or(|tidied| tidied.elapsed() >= TIDYING);
        if !is_time {
            return;
        }
        self.tidied = Some(Instant::now());
        let confs = self.config.state_path.join("ha_confs");
        let is_gone = |(id, role): &(&InstanceId, &RouterReport)| {
            role.at.elapsed().is_ok_and(|age| age >= FORGOTTEN)
                && !is_known(id)
                && !confs.join(id.as_str()).exists()
        };
        let gone: Vec<InstanceId> = match self.claims.view.lock() {
            Ok(view) => view.instances.iter().filter(is_gone).map(|(id, _)| id.clone()).collect(),
            Err(_) => Vec::new(),
        };
        if !gone.is_empty() {
            tracing::info!(count = gone.len(), "routers that are gone for a month are forgotten");
            self.receiver.forget(gone);
        }
    }

    /// Looks whether the socket's file is still this receiver's; see [`Receiver::check_socket`].
    pub fn check_socket(&self) {
        self.receiver.check_socket();
    }

    /// How it is configured.
    pub fn config(&self) -> &AgentConfig {
        &self.config
    }

    /// Where monitors report.
    pub fn socket(&self) -> &Path {
        if self.receiver.is_given() {
            return Path::new("(a service manager's)");
        }
        &self.config.socket
    }

    /// What is known.
    pub fn claims(&self) -> ReportedStates {
        self.claims.clone()
    }

    /// Whether it still receives.
    pub fn is_alive(&self) -> bool {
        self.receiver.is_alive()
    }

    /// Shuts it down on a thread of its own. `None`: there is no such thread, and it has shut down.
    pub(crate) fn close(self) -> Option<ReceiverShutdown> {
        let ended = WakeQueue::new().ok()?;
        let theirs = ended.clone();
        let work = move || {
            drop(self);
            tracing::info!("the receiver has shut down");
            theirs.put(());
        };
        // Without a thread, the closure and the receiver in it are dropped here.
        let thread = std::thread::Builder::new().name("receiver-close".to_owned()).spawn(work);
        Some(ReceiverShutdown { ended, thread: thread.ok()? })
    }
}

/// A receiver that is shutting down. The descriptor can be read when it has.
#[derive(Debug)]
pub(crate) struct ReceiverShutdown {
    /// BOUND: one entry, when the thread ends.
    ended: WakeQueue<()>,
    thread: JoinHandle<()>,
}

impl ReceiverShutdown {
    pub(crate) fn has_ended(&self) -> bool {
        !self.ended.take().is_empty()
    }

    pub(crate) fn wait(self) {
        let _ = self.thread.join();
    }
}

impl AsFd for ReceiverShutdown {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ended.as_fd()
    }
}

fn policy(config: &AgentConfig) -> ReceiverPolicy {
    let mut users = vec![0, rustix::process::geteuid().as_raw()];
    users.extend(&config.allow.users);
    let groups = config.allow.groups.clone();
    ReceiverPolicy { users, groups, interval: config.interval, ..ReceiverPolicy::default() }
}
