//! The receiver with its duties, as `vipwatch agent` and a node have it.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use vipwatch_core::InstanceId;
use vipwatch_receiver::{Entrance, Policy, Receiver, ReceiverError, Settings, Standing, View};

use crate::config::AgentConfig;
use crate::duty::{Duties, Notes};

/// A receiver that runs, and does its duties.
#[derive(Debug)]
pub struct Reception {
    receiver: Receiver,
    claims: Claims,
    config: AgentConfig,
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
        std::fs::create_dir_all(&house.directory).map_err(ReceiverError::Start)?;
        let mut users = vec![0, rustix::process::geteuid().as_raw()];
        users.extend(&config.allow);
        let settings = Settings {
            socket: config.socket.clone(),
            entrance,
            looks: config.looks,
            policy: Policy { users, interval: config.interval, ..Policy::default() },
            directory: house.directory.clone(),
        };
        let mut kept = None;
        let receiver = Receiver::start(settings, |ledger| {
            let notes = Arc::new(Notes::new(ledger));
            kept = Some(Arc::clone(&notes));
            let duties = Duties::new(config, house.hooks_at_once, Arc::clone(&house.node), notes);
            duties.map(|duties| Box::new(duties) as Box<_>)
        })?;
        let notes = kept.expect("a receiver that started has asked for its audience");
        let claims = Claims { view: receiver.view(), notes, since: SystemTime::now() };
        Ok(Self { receiver, claims, config: config.clone() })
    }

    /// Opens another one in the place of this one; nobody who is about to report notices. If that cannot
    /// be, it is opened as it was, and it is told why.
    pub fn exchange(
        self,
        config: &AgentConfig,
        house: &House,
    ) -> Result<(Self, Option<ReceiverError>), ReceiverError> {
        let Self { receiver, config: before, .. } = self;
        let is_same = config.socket == before.socket && config.looks == before.looks;
        let entrance = if is_same {
            receiver.hand_over().map_err(ReceiverError::Start)?
        } else {
            drop(receiver);
            Entrance::New
        };
        match Self::open(config, house, entrance) {
            Ok(opened) => Ok((opened, None)),
            Err(error) => Ok((Self::open(&before, house, Entrance::New)?, Some(error))),
        }
    }

    /// How it was opened.
    pub fn config(&self) -> &AgentConfig {
        &self.config
    }

    /// What is known.
    pub fn claims(&self) -> Claims {
        self.claims.clone()
    }

    /// Whether it still receives.
    pub fn is_alive(&self) -> bool {
        self.receiver.is_alive()
    }
}
