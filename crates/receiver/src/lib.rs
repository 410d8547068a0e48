//! What an agent does: the other end of the socket that monitors report to.
//!
//! ```text
//!   monitor ──▶ request ──▶ server ──▶ journal (on the disk) ──▶ 200
//!                              │
//!                              └──▶ Docket (held back? taken back?) ──▶ Settled ──▶ whoever wants to know
//! ```
//!
//! A room of its own because it is a trust boundary: what comes in is what another process says. A report
//! is a claim, and is shown beside what the kernel says, never instead of it.
//!
//! [`simulate`] is the same socket in the manner of Neutron's own servers, and of every way in which they
//! can fail, for whoever wants to test a monitor without OpenStack.

pub mod journal;
pub mod reply;
pub mod request;
pub mod server;
pub mod simulate;

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, eventfd};
use vipwatch_linux::listen::{ListenError, Looks, listen_at};

use crate::journal::{Journal, JournalError};
pub use crate::server::{Policy, Server, Settled, Standing, Tell, View};

/// Where and how to listen.
#[derive(Debug)]
pub struct Settings {
    /// The socket.
    pub socket: PathBuf,
    /// A socket that listens already, from a service manager; `socket` is its name then.
    pub listener: Option<OwnedFd>,
    /// How the socket looks.
    pub looks: Looks,
    /// Who may report, and how soon it is acted on.
    pub policy: Policy,
    /// Where the journal is kept.
    pub directory: PathBuf,
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
    stop: OwnedFd,
    thread: Option<JoinHandle<io::Result<()>>>,
    /// The socket's name, if it is ours to remove.
    socket: Option<PathBuf>,
}

impl Receiver {
    /// Begins to receive. What was promised before is told first.
    pub fn start(settings: Settings, tell: Tell) -> Result<Self, ReceiverError> {
        let Settings { socket, listener, looks, policy, directory } = settings;
        // ORDER: the journal before the socket. Whoever connects finds somebody who can promise.
        let journal = Journal::open(&directory)?;
        let ours = listener.is_none().then(|| socket.clone());
        let listener = match listener {
            Some(listener) => listener,
            None => listen_at(&socket, looks)?,
        };
        let start = |errno: rustix::io::Errno| ReceiverError::Start(errno.into());
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let stop = eventfd(0, flags).map_err(start)?;
        let theirs = stop.try_clone().map_err(ReceiverError::Start)?;
        let server = Server::new(listener, theirs, policy, journal, tell);
        let server = server.map_err(ReceiverError::Start)?;
        let view = server.view();
        let thread = std::thread::Builder::new()
            .name("receiver".to_owned())
            .spawn(move || server.run())
            .map_err(ReceiverError::Start)?;
        Ok(Self { view, stop, thread: Some(thread), socket: ours })
    }

    /// What is counted and known.
    pub fn view(&self) -> Arc<Mutex<View>> {
        Arc::clone(&self.view)
    }

    /// Whether it still receives.
    pub fn is_alive(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }
}

impl Drop for Receiver {
    /// What was promised is on the disk when this returns.
    fn drop(&mut self) {
        if let Some(socket) = &self.socket {
            let _ = std::fs::remove_file(socket);
        }
        let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
