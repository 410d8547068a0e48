// SPDX-License-Identifier: Apache-2.0
//! Reports the state to Neutron's L3 agent over its unix socket, without blocking the caller.
//!
//! ```text
//!            connect, check the peer, one write             status line
//!   idle ──────────────────────────────────────▶ waiting ─────────────▶ idle
//!     ▲                    │                        │
//!     └──── backoff ◀──────┴── failure ◀────────────┘ deadline, reset, garbage, 4xx, 5xx
//! ```
//!
//! [`Delivery`] decides when to report, [`wire`] encodes the request, and this module connects, sends and waits.

mod error;
pub mod wire;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv,
    send, socket_with,
};
use vipwatch_core::{Delivery, DeliveryFailure, InstanceId, Jitter, Moment, NeutronState, Outcome};
use vipwatch_linux::{clock, peer};

pub use self::error::AgentError;
use self::wire::AgentAnswer;
use crate::advert_interval::advert_interval;

/// Maximum time from connect to the status line. A healthy agent answers in a millisecond; after this time the report
/// is sent again.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the agent waits before it accepts a primary, if keepalived's configuration does not contain the interval:
/// Neutron's default.
const DEFAULT_WINDOW: Duration = Duration::from_secs(2);

/// Which users may run the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AgentTrust {
    /// Root, and this user id.
    User(u32),
    /// Every user.
    Anyone,
}

impl AgentTrust {
    fn covers(self, user: u32) -> bool {
        match self {
            Self::User(trusted) => user == 0 || user == trusted,
            Self::Anyone => true,
        }
    }
}

/// Returns the word of the agent's protocol for a state: `primary` (older agents: `master`) or `backup`.
pub type StateWords = fn(NeutronState) -> &'static str;

/// Distinguishes a socket file from a later one with the same path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SocketFileId {
    device: u64,
    inode: u64,
    changed_seconds: i64,
    changed_nanoseconds: i64,
}

impl SocketFileId {
    fn of(metadata: &std::fs::Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            changed_seconds: metadata.ctime(),
            changed_nanoseconds: metadata.ctime_nsec(),
        }
    }
}

fn socket_file_at(path: &Path) -> Option<SocketFileId> {
    std::fs::symlink_metadata(path).as_ref().map(SocketFileId::of).ok()
}

/// A request that was sent and not answered yet.
#[derive(Debug)]
struct Exchange {
    state: NeutronState,
    socket: OwnedFd,
    deadline: Moment,
    answer: Vec<u8>,
}

/// The result of an attempt. A failure is reported only if its kind differs from the last one.
#[derive(Debug)]
pub enum AgentOutcome {
    /// The agent acknowledged this state.
    Acknowledged(NeutronState),
    /// The report of this state failed; it will be retried.
    Failed(NeutronState, AgentError),
}

/// Reports the state of one instance to one agent.
#[derive(Debug)]
pub struct AgentOutlet {
    instance: InstanceId,
    path: PathBuf,
    keepalived_conf: PathBuf,
    trust: AgentTrust,
    words: StateWords,
    delivery: Delivery,
    exchange: Option<Exchange>,
    /// The socket file of the last attempt; before the first attempt, the one that existed at the start.
    socket_file: Option<SocketFileId>,
    /// The kind of the last reported failure; `None` after a success.
    failing: Option<std::mem::Discriminant<AgentError>>,
}

/// Settings of an [`AgentOutlet`].
#[derive(Debug)]
pub struct AgentSettings {
    /// The reported instance.
    pub instance: InstanceId,
    /// The path of the agent's socket.
    pub path: PathBuf,
    /// keepalived's configuration of the instance, which contains the advertisement interval.
    pub keepalived_conf: PathBuf,
    /// Which users may run the agent.
    pub trust: AgentTrust,
    /// Returns the word for a state.
    pub words: StateWords,
}

impl AgentOutlet {
    /// An outlet without a report.
    pub fn new(settings: AgentSettings, jitter: Jitter) -> Self {
        let AgentSettings { instance, path, keepalived_conf, trust, words } = settings;
        let window = advert_interval(&keepalived_conf).unwrap_or(DEFAULT_WINDOW);
        Self {
            instance,
            socket_file: socket_file_at(&path),
            path,
            keepalived_conf,
            trust,
            words,
            delivery: Delivery::new(window, jitter),
            exchange: None,
            failing: None,
        }
    }

    /// The path of the agent's socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The delivery policy; the caller sets the state to report with it.
    pub fn delivery(&mut self) -> &mut Delivery {
        &mut self.delivery
    }

    /// Whether the agent has acknowledged the current state, or the report was rejected for good.
    pub fn is_settled(&self) -> bool {
        self.delivery.is_settled()
    }

