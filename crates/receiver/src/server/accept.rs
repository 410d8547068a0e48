//! Who is let in, who must make room, and who may not report.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketFlags, accept_with, recv, send};
use vipwatch_core::Moment;
use vipwatch_linux::{clock, peer};

use super::{Connection, LISTENER, Server};
use crate::reply::Reply;

/// Strangers who are heard out at a time, and who are named in the log.
const STRANGERS: usize = 32;

/// How long nobody is let in when that failed.
const RESPITE: Duration = Duration::from_millis(100);

/// How many are let in before those are answered whose reports are on the disk by now.
const AT_A_TIME: usize = 64;

impl Server {
    /// Lets in those who wait.
    pub(super) fn accept(&mut self) {
        // So many that nobody who has something to say waits for those who come.
        for _ in 0..AT_A_TIME {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = match accept_with(&self.listener, flags) {
                Ok(socket) => {
                    self.is_full = false;
                    socket
                }
                // Whoever hung up while he waited.
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(Errno::AGAIN) => return,
                Err(errno) => {
                    if !self.make_room() {
                        self.turn_away(errno);
                    }
                    return;
                }
            };
            let peer = peer::credentials(&socket);
            let user = peer.as_ref().ok().map(|peer| peer.user);
            let is_stranger = !self.may_report(&socket, user);
            if is_stranger {
                self.count("forbidden");
                self.meet_stranger(user);
                if self.strangers() >= STRANGERS {
                    let _ = send(&socket, &Reply::Forbidden.bytes(false), SendFlags::NOSIGNAL);
                    continue;
                }
            }
            if self.connections.len() >= self.policy.connections && !self.make_room() {
                let full = Reply::Unable("too many report at once".to_owned());
                let _ = send(&socket, &full.bytes(false), SendFlags::NOSIGNAL);
                self.amend(|view| view.unable += 1);
                continue;
            }
            let token = self.next;
            self.next += 1;
            let deadline = clock::now() + self.policy.deadline;
            let connection = Connection {
                socket,
                bytes: Vec::new(),
                is_stranger,
                is_promised: false,
                is_watched: false,
                deadline,
            };
            self.connections.insert(token, connection);
            self.read(token);
            self.watch(token);
        }
    }

    /// Whether the process at the other end of `socket` may report.
    fn may_report(&self, socket: &OwnedFd, user: Option<u32>) -> bool {
        let is_member = |group: &u32| peer::is_member(socket, *group).unwrap_or(false);
        user.is_some_and(|user| self.policy.users.contains(&user))
            || self.policy.groups.iter().any(is_member)
    }

    /// Says once of each user that he tried.
    fn meet_stranger(&mut self, user: Option<u32>) {
        if self.known_strangers.len() < STRANGERS && self.known_strangers.insert(user) {
            let user = user.map_or_else(|| "unknown".to_owned(), |user| user.to_string());
            tracing::warn!(user, "may not report here, and tried; --allow, or allow, lets him");
        }
    }

    fn strangers(&self) -> usize {
        self.connections.values().filter(|one| one.is_stranger).count()
    }

    /// Waits for what else somebody has to say, unless a report of his is being promised.
    pub(super) fn watch(&mut self, token: u64) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        if connection.is_promised {
            return;
        }
        connection.deadline = clock::now() + self.policy.deadline;
        self.deadlines.push_back((connection.deadline, token));
        if !connection.is_watched {
            let data = epoll::EventData::new_u64(token);
            let added = epoll::add(&self.waiting, &connection.socket, data, epoll::EventFlags::IN);
            // Without it, his deadline ends it.
            connection.is_watched = added.is_ok();
        }
    }

    /// Nobody can be let in, for want of files or memory: those who wait go on to wait, and we do not
    /// turn in circles meanwhile.
    fn turn_away(&mut self, errno: Errno) {
        if !std::mem::replace(&mut self.is_full, true) {
            tracing::error!("cannot let anybody in: {}", io::Error::from(errno));
        }
        let _ = epoll::delete(&self.waiting, &self.listener);
        self.closed_until = Some(clock::now() + RESPITE);
    }

    /// Lets monitors in again, if it is time.
    pub(super) fn open_again(&mut self, now: Moment) {
        if self.closed_until.is_some_and(|until| until <= now) {
            self.closed_until = None;
            let data = epoll::EventData::new_u64(LISTENER);
            let _ = epoll::add(&self.waiting, &self.listener, data, epoll::EventFlags::IN);
        }
    }

    /// Closes the first of those who came first and are silent; false if everybody has said something.
    fn make_room(&mut self) -> bool {
        let is_silent = |one: &Connection| {
            let mut byte = [0_u8; 1];
            // What he says may be here, and not be read yet.
            one.bytes.is_empty()
                && !one.is_promised
                && !recv(&one.socket, &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT)
                    .is_ok_and(|(length, _)| length > 0)
        };
        let silent = self.connections.iter().find(|(_, one)| is_silent(one));
        let Some(token) = silent.map(|(token, _)| *token) else { return false };
        self.connections.remove(&token);
        self.count("made_room");
        true
    }
}
