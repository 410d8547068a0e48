// SPDX-License-Identifier: Apache-2.0
//! Synchronises connection tracking with the state of the router, through conntrackd.
//!
//! The commands need root and the namespace; the monitor process should have no privileges. A helper process is
//! therefore forked before the monitor drops its privileges. It accepts one kind of request, a state, and runs a fixed
//! list of commands for it, one after the other, each with a time limit. A request for a newer state ends the commands
//! of the older one.
//!
//! ```text
//!   monitor (no privileges)                helper (root, two capabilities, in the namespace)
//!      │  generation, state  ─────────────▶  conntrackd -C <conf_dir>/conntrackd.conf -c …
//!      │  ◀──────────────  executing, failed, ended
//! ```

pub mod helper;
mod status;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use vipwatch_core::{Moment, NeutronState};
use vipwatch_linux::clock;
use vipwatch_linux::process::Child;

use self::status::SyncRecord;
pub use self::status::delete_result;

/// How long the notification of the agent is delayed while the commands run. They take milliseconds, or seconds with a
/// large table.
const MAX_AGENT_DELAY: Duration = Duration::from_secs(2);

/// A report of the helper about the commands of one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConntrackReport {
    /// The helper starts this command.
    Executing(String),
    /// This command failed or could not be started.
    Failed {
        /// The command line; empty if the helper itself failed.
        command: String,
        /// Exit status and the first bytes of standard error, or why it did not start.
        reason: String,
    },
    /// All commands of the request have ended, successfully or not.
    Ended,
}

impl ConntrackReport {
    fn encode(&self, generation: u32) -> Vec<u8> {
        let (tag, command, reason) = match self {
            Self::Executing(command) => (b'x', command.as_str(), ""),
            Self::Failed { command, reason } => (b'f', command.as_str(), reason.as_str()),
            Self::Ended => (b'e', "", ""),
        };
        let mut message = generation.to_ne_bytes().to_vec();
        message.push(tag);
        message.extend_from_slice(command.as_bytes());
        message.push(0);
        message.extend_from_slice(reason.as_bytes());
        message
    }

    fn decode(message: &[u8]) -> Option<(u32, Self)> {
        let (generation, rest) = message.split_at_checked(4)?;
        let generation = u32::from_ne_bytes(generation.try_into().ok()?);
        let (tag, rest) = rest.split_first()?;
        let text = String::from_utf8_lossy(rest);
        let (command, reason) = text.split_once('\0')?;
        let report = match tag {
            b'x' => Self::Executing(command.to_owned()),
            b'f' => Self::Failed { command: command.to_owned(), reason: reason.to_owned() },
            b'e' => Self::Ended,
            _ => return None,
        };
        Some((generation, report))
    }
}

/// Encodes a request: the generation, then `p` for primary or `b` for backup.
fn encode_request(generation: u32, state: NeutronState) -> [u8; 5] {
    let [a, b, c, d] = generation.to_ne_bytes();
    [a, b, c, d, if state == NeutronState::Primary { b'p' } else { b'b' }]
}

/// Decodes a request; `None` if it is malformed.
fn decode_request(message: &[u8]) -> Option<(u32, NeutronState)> {
    let (generation, state) = message.split_at_checked(4)?;
    let state = match state {
        b"p" => NeutronState::Primary,
        b"b" => NeutronState::Backup,
        _ => return None,
    };
    Some((u32::from_ne_bytes(generation.try_into().ok()?), state))
}

/// A request that the helper has not finished.
#[derive(Debug, Clone, Copy)]
struct PendingRequest {
    state: NeutronState,
    /// When the agent is notified although the commands still run; `None` once that has happened.
    notify_at: Option<Moment>,
}

/// The monitor's end of the socket to the helper, and the request under way.
#[derive(Debug)]
pub struct ConntrackOutlet {
    socket: OwnedFd,
    /// Ends the helper when the outlet is dropped. The helper also ends by itself when the socket closes.
    _helper: Child,
    /// Number of the last request, from 1.
    generation: u32,
    /// `None` if the helper is idle.
    pending: Option<PendingRequest>,
    record: SyncRecord,
}

impl ConntrackOutlet {
    /// Takes the socket that is connected to `helper`. Results are stored in a file in `directory`.
    pub fn new(socket: OwnedFd, helper: Child, directory: &Path) -> Self {
        let record = SyncRecord::new(directory);
        Self { socket, _helper: helper, generation: 0, pending: None, record }
    }

    /// The socket to poll for reports.
    pub fn waiting_on(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Requests the commands for `state`. The helper ends the commands of an earlier request.
    pub fn start(&mut self, state: NeutronState, now: Moment) -> io::Result<()> {
        self.generation = self.generation.wrapping_add(1);
        let message = encode_request(self.generation, state);
        send(&self.socket, &message, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
        self.pending = Some(PendingRequest { state, notify_at: Some(now + MAX_AGENT_DELAY) });
        self.record.begin(now);
        Ok(())
    }

    /// When the agent is notified although the commands still run; `None` if the agent waits for no command.
    pub fn due(&self) -> Option<Moment> {
        self.pending.and_then(|pending| pending.notify_at)
    }

    /// Returns the state to notify the agent of, once, when the commands have taken too long.
    pub fn tick(&mut self, now: Moment) -> Option<NeutronState> {
        let pending = self.pending.as_mut()?;
        if pending.notify_at? > now {
            return None;
        }
        pending.notify_at = None;
        Some(pending.state)
    }

    /// Stores the result of the last request in its file, if that is still to be done.
    pub fn write_result(&mut self) {
        self.record.write();
    }

    /// Stores that synchronisation has failed, because the helper has ended. There will be no other result.
    pub fn write_loss(&mut self, state: NeutronState, now: Moment) {
        self.record.fail(state, now);
        self.record.write();
    }

    /// Returns the next report about the last request; `None` if there is none yet. An error means that the helper has
    /// ended or is about to end.
    // Not inlined: the buffer would otherwise be part of the caller's stack frame while the process waits.
    #[inline(never)]
    pub fn read(&mut self) -> io::Result<Option<(NeutronState, ConntrackReport)>> {
        // Large enough for a path, the command line around it, and the captured output.
        let mut buffer = [0; 6 << 10];
        loop {
            let length = match recv(&self.socket, &mut buffer, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok((length, _)) => length,
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
            };
            let Some((generation, report)) = ConntrackReport::decode(&buffer[..length]) else {
                continue;
            };
            if let (helper::NO_REQUEST, ConntrackReport::Failed { reason, .. }) =
                (generation, &report)
            {
                return Err(io::Error::other(reason.clone()));
            }
            let Some(PendingRequest { state, .. }) = self.pending else {
                continue;
            };
            if generation != self.generation {
                continue;
            }
            match report {
                ConntrackReport::Executing(_) => {}
                ConntrackReport::Failed { .. } => self.record.count_failure(),
                ConntrackReport::Ended => {
                    self.pending = None;
                    self.record.end(state, clock::now());
                }
            }
            return Ok(Some((state, report)));
        }
    }
}
