//! Tells the agent on its unix socket, without ever waiting for it.
//!
//! ```text
//!            connect, check who serves, one write           status line
//!   idle ──────────────────────────────────────▶ waiting ─────────────▶ idle
//!     ▲                    │                        │
//!     └──── backoff ◀──────┴── setback ◀────────────┘ deadline, reset, garbage, 4xx, 5xx
//! ```
//!
//! *When* to speak is [`Delivery`]'s business, *what* is [`wire`]'s; here is how.

pub mod wire;

use std::io;
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

use self::wire::AgentAnswer;
use crate::advert_interval::advert_interval;

/// From connect to the status line. A healthy agent answers in a millisecond; one that is
/// busy for longer than this may as well be asked again.
const DEADLINE: Duration = Duration::from_secs(5);

/// The receiver's window where keepalived's configuration does not tell: Neutron's default.
const DEFAULT_WINDOW: Duration = Duration::from_secs(2);

/// Why the agent does not know.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// `ENOENT`: no agent, or not yet.
    #[error("there is no socket at {}", .0.display())]
    Missing(PathBuf),
    /// `ECONNREFUSED`: the agent died, or has not begun to listen.
    #[error("nobody listens on {}", .0.display())]
    Refused(PathBuf),
    /// `EAGAIN`: its queue is full.
    #[error("the queue of {} is full", .0.display())]
    Busy(PathBuf),
    /// `EACCES`: not for us.
    #[error("no permission to connect to {}", .0.display())]
    NotPermitted(PathBuf),
    /// Something else bears the socket's name.
    #[error("{} is not a socket", .0.display())]
    NotASocket(PathBuf),
    /// Created by somebody who is neither root nor the agent's user.
    #[error("{} belongs to user {user}, not to the agent's user or root", path.display())]
    ForeignOwner {
        /// The socket.
        path: PathBuf,
        /// Its owner.
        user: u32,
    },
    /// Served by somebody who is neither root nor the agent's user.
    #[error("{} is served by user {user}, not by the agent's user or root", path.display())]
    ForeignServer {
        /// The socket.
        path: PathBuf,
        /// Who serves it.
        user: u32,
    },
    /// `EPIPE`: it hung up before it was told.
    #[error("the agent hung up before it was told (broken pipe)")]
    Broken,
    /// `ECONNRESET`: it hung up with our words unread.
    #[error("the agent reset the connection")]
    Reset,
    /// It took the connection and said nothing.
    #[error("the agent did not answer within {} s", DEADLINE.as_secs())]
    Timeout,
    /// It hung up without a word.
    #[error("the agent closed the connection without an answer")]
    Closed,
    /// Its answer could not be read.
    #[error("cannot read the agent's answer")]
    Unreadable(#[source] io::Error),
    /// It answered something that is not HTTP.
    #[error("the agent's answer is not HTTP")]
    Garbage,
    /// It answered with an error of its own.
    #[error("Unexpected response: the agent answered with status {0}")]
    ServerError(u16),
    /// It called the request wrong: one of us has a defect.
    #[error(
        "Unexpected response: the agent rejected the request with status {0}; this is a defect"
    )]
    Rejected(u16),
    /// A failure without a name of its own.
    #[error("cannot talk to {}", path.display())]
    Socket {
        /// The socket.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

impl AgentError {
    /// What the failure means for the delivery.
    pub fn setback(&self) -> DeliveryFailure {
        match self {
            Self::Missing(_) => DeliveryFailure::Absent,
            Self::Busy(_) => DeliveryFailure::Busy,
            Self::Refused(_)
            | Self::NotPermitted(_)
            | Self::NotASocket(_)
            | Self::ForeignOwner { .. }
            | Self::ForeignServer { .. }
            | Self::Socket { .. } => DeliveryFailure::Refusing,
            Self::Broken
            | Self::Reset
            | Self::Timeout
            | Self::Closed
            | Self::Unreadable(_)
            | Self::Garbage
            | Self::ServerError(_) => DeliveryFailure::Unanswered,
            Self::Rejected(_) => DeliveryFailure::Rejected,
        }
    }
}

/// Whom to believe at the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AgentTrust {
    /// Root, and this user.
    User(u32),
    /// Anybody.
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

/// Which words the agent understands.
pub type StateWords = fn(NeutronState) -> &'static str;

/// Tells one socket file from the next one of the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Incarnation(u64, u64, i64, i64);

impl Incarnation {
    fn of(metadata: &std::fs::Metadata) -> Self {
        Self(metadata.dev(), metadata.ino(), metadata.ctime(), metadata.ctime_nsec())
    }
}

fn incarnation_at(path: &Path) -> Option<Incarnation> {
    std::fs::symlink_metadata(path).as_ref().map(Incarnation::of).ok()
}

/// A request that was written and not answered yet.
#[derive(Debug)]
struct Exchange {
    role: NeutronState,
    socket: OwnedFd,
    deadline: Moment,
    answer: Vec<u8>,
}

/// What became of an attempt; failures only when their kind is new.
#[derive(Debug)]
pub enum AgentOutcome {
    /// The agent acknowledged the role.
    Acknowledged(NeutronState),
    /// It did not, and this is news.
    Failed(NeutronState, AgentError),
}

/// The line to one agent, about one instance.
#[derive(Debug)]
pub struct AgentOutlet {
    instance: InstanceId,
    path: PathBuf,
    keepalived_conf: PathBuf,
    trust: AgentTrust,
    words: StateWords,
    delivery: Delivery,
    exchange: Option<Exchange>,
    /// Whom the last attempt reached, or who was there before it.
    incarnation: Option<Incarnation>,
    /// The kind of failure that was said last, while it lasts.
    failing: Option<std::mem::Discriminant<AgentError>>,
}

/// Everything an [`AgentOutlet`] must be told.
#[derive(Debug)]
pub struct AgentSettings {
    /// About whom.
    pub instance: InstanceId,
    /// The agent's socket.
    pub path: PathBuf,
    /// Where the receiver's window can be looked up.
    pub keepalived_conf: PathBuf,
    /// Whom to believe.
    pub trust: AgentTrust,
    /// In which words.
    pub words: StateWords,
}

impl AgentOutlet {
    /// A line on which nothing was said yet.
    pub fn new(settings: AgentSettings, dice: Jitter) -> Self {
        let AgentSettings { instance, path, keepalived_conf, trust, words } = settings;
        let window = advert_interval(&keepalived_conf).unwrap_or(DEFAULT_WINDOW);
        Self {
            instance,
            incarnation: incarnation_at(&path),
            path,
            keepalived_conf,
            trust,
            words,
            delivery: Delivery::new(window, dice),
            exchange: None,
            failing: None,
        }
    }

    /// The agent's socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The policy, to be told what is wanted.
    pub fn delivery(&mut self) -> &mut Delivery {
        &mut self.delivery
    }

    /// Whether the agent knows the role, or will never be told it now.
    pub fn is_settled(&self) -> bool {
        self.delivery.is_settled()
    }

    /// The socket to wait on, while an answer is awaited.
    pub fn waiting_on(&self) -> Option<BorrowedFd<'_>> {
        self.exchange.as_ref().map(|exchange| exchange.socket.as_fd())
    }

    /// When [`Self::tick`] has something to do.
    pub fn due(&self) -> Option<Moment> {
        match &self.exchange {
            Some(exchange) => Some(exchange.deadline),
            None => self.delivery.due(),
        }
    }

    /// Something bears the socket's name that did not before.
    pub fn socket_appeared(&mut self) {
        // The news may be older than our last attempt, which then reached this very one.
        let now_there = incarnation_at(&self.path);
        if now_there.is_some() && now_there != self.incarnation {
            self.incarnation = now_there;
            // Whoever still owes us an answer is not the one that matters now.
            if self.exchange.take().is_some() {
                self.delivery.finish(Outcome::Failed(DeliveryFailure::Unanswered), clock::now());
            }
            self.delivery.agent_restarted();
        }
    }

    /// Begins what is due, ends what has waited too long.
    pub fn tick(&mut self, now: Moment) -> Option<AgentOutcome> {
        if let Some(exchange) = &self.exchange {
            return (exchange.deadline <= now)
                .then(|| self.finish(Err(AgentError::Timeout), now))
                .flatten();
        }
        let role = self.delivery.begin(now)?;
        match self.say(role) {
            Ok(socket) => {
                let answer = Vec::with_capacity(wire::ENOUGH);
                self.exchange = Some(Exchange { role, socket, deadline: now + DEADLINE, answer });
                None
            }
            Err(error) => self.conclude(role, Err(error), now),
        }
    }

    /// Reads the answer, as far as it is there.
    pub fn answered(&mut self, now: Moment) -> Option<AgentOutcome> {
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

    /// Connects, looks who is there, and says `role` in one write.
    fn say(&mut self, role: NeutronState) -> Result<OwnedFd, AgentError> {
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
        // The owner of a file says who made it; only the connection says who answers.
        let peer = peer::credentials(&socket)
            .map_err(|source| AgentError::Socket { path: path.clone(), source })?;
        if !self.trust.covers(peer.user) {
            return Err(AgentError::ForeignServer { path: path.clone(), user: peer.user });
        }
        let request = wire::request(&self.instance, (self.words)(role));
        let sent = send(&socket, &request, SendFlags::NOSIGNAL).map_err(failed)?;
        if sent != request.len() {
            return Err(AgentError::Broken);
        }
        self.incarnation = Some(Incarnation::of(&metadata));
        Ok(socket)
    }

    fn finish(&mut self, result: Result<(), AgentError>, now: Moment) -> Option<AgentOutcome> {
        let exchange = self.exchange.take()?;
        self.conclude(exchange.role, result, now)
    }

    fn conclude(
        &mut self,
        role: NeutronState,
        result: Result<(), AgentError>,
        now: Moment,
    ) -> Option<AgentOutcome> {
        match result {
            Ok(()) => {
                // The agent may have written keepalived's configuration after we started.
                if let Some(window) = advert_interval(&self.keepalived_conf) {
                    self.delivery.set_window(window);
                }
                self.delivery.finish(Outcome::Acknowledged, now);
                self.failing = None;
                Some(AgentOutcome::Acknowledged(role))
            }
            Err(error) => {
                self.delivery.finish(Outcome::Failed(error.setback()), now);
                let kind = std::mem::discriminant(&error);
                let is_news = self.failing.replace(kind) != Some(kind);
                is_news.then_some(AgentOutcome::Failed(role, error))
            }
        }
    }
}
