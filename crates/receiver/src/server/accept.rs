// SPDX-License-Identifier: Apache-2.0
//! Accepts connections: which users may report, and which connection is closed when there are too many.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketFlags, accept_with, recv, send};
use vipwatch_core::Moment;
use vipwatch_linux::{clock, peer};

use super::connection::Connection;
use super::{LISTENER_TOKEN, Server};
use crate::reply::Reply;

/// Maximum number of open connections of users that may not report. Further ones get their 403 at once.
const MAX_FORBIDDEN_CONNECTIONS: usize = 32;

/// How long the server does not accept connections after `accept` has failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Connections accepted in one round of the loop, before the server replies to stored reports.
const MAX_ACCEPTS_PER_ROUND: usize = 64;

impl Server {
    /// Accepts the connections in the backlog.
    pub(super) fn accept(&mut self) {
        for _ in 0..MAX_ACCEPTS_PER_ROUND {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match accept_with(&self.listener, flags) {
                Ok(socket) => {
                    if std::mem::take(&mut self.is_accept_failure_logged) {
                        tracing::info!("connections are accepted again");
                    }
                    self.admit(socket);
                }
                // ECONNABORTED: the peer has closed the connection before it was accepted.
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => return,
                Err(errno) => {
                    if !self.close_oldest_idle() {
                        self.pause_accepting(errno);
                    }
                    return;
                }
            }
        }
    }

    /// Begins to serve a connection, or rejects it with 403 or 503.
    fn admit(&mut self, socket: OwnedFd) {
        let user = peer::credentials(&socket).ok().map(|peer| peer.user);
        let is_forbidden = !self.may_report(&socket, user);
        if is_forbidden {
            self.reject(user, "forbidden", "user not in \"allow\"");
            if self.forbidden_connections() >= MAX_FORBIDDEN_CONNECTIONS {
                let _ = send(&socket, &Reply::Forbidden.bytes(false), SendFlags::NOSIGNAL);
                return;
            }
        }
        let is_full = self.connections.len() >= self.policy.max_connections;
        if is_full && !self.close_oldest_idle() {
            let reply = Reply::Unavailable("too many connections".to_owned());
            let _ = send(&socket, &reply.bytes(false), SendFlags::NOSIGNAL);
            self.change_view(|view| view.unavailable += 1);
            return;
        }
        let token = self.next_token;
        self.next_token += 1;
        let connection = Connection {
            socket,
            user,
            bytes: Vec::new(),
            is_forbidden,
            is_storing: false,
            is_polled: false,
            deadline: clock::now() + self.policy.request_timeout,
        };
        self.connections.insert(token, connection);
        self.read(token);
        self.await_request(token);
    }

    /// Whether the process at the other end of `socket` may report.
    fn may_report(&self, socket: &OwnedFd, user: Option<u32>) -> bool {
        let is_member = |group: &u32| peer::is_member(socket, *group).unwrap_or(false);
        user.is_some_and(|user| self.policy.allowed_users.contains(&user))
            || self.policy.allowed_groups.iter().any(is_member)
    }

    fn forbidden_connections(&self) -> usize {
        self.connections.values().filter(|connection| connection.is_forbidden).count()
    }

    /// Stops polling the listener for [`ACCEPT_PAUSE`]: the process has no free descriptor or no memory, and
    /// `epoll` would report the waiting connections again at once. They stay in the backlog.
    fn pause_accepting(&mut self, errno: Errno) {
        if !std::mem::replace(&mut self.is_accept_failure_logged, true) {
            let error = io::Error::from(errno);
            tracing::error!(%error, "cannot accept connections");
        }
        let _ = epoll::delete(&self.epoll, &self.listener);
        self.accept_paused_until = Some(clock::now() + ACCEPT_PAUSE);
    }

    /// Polls the listener again when the pause is over.
    pub(super) fn resume_accepting(&mut self, now: Moment) {
        if self.accept_paused_until.is_some_and(|until| until <= now) {
            self.accept_paused_until = None;
            let data = epoll::EventData::new_u64(LISTENER_TOKEN);
            let _ = epoll::add(&self.epoll, &self.listener, data, epoll::EventFlags::IN);
        }
    }

    /// Closes the oldest connection that has sent nothing; false if there is none.
    fn close_oldest_idle(&mut self) -> bool {
        let is_idle = |connection: &Connection| {
            let mut byte = [0_u8; 1];
            let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
            // The kernel may have bytes that the server has not read yet.
            !connection.has_request()
                && !recv(&connection.socket, &mut byte, flags).is_ok_and(|(length, _)| length > 0)
        };
        let idle = self.connections.iter().find(|(_, connection)| is_idle(connection));
        let Some(token) = idle.map(|(token, _)| *token) else { return false };
        self.connections.remove(&token);
        self.count_rejected("made_room");
        true
    }
}
