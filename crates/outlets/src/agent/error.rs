// SPDX-License-Identifier: Apache-2.0
//! Why a report to the agent failed, and what that means for its delivery.

use std::io;
use std::path::PathBuf;

use vipwatch_core::DeliveryFailure;

use super::ANSWER_TIMEOUT;

/// Why a report did not reach the agent.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// `ENOENT`: the agent has not started, or has removed its socket.
    #[error("there is no socket at {}", .0.display())]
    Missing(PathBuf),
    /// `ECONNREFUSED`: the agent has ended, or does not listen yet.
    #[error("no agent is listening on {}", .0.display())]
    Refused(PathBuf),
    /// `EAGAIN`: the backlog of the agent's socket is full.
    #[error("the queue of {} is full", .0.display())]
    Busy(PathBuf),
    /// `EACCES`: this process may not connect to the socket.
    #[error("no permission to connect to {}", .0.display())]
    NotPermitted(PathBuf),
    /// The file at the path of the socket is not a socket.
    #[error("{} is not a socket", .0.display())]
    NotASocket(PathBuf),
    /// The socket file belongs neither to root nor to the agent's user.
    #[error("{} belongs to user {user}, not to the agent's user or root", path.display())]
    ForeignOwner {
        /// The socket.
        path: PathBuf,
        /// The owner's user id.
        user: u32,
    },
    /// The process that listens runs neither as root nor as the agent's user.
    #[error("{} is served by user {user}, not by the agent's user or root", path.display())]
    ForeignServer {
        /// The socket.
        path: PathBuf,
        /// The user id of the listening process.
        user: u32,
    },
    /// `EPIPE`: the agent closed the connection before the report was sent.
    #[error("the agent closed the connection before the report was sent (broken pipe)")]
    Broken,
    /// `ECONNRESET`: the agent closed the connection without reading the report.
    #[error("the agent reset the connection")]
    Reset,
    /// The agent accepted the connection and did not answer in time.
    #[error("the agent did not answer within {} s", ANSWER_TIMEOUT.as_secs())]
    Timeout,
    /// The agent closed the connection without an answer.
    #[error("the agent closed the connection without an answer")]
    Closed,
    /// The answer could not be read from the socket.
    #[error("cannot read the agent's answer")]
    Unreadable(#[source] io::Error),
    /// The answer is not HTTP.
    #[error("the agent's answer is not HTTP")]
    Garbage,
    /// The agent answered with a status outside 200 to 299 and 400 to 499.
    #[error("Unexpected response: the agent answered with status {0}")]
    ServerError(u16),
    /// The agent answered with a status from 400 to 499: the agent or this program has a defect.
    #[error(
        "Unexpected response: the agent rejected the request with status {0}; this is a defect"
    )]
    Rejected(u16),
    /// Any other error of the kernel.
    #[error("cannot communicate with the agent on {}", path.display())]
    Socket {
        /// The socket.
        path: PathBuf,
        /// The error of the kernel.
        source: io::Error,
    },
}

impl AgentError {
    /// The kind of failure, which decides when the delivery is retried.
    pub fn delivery_failure(&self) -> DeliveryFailure {
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
