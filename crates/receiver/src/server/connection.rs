// SPDX-License-Identifier: Apache-2.0
//! Connections of monitors: reads requests, sends replies, and enforces the request timeout.

use std::os::fd::OwnedFd;

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use vipwatch_core::Moment;
use vipwatch_linux::clock;

use super::Server;
use crate::reply::Reply;
use crate::request::{MAX_HEAD_BYTES, RequestProgress, parse};

/// Bytes of one `recv`.
const RECV_BUFFER_BYTES: usize = 4096;

/// Unparsed bytes of one connection after which the server parses them before it reads more.
const MAX_UNPARSED_BYTES: usize = MAX_HEAD_BYTES * 2;

/// One connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) socket: OwnedFd,
    /// The user at the other end; `None` if the kernel did not report one.
    pub(super) user: Option<u32>,
    /// Received bytes that are not parsed yet.
    pub(super) bytes: Vec<u8>,
    /// The peer may not report. The 403 is sent after the first bytes of its request, when the peer will read a
    /// reply.
    pub(super) is_forbidden: bool,
    /// The journal is storing a report of this connection.
    pub(super) is_storing: bool,
    /// The socket is registered with `epoll`. Most monitors have sent everything when they are accepted, so
    /// that their sockets are never registered.
    pub(super) is_polled: bool,
    /// When the request must be complete.
    pub(super) deadline: Moment,
}

impl Connection {
    /// Whether a request has begun and has no reply yet.
    pub(super) fn has_request(&self) -> bool {
        self.is_storing || !self.bytes.is_empty()
    }
}

/// What a read has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReadResult {
    Open,
    /// The peer sends nothing more.
    EndOfStream,
    Failed,
}

impl Server {
    /// Reads the bytes that have arrived on a connection, and processes a complete request.
    pub(super) fn read(&mut self, token: u64) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        if connection.is_storing {
            return;
        }
        let result = receive(connection);
        if result == ReadResult::Failed {
            self.connections.remove(&token);
            return;
        }
        self.process_request(token);
        if result == ReadResult::EndOfStream {
            self.close_unless_storing(token);
        }
    }

    /// Closes a connection on which no more bytes will arrive. If its report is being stored, the peer may still wait
    /// for the reply.
    fn close_unless_storing(&mut self, token: u64) {
        let Some(connection) = self.connections.get(&token) else { return };
        if connection.is_storing {
            return;
        }
        let (is_cut_off, user) = (!connection.bytes.is_empty(), connection.user);
        self.connections.remove(&token);
        if is_cut_off {
            self.reject(user, "cut_off", "connection closed before the request was complete");
        }
    }

    /// Parses the next request of a connection, unless a report of this connection is being stored.
    fn process_request(&mut self, token: u64) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        if connection.is_storing || connection.bytes.is_empty() {
            return;
        }
        if connection.is_forbidden {
            return self.reply(token, &Reply::Forbidden, false);
        }
        match parse(&connection.bytes) {
            RequestProgress::Incomplete => {}
            RequestProgress::Rejected(error) => {
                let user = connection.user;
                self.reject(user, error.label(), &error.to_string());
                self.reply(token, &Reply::BadRequest(error.to_string()), false);
            }
            RequestProgress::Report(report, length) => {
                connection.bytes.drain(..length);
                self.store(token, report);
            }
        }
    }

    /// Sends a reply, then closes the connection, or reads the next request if it `is_keep_alive`.
    pub(super) fn reply(&mut self, token: u64, reply: &Reply, is_keep_alive: bool) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        let bytes = reply.bytes(is_keep_alive);
        let is_sent = send(&connection.socket, &bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
            .is_ok_and(|sent| sent == bytes.len());
        if !is_keep_alive || !is_sent {
            self.connections.remove(&token);
            return;
        }
        self.process_request(token);
        self.await_request(token);
    }

    /// Waits for more bytes of a connection, until the request timeout, unless its report is being stored.
    pub(super) fn await_request(&mut self, token: u64) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        if connection.is_storing {
            return;
        }
        connection.deadline = clock::now() + self.policy.request_timeout;
        self.deadlines.push_back((connection.deadline, token));
        if !connection.is_polled {
            let data = epoll::EventData::new_u64(token);
            let added = epoll::add(&self.epoll, &connection.socket, data, epoll::EventFlags::IN);
            // If the kernel has no memory for it, the deadline closes the connection.
            connection.is_polled = added.is_ok();
        }
    }

    /// Marks a connection while its report is being stored. The kernel keeps further bytes until the reply was sent.
    pub(super) fn stop_polling(&mut self, token: u64) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        connection.is_storing = true;
        if std::mem::take(&mut connection.is_polled) {
            let _ = epoll::delete(&self.epoll, &connection.socket);
        }
    }

    /// Closes connections with a request that was not complete in time; those that have sent something get a 408.
    pub(super) fn close_overdue(&mut self, now: Moment) {
        while let Some((at, token)) = self.deadlines.front().copied().filter(|(at, _)| *at <= now) {
            self.deadlines.pop_front();
            let Some(connection) = self.connections.get(&token) else { continue };
            // The connection has a later deadline, or waits for the journal.
            if connection.deadline != at || connection.is_storing {
                continue;
            }
            if connection.bytes.is_empty() {
                self.connections.remove(&token);
            } else {
                let user = connection.user;
                self.reject(user, "too_slow", "request not complete in time");
                self.reply(token, &Reply::Timeout, false);
            }
        }
    }
}

/// Appends the bytes that have arrived to those of the connection, without waiting.
fn receive(connection: &mut Connection) -> ReadResult {
    let mut buffer = [0_u8; RECV_BUFFER_BYTES];
    loop {
        match recv(&connection.socket, &mut buffer, RecvFlags::DONTWAIT) {
            Ok((0, _)) => return ReadResult::EndOfStream,
            Ok((length, _)) => {
                connection.bytes.extend_from_slice(&buffer[..length]);
                // `epoll` reports the connection again if there is more.
                if length < buffer.len() || connection.bytes.len() > MAX_UNPARSED_BYTES {
                    return ReadResult::Open;
                }
            }
            Err(Errno::AGAIN) => return ReadResult::Open,
            Err(Errno::INTR) => {}
            Err(_) => return ReadResult::Failed,
        }
    }
}
