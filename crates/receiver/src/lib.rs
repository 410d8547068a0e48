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

mod books;
pub mod journal;
mod orders;
pub mod reply;
pub mod request;
mod server;
pub mod simulate;

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use vipwatch_core::InstanceId;
use vipwatch_linux::listen::{Bound, ListenError, Looks, SocketFile, listen_at};
use vipwatch_linux::process::make_room_for_files;
use vipwatch_linux::worker::spawn_worker;

pub use crate::books::Standing;
pub use crate::journal::Ledger;
use crate::journal::{Journal, JournalError};
use crate::orders::{Order, Orders};
use crate::server::Server;
pub use crate::server::{Audience, Policy, Settled, View};

/// The name of the problem that the socket's file is not the receiver's any more.
const SOCKET_PROBLEM: &str = "socket";

/// Where and how to listen.
#[derive(Debug)]
pub struct Settings {
    /// The socket's name.
    pub socket: PathBuf,
    /// Where the socket comes from.
    pub entrance: Entrance,
    /// How the socket looks.
    pub looks: Looks,
    /// Who may report, and how soon it is acted on.
    pub policy: Policy,
    /// Where the journal is kept.
    pub directory: PathBuf,
}

/// Where a socket that listens comes from.
#[derive(Debug)]
pub enum Entrance {
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
    view: Arc<Mutex<View>>,
    orders: Orders,
    thread: Option<JoinHandle<()>>,
    /// `None`: the socket is a service manager's, who removes it.
    socket: Option<SocketFile>,
}

impl Receiver {
    /// Begins to receive. `audience` makes those who are told, and what was promised before is told
    /// first.
    pub fn start(
        settings: Settings,
        audience: impl FnOnce(Ledger) -> io::Result<Box<dyn Audience>>,
    ) -> Result<Self, ReceiverError> {
        let Settings { socket, entrance, looks, policy, directory } = settings;
        // ORDER: what takes time and can be done before the socket. Whoever connects finds somebody who can promise,
        // and soon. But nobody is told what holds before the socket is ours.
        let (journal, memory) = Journal::open(&directory)?;
        // Each connection, and what a process has besides.
        make_room_for_files(policy.connections as u64 + 64);
        let orders = Orders::new().map_err(ReceiverError::Start)?;
        let audience = audience(journal.ledger()).map_err(ReceiverError::Start)?;
        let (listener, ours) = match entrance {
            Entrance::New => {
                let Bound { listener, file } = listen_at(&socket, looks)?;
                (listener, Some(file))
            }
            Entrance::Given(listener) => (listener, None),
        };
        let server = Server::new(listener, orders.clone(), policy, (journal, memory), audience);
        let server = server.map_err(ReceiverError::Start)?;
        let view = server.view();
        let thread = spawn_worker("receiver", move |heartbeat| {
            if let Err(error) = server.run(heartbeat) {
                tracing::error!(%error, "the receiver has ended");
            }
        });
        let thread = thread.map_err(ReceiverError::Start)?;
        Ok(Self { view, orders, thread: Some(thread), socket: ours })
    }

    /// What is counted and known.
    pub fn view(&self) -> Arc<Mutex<View>> {
        Arc::clone(&self.view)
    }

    /// From now on, this holds.
    pub fn set_policy(&self, policy: Policy) {
        self.orders.put(Order::Policy(policy));
    }

    /// From now on, monitors report at `socket`, which looks so; whoever is being served is served. What cannot
    /// be had leaves it as it was.
    pub fn move_to(&mut self, socket: &Path, looks: Looks) -> Result<(), ListenError> {
        match &self.socket {
            // Not ours to move.
            None => Ok(()),
            Some(before) if before.path() == socket => before.set_permissions(looks),
            Some(before) => {
                let Bound { listener, file } = listen_at(socket, looks)?;
                // ORDER: the file goes before the listener, which keeps its inode from being used again.
                before.remove();
                self.orders.put(Order::Listen(listener));
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
        self.orders.put(Order::Forget(instances));
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
        self.orders.put(Order::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