    /// The socket to poll while a request is not answered; when it is readable, call [`Self::read_answer`].
    pub fn waiting_on(&self) -> Option<BorrowedFd<'_>> {
        self.exchange.as_ref().map(|exchange| exchange.socket.as_fd())
    }

    /// The time of the next work for [`Self::tick`]; `None` if there is none.
    pub fn due(&self) -> Option<Moment> {
        match &self.exchange {
            Some(exchange) => Some(exchange.deadline),
            None => self.delivery.due(),
        }
    }

    /// Checks whether the agent has created a new socket; if so, the current state is reported to it at once.
    pub fn socket_appeared(&mut self) {
        // The caller's event may be older than the last attempt, which then has already reached the new socket.
        let current = socket_file_at(&self.path);
        if current.is_some() && current != self.socket_file {
            self.socket_file = current;
            // An answer of the previous agent is not needed any more.
            if self.exchange.take().is_some() {
                self.delivery.finish(Outcome::Failed(DeliveryFailure::Unanswered), clock::now());
            }
            self.delivery.agent_restarted();
        }
    }

    /// Sends the report that is due, and ends a request without an answer after [`ANSWER_TIMEOUT`].
    pub fn tick(&mut self, now: Moment) -> Option<AgentOutcome> {
        if let Some(exchange) = &self.exchange {
            return (exchange.deadline <= now)
                .then(|| self.finish(Err(AgentError::Timeout), now))
                .flatten();
        }
        let state = self.delivery.begin(now)?;
        match self.send_request(state) {
            Ok(socket) => {
                let answer = Vec::with_capacity(wire::STATUS_BYTES);
                let deadline = now + ANSWER_TIMEOUT;
                self.exchange = Some(Exchange { state, socket, deadline, answer });
                None
            }
            Err(error) => self.conclude(state, Err(error), now),
        }
    }

    /// Reads the received part of the answer, without waiting.
    pub fn read_answer(&mut self, now: Moment) -> Option<AgentOutcome> {
        let exchange = self.exchange.as_mut()?;
        let mut buffer = [0_u8; 256];
        let result = match recv(&exchange.socket, &mut buffer, RecvFlags::DONTWAIT) {
            Err(Errno::AGAIN | Errno::INTR) => return None,
            Err(Errno::CONNRESET) => Err(AgentError::Reset),
            Err(errno) => Err(AgentError::Unreadable(errno.into())),
            Ok((0, _)) => Err(AgentError::Closed),
            Ok((length, _)) => {
                exchange.answer.extend_from_slice(&buffer[..length]);
                match wire::answer(&exchange.answer) {
                    AgentAnswer::Incomplete => return None,
                    AgentAnswer::Status(200..=299) => Ok(()),
                    AgentAnswer::Status(code @ 400..=499) => Err(AgentError::Rejected(code)),
                    AgentAnswer::Status(code) => Err(AgentError::ServerError(code)),
                    AgentAnswer::Garbage => Err(AgentError::Garbage),
                }
            }
        };
        self.finish(result, now)
    }

    /// Connects, checks which user serves the socket, and sends the request in one write.
    fn send_request(&mut self, state: NeutronState) -> Result<OwnedFd, AgentError> {
        let path = &self.path;
        let failed = |errno: Errno| match errno {
            Errno::NOENT | Errno::NOTDIR => AgentError::Missing(path.clone()),
            Errno::CONNREFUSED => AgentError::Refused(path.clone()),
            Errno::AGAIN => AgentError::Busy(path.clone()),
            Errno::ACCESS | Errno::PERM => AgentError::NotPermitted(path.clone()),
            Errno::PIPE => AgentError::Broken,
            Errno::CONNRESET => AgentError::Reset,
            errno => AgentError::Socket { path: path.clone(), source: errno.into() },
        };
        let metadata = std::fs::symlink_metadata(path)
            .map_err(|error| failed(Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
        if !metadata.file_type().is_socket() {
            return Err(AgentError::NotASocket(path.clone()));
        }
        if !self.trust.covers(metadata.uid()) {
            return Err(AgentError::ForeignOwner { path: path.clone(), user: metadata.uid() });
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(failed)?;
        connect(&socket, &SocketAddrUnix::new(path.as_path()).map_err(failed)?).map_err(failed)?;
        // The owner of the file is the user that created it; only the connection shows which user listens now.
        let peer = peer::credentials(&socket)
            .map_err(|source| AgentError::Socket { path: path.clone(), source })?;
        if !self.trust.covers(peer.user) {
            return Err(AgentError::ForeignServer { path: path.clone(), user: peer.user });
        }
        let request = wire::request(&self.instance, (self.words)(state));
        let sent = send(&socket, &request, SendFlags::NOSIGNAL).map_err(failed)?;
        if sent != request.len() {
            return Err(AgentError::Broken);
        }
        self.socket_file = Some(SocketFileId::of(&metadata));
        Ok(socket)
    }

    fn finish(&mut self, result: Result<(), AgentError>, now: Moment) -> Option<AgentOutcome> {
        let exchange = self.exchange.take()?;
        self.conclude(exchange.state, result, now)
    }

    fn conclude(
        &mut self,
        state: NeutronState,
        result: Result<(), AgentError>,
        now: Moment,
    ) -> Option<AgentOutcome> {
        match result {
            Ok(()) => {
                // The agent may have written keepalived's configuration after this process started.
                if let Some(window) = advert_interval(&self.keepalived_conf) {
                    self.delivery.set_window(window);
                }
                self.delivery.finish(Outcome::Acknowledged, now);
                self.failing = None;
                Some(AgentOutcome::Acknowledged(state))
            }
            Err(error) => {
                self.delivery.finish(Outcome::Failed(error.delivery_failure()), now);
                let kind = std::mem::discriminant(&error);
                let is_new = self.failing.replace(kind) != Some(kind);
                is_new.then_some(AgentOutcome::Failed(state, error))
            }
        }
    }
}
