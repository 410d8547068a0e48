// SPDX-License-Identifier: Apache-2.0
//! The receiver: the server on the unix socket to which Neutron's state-change monitors report.
//!
//! ```text
//!   monitor ──▶ request ──▶ server ──▶ journal (fsync) ──▶ 200
//!                              │
//!                              └──▶ report_states (debounce) ──▶ SettledReport ──▶ ReportSink
//! ```
//!
//! It is a crate of its own because it is a trust boundary: reports come from other processes. A reported state is
//! shown beside the kernel's state and never replaces it. Delivery to hooks, webhooks and the upstream is not part of
//! this crate: the node implements [`ReportSink`].
//!
//! [`simulate`] serves the same socket the way Neutron's own agents do, including their failures, to test a
//! monitor without OpenStack.

mod control;
pub mod journal;
mod policy;
pub mod reply;
mod report_sink;
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
use vipwatch_linux::process::reserve_descriptors;
use vipwatch_linux::worker::spawn_worker;

use crate::control::{ControlMessage, ControlQueue};
use crate::journal::{Journal, JournalError};
pub use crate::policy::ReceiverPolicy;
pub use crate::report_sink::{ReportSink, SettledReport};
pub use crate::report_states::RouterReport;
pub use crate::server::ReceiverView;
use crate::server::{Server, ServerParts};

/// Key in [`ReceiverView::problems`]: the journal cannot be opened or written.
pub const JOURNAL_PROBLEM: &str = "journal";

/// Key in [`ReceiverView::problems`]: another version has written the journal, and a new file was begun.
pub const JOURNAL_FORMAT_PROBLEM: &str = "journal-format";

/// Key in [`ReceiverView::problems`]: the socket file was removed or replaced.
pub const SOCKET_PROBLEM: &str = "socket";

/// Open files that the process needs besides one for each connection.
const OTHER_OPEN_FILES: u64 = 64;

/// Configuration of a receiver.
#[derive(Debug)]
pub struct ReceiverSettings {
    /// Path of the unix socket.
    pub socket: PathBuf,
    /// Whether the receiver opens the socket or inherits it.
    pub listen_source: ListenSource,
    /// Mode, owner and backlog of the socket.
    pub options: SocketOptions,
    /// Access rights, time limits and debounce interval.
    pub policy: ReceiverPolicy,
    /// Directory of the journal.
    pub journal_dir: PathBuf,
}

/// Where the listening socket comes from.
#[derive(Debug)]
pub enum ListenSource {
    /// The receiver opens the socket, and removes its file at the end.
    New,
    /// The service manager has opened the socket and keeps it (`LISTEN_FDS`).
    Given(OwnedFd),
}

/// Why a receiver could not be started.
#[derive(Debug, thiserror::Error)]
pub enum ReceiverError {
    /// The socket could not be opened.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The journal could not be opened.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A thread, a directory or a descriptor could not be created.
    #[error("cannot start the receiver")]
    Start(#[source] io::Error),
}

/// Handle of a running receiver. Dropping it stops the receiver.
#[derive(Debug)]
pub struct Receiver {
    view: Arc<Mutex<ReceiverView>>,
    control: ControlQueue,
    /// `None` only while the receiver is dropped.
    thread: Option<JoinHandle<()>>,
    /// `None`: the socket belongs to the service manager, which removes its file.
    socket: Option<SocketFile>,
}

impl Receiver {
    /// Starts the receiver thread, which gives settled reports to `sink`; those of the previous process first.
    pub fn start(
        settings: ReceiverSettings,
        sink: Box<dyn ReportSink>,
    ) -> Result<Self, ReceiverError> {
        let ReceiverSettings { socket, listen_source, options, policy, journal_dir } = settings;
        // ORDER: slow steps come before the socket, so that the first monitor that connects gets a quick answer.
        // The stored reports are delivered after the socket is open: if another receiver has the socket, this
        // process must deliver nothing.
        let used_seq = sink.concluded_seqs().into_values().max().unwrap_or(0);
        let (journal, stored) = Journal::open(&journal_dir, used_seq)?;
        reserve_descriptors(policy.max_connections as u64 + OTHER_OPEN_FILES);
        let control = ControlQueue::new().map_err(ReceiverError::Start)?;
        let (listener, socket) = match listen_source {
            ListenSource::New => {
                let BoundSocket { listener, file } = listen_at(&socket, options)?;
                (listener, Some(file))
            }
            ListenSource::Given(listener) => (listener, None),
        };
        let parts = ServerParts { listener, control: control.clone(), policy, journal, sink };
        let server = Server::new(parts, stored).map_err(ReceiverError::Start)?;
        let view = server.view();
        let thread = spawn_worker("receiver", move |heartbeat| {
            if let Err(error) = server.run(heartbeat) {
                tracing::error!(%error, "receiver thread failed");
            }
        });
        let thread = thread.map_err(ReceiverError::Start)?;
        Ok(Self { view, control, thread: Some(thread), socket })
    }

    /// The counters and reported states, which the receiver thread updates.
    pub fn view(&self) -> Arc<Mutex<ReceiverView>> {
        Arc::clone(&self.view)
    }

    /// Replaces the policy. Open connections keep their deadlines.
    pub fn set_policy(&self, policy: ReceiverPolicy) {
        self.control.push(ControlMessage::SetPolicy(policy));
    }

    /// Listens on `socket` with `options` from now on. Open connections are served to their end. On an error the
    /// receiver keeps its old socket. A socket of the service manager is left unchanged.
    pub fn move_to(&mut self, socket: &Path, options: SocketOptions) -> Result<(), ListenError> {
        match &self.socket {
            None => Ok(()),
            Some(before) if before.path() == socket => before.set_permissions(options),
            Some(before) => {
                let BoundSocket { listener, file } = listen_at(socket, options)?;
                // ORDER: the old file is removed while the old listener is open. The open listener keeps the inode
                // number from being used again, so that no file of another process is removed.
                before.remove();
                self.control.push(ControlMessage::Listen(listener));
                self.socket = Some(file);
                Ok(())
            }
        }
    }

    /// Checks that the file at the socket's path is still the one that this receiver has created. A difference is
    /// logged once and shown in [`ReceiverView::problems`].
    pub fn check_socket(&self) {
        let lost = self.socket.as_ref().and_then(|file| file.check().err());
        let problem = lost.map(|lost| lost.to_string());
        let Ok(mut view) = self.view.lock() else { return };
        if problem.as_ref() != view.problems.get(SOCKET_PROBLEM) {
            if let Some(problem) = &problem {
                tracing::error!(problem, "monitors cannot report");
            } else {
                tracing::info!("socket file restored: monitors can report again");
            }
        }
        view.set_problem(SOCKET_PROBLEM, problem);
    }

    /// Whether the socket belongs to the service manager.
    pub fn is_given(&self) -> bool {
        self.socket.is_none()
    }

    /// Deletes everything that is stored about these instances.
    pub fn forget(&self, instances: Vec<InstanceId>) {
        self.control.push(ControlMessage::Forget(instances));
    }

    /// Whether the receiver thread runs.
    pub fn is_alive(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }
}

impl Drop for Receiver {
    /// Returns when the thread has ended. All acknowledged reports are then on the disk.
    fn drop(&mut self) {
        if let Some(file) = &self.socket {
            file.remove();
        }
        self.control.push(ControlMessage::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
