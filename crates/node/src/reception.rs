//! The receiver with its duties, as `vipwatch agent` and a node have it.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use vipwatch_core::InstanceId;
use vipwatch_linux::file::is_storage_trouble;
use vipwatch_linux::inbox::Inbox;
use vipwatch_receiver::{
    Entrance, Policy, Receiver, ReceiverError, Settings, Settled, Standing, View,
};

use crate::config::AgentConfig;
use crate::duty::{Duties, Notes};

/// How often those are looked for who are gone, and for how long they must be.
const TIDYING: Duration = Duration::from_hours(24);
const FORGOTTEN: Duration = Duration::from_hours(30 * 24);

/// A receiver that runs, and does its duties.
pub struct Reception {
    receiver: Receiver,
    duties: Duties,
    claims: Claims,
    config: AgentConfig,
    tidied: Option<Instant>,
}

/// What is known here of what monitors claim.
#[derive(Debug, Clone)]
pub struct Claims {
    /// What was claimed and settled.
    pub view: Arc<Mutex<View>>,
    /// Who was told of it.
    pub notes: Arc<Notes>,
    /// Since when monitors can report.
    pub since: SystemTime,
}

/// Where whoever asks finds the claims, if there are any; another reception may take the place of one.
#[derive(Debug, Clone, Default)]
pub struct Front(Arc<Mutex<Option<Claims>>>);

impl Front {
    /// What is known, now.
    pub fn claims(&self) -> Option<Claims> {
        self.0.lock().ok()?.clone()
    }

    /// From now on it is known here.
    pub fn set(&self, claims: Option<Claims>) {
        if let Ok(mut place) = self.0.lock() {
            *place = claims;
        }
    }

    /// What is claimed of one instance.
    pub fn claim(&self, id: &InstanceId) -> Option<Standing> {
        self.claims()?.view.lock().ok()?.instances.get(id).cloned()
    }
}

/// What every reception of a process has in common.
#[derive(Debug, Clone)]
pub struct House {
    /// Where the journal is kept.
    pub directory: PathBuf,
    /// This node's name.
    pub node: Arc<str>,
    /// Programs that may run at a time.
    pub hooks_at_once: usize,
}

impl Reception {
    /// Opens.
    pub fn open(
        config: &AgentConfig,
        house: &House,
        entrance: Entrance,
    ) -> Result<Self, ReceiverError> {
        match std::fs::create_dir_all(&house.directory) {
            // The journal says so, and tries again.
            Err(error) if is_storage_trouble(&error) => {}
            made => made.map_err(ReceiverError::Start)?,
        }
        let settings = Settings {
            socket: config.socket.clone(),
            entrance,
            looks: config.looks,
            policy: policy(config),
            directory: house.directory.clone(),
        };
        let mut kept = None;
        let receiver = Receiver::start(settings, |ledger| {
            let notes = Arc::new(Notes::new(ledger));
            let duties =
                Duties::new(house.hooks_at_once, Arc::clone(&house.node), Arc::clone(&notes));
            // What holds is recalled by the receiver, with who was told of it.
            duties.configure(config, Vec::new)?;
            kept = Some((notes, duties.clone()));
            Ok(Box::new(duties))
        })?;
        let (notes, duties) = kept.expect("a receiver that started has asked for its audience");
        let claims = Claims { view: receiver.view(), notes, since: SystemTime::now() };
        let (config, tidied) = (config.clone(), None);
        Ok(Self { receiver, duties, claims, config, tidied })
    }

    /// Takes another configuration while it receives; what cannot be had of it leaves it as it was. Nobody who
    /// is about to report notices.
    pub fn configure(&mut self, config: &AgentConfig) -> Result<(), ReceiverError> {
        let mut config = config.clone();
        let is_moved = config.socket != self.config.socket || config.looks != self.config.looks;
        if is_moved && self.receiver.is_given() {
            tracing::warn!("the socket is a service manager's: how it looks is not ours to change");
        } else if is_moved {
            self.receiver.move_to(&config.socket, config.looks)?;
        }
        if is_moved && self.receiver.is_given() {
            (config.socket, config.looks) = (self.config.socket.clone(), self.config.looks);
        }
        self.receiver.set_policy(policy(&config));
        self.config = config;
        // ORDER: what is shown is read while nobody is told: see `receiver::server`.
        self.duties.configure(&self.config, || self.settled()).map_err(ReceiverError::Start)
    }

    /// Everything that was ever acted on, as it holds now.
    fn settled(&self) -> Vec<Settled> {
        let Ok(view) = self.claims.view.lock() else { return Vec::new() };
        let each = view.instances.iter().filter(|(_, standing)| standing.acted > 0);
        let each = each.filter_map(|(instance, standing)| {
            let (instance, seq, at) = (instance.clone(), standing.acted, standing.at);
            Some(Settled { instance, claim: standing.settled?, from: None, seq, at })
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
        let is_gone = |(id, standing): &(&InstanceId, &Standing)| {
            standing.at.elapsed().is_ok_and(|age| age >= FORGOTTEN)
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
    pub fn claims(&self) -> Claims {
        self.claims.clone()
    }

    /// Whether it still receives.
    pub fn is_alive(&self) -> bool {
        self.receiver.is_alive()
    }

    /// Shuts it down on a thread of its own. `None`: there is no such thread, and it has shut down.
    pub(crate) fn close(self) -> Option<Closing> {
        let ended = Inbox::new().ok()?;
        let theirs = ended.clone();
        let work = move || {
            drop(self);
            tracing::info!("the receiver has shut down");
            theirs.put(());
        };
        // Without a thread, the closure and the receiver in it are dropped here.
        let thread = std::thread::Builder::new().name("receiver-close".to_owned()).spawn(work);
        Some(Closing { ended, thread: thread.ok()? })
    }
}

/// A receiver that is shutting down. The descriptor can be read when it has.
#[derive(Debug)]
pub(crate) struct Closing {
    /// BOUND: one entry, when the thread ends.
    ended: Inbox<()>,
    thread: JoinHandle<()>,
}

impl Closing {
    pub(crate) fn has_ended(&self) -> bool {
        !self.ended.take().is_empty()
    }

    pub(crate) fn wait(self) {
        let _ = self.thread.join();
    }
}

impl AsFd for Closing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ended.as_fd()
    }
}

fn policy(config: &AgentConfig) -> Policy {
    let mut users = vec![0, rustix::process::geteuid().as_raw()];
    users.extend(&config.allow.users);
    let groups = config.allow.groups.clone();
    Policy { users, groups, interval: config.interval, ..Policy::default() }
}
