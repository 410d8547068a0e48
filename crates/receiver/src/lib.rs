//! What an agent does: the other end of the socket that monitors report to.
//!
//! ```text
//!   monitor ──▶ request ──▶ server ──▶ journal (on the disk) ──▶ 200
//!                              │
//!                              └──▶ books (held back? taken back?) ──▶ Settled ──▶ Audience
//! ```
//!
//! A room of its own because it is a trust boundary: what comes in is what another process says. A report
//! is a claim, and is shown beside what the kernel says, never instead of it.
//!
//! [`simulate`] is the same socket in the manner of Neutron's own servers, and of every way in which they
//! can fail, for whoever wants to test a monitor without OpenStack.

mod control;
pub mod journal;
pub mod reply;
mod report_states;
pub mod request;
mod server;
pub mod simulate;

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use vipwatch_core::InstanceId;
use vipwatch_linux::listen::{BoundSocket, ListenError, SocketFile, SocketOptions, listen_at};
use vipwatch_linux::process::make_room_for_files;
use vipwatch_linux::worker::spawn_worker;

use crate::control::{ControlMessage, ControlQueue};
pub use crate::journal::DeliveryStore;
use crate::journal::{Journal, JournalError};
pub use crate::report_states::RouterReport;
use crate::server::Server;
pub use crate::server::{ReceiverPolicy, ReceiverView, ReportSink, SettledReport};

/// The name of the problem that the socket's file is not the receiver's any more.
const SOCKET_PROBLEM: &str = "socket";

/// Where and how to listen.
#[derive(Debug)]
pub struct ReceiverSettings {
    /// The socket's name.
    pub socket: PathBuf,
    /// Where the socket comes from.
    pub listen_source: ListenSource,
    /// How the socket looks.
    pub options: SocketOptions,
    /// Who may report, and how soon it is acted on.
    pub policy: ReceiverPolicy,
    /// Where the journal is kept.
    pub directory: PathBuf,
}

/// Where a socket that listens comes from.
#[derive(Debug)]
pub enum ListenSource {
    /// It is made.
    New,
    /// From a service manager, whose it stays.
    Given(OwnedFd),
}

/// Why there is no receiver.
#[derive(Debug, thiserror::Error)]
pub enum ReceiverError {
    /// The socket cannot be had.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// Nothing can be promised.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A thread, or what it needs, cannot be had.
    #[error("cannot start to receive")]
    Start(#[source] io::Error),
}

/// A receiver that runs.
#[derive(Debug)]
pub struct Receiver {
    view: Arc<Mutex<ReceiverView>>,
    control: ControlQueue,
    thread: Option<JoinHandle<()>>,
    /// `None`: the socket is a service manager's, who removes it.
    socket: Option<SocketFile>,
}

impl Receiver {
    /// Begins to receive. `audience` makes those who are told, and what was promised before is told
    /// first.
    pub fn start(
        settings: ReceiverSettings,
        audience: impl FnOnce(DeliveryStore) -> io::Result<Box<dyn ReportSink>>,
    ) -> Result<Self, ReceiverError> {
        let ReceiverSettings { socket, listen_source, options, policy, directory } = settings;
        // ORDER: what takes time and can be done before the socket. Whoever connects finds somebody who can promise,
        // and soon. But nobody is told what holds before the socket is ours.
        let (journal, memory) = Journal::open(&directory)?;
        // Each connection, and what a process has besides.
        make_room_for_files(policy.connections as u64 + 64);
        let control = ControlQueue::new().map_err(ReceiverError::Start)?;
        let audience = audience(journal.ledger()).map_err(ReceiverError::Start)?;
        let (listener, ours) = match listen_source {
            ListenSource::New => {
                let BoundSocket { listener, file } = listen_at(&socket, options)?;
                (listener, Some(file))
            }
            ListenSource::Given(listener) => (listener, None),
        };
        let server = Server::new(listener, control.clone(), policy, (journal, memory), audience);
        let server = server.map_err(ReceiverError::Start)?;
        let view = server.view();
        let thread = spawn_worker("receiver", move |heartbeat| {
            if let Err(error) = server.run(heartbeat) {
                tracing::error!(%error, "the receiver has ended");
            }
        });
        let thread = thread.map_err(ReceiverError::Start)?;
        Ok(Self { view, control, thread: Some(thread), socket: ours })
    }

    /// What is counted and known.
    pub fn view(&self) -> Arc<Mutex<ReceiverView>> {
        Arc::clone(&self.view)
    }

    /// From now on, this holds.
    pub fn set_policy(&self, policy: ReceiverPolicy) {
        self.control.put(ControlMessage::ReceiverPolicy(policy));
    }

    /// From now on, monitors report at `socket`, which looks so; whoever is being served is served. What cannot
    /// be had leaves it as it was.
    pub fn move_to(&mut self, socket: &Path, options: SocketOptions) -> Result<(), ListenError> {
        match &self.socket {
            // Not ours to move.
            None => Ok(()),
            Some(before) if before.path() == socket => before.set_permissions(options),
            Some(before) => {
                let BoundSocket { listener, file } = listen_at(socket, options)?;
                // ORDER: the file goes before the listener, which keeps its inode from being used again.
                before.remove();
                self.control.put(ControlMessage::Listen(listener));
                self.socket = Some(file);
                Ok(())
            }
        }
    }

    /// Looks whether the socket's file is still the one that this receiver has made. A difference is
    /// logged once and shown in the view.
    pub fn check_socket(&self) {
        let lost = self.socket.as_ref().and_then(|file| file.check().err());
        let problem = lost.map(|lost| lost.to_string());
        let Ok(mut view) = self.view.lock() else { return };
        if problem.as_ref() != view.problems.get(SOCKET_PROBLEM) {
            if let Some(problem) = &problem {
                tracing::error!(problem, "monitors cannot report");
            } else {
                tracing::info!("the socket file is this receiver's again");
            }
        }
        view.set_problem(SOCKET_PROBLEM, problem);
    }

    /// Whether the socket is a service manager's.
    pub fn is_given(&self) -> bool {
        self.socket.is_none()
    }

    /// Forgets what was claimed of these.
    pub fn forget(&self, instances: Vec<InstanceId>) {
        self.control.put(ControlMessage::Forget(instances));
    }

    /// Whether it still receives.
    pub fn is_alive(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }
}

impl Drop for Receiver {
    /// What was promised is on the disk when this returns.
    fn drop(&mut self) {
        if let Some(file) = &self.socket {
            file.remove();
        }
        self.control.put(ControlMessage::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
