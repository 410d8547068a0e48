//! Brings connection tracking in line with a role, through conntrackd.
//!
//! The commands need root and the namespace; the process that watches should have neither.
//! So a helper is forked before privileges are given up. It accepts one thing, a role, and
//! runs a fixed list of commands for it, one after the other, each with a time limit. A
//! newer role ends the older one's commands.
//!
//! ```text
//!   monitor (no privileges)                helper (root, two capabilities, in the namespace)
//!      │  generation, role  ──────────────▶  conntrackd -C <conf_dir>/conntrackd.conf -c …
//!      │  ◀──────────────  executing, failed, ended
//! ```

pub mod helper;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use vipwatch_core::{Moment, NeutronState};
use vipwatch_linux::process::Child;

/// How long the agent waits to be told while the commands run. They take milliseconds, or
/// seconds with a large table; whatever they do, the agent must not be kept in the dark.
const GRACE: Duration = Duration::from_secs(2);

/// What the helper reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConntrackReport {
    /// It starts this command.
    Executing(String),
    /// This command did not end well.
    Failed {
        /// The command.
        command: String,
        /// Exit status and what it printed, or why it did not start.
        reason: String,
    },
    /// The list is done.
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

/// The request for `role`.
fn request(generation: u32, role: NeutronState) -> [u8; 5] {
    let [a, b, c, d] = generation.to_ne_bytes();
    [a, b, c, d, if role == NeutronState::Primary { b'p' } else { b'b' }]
}

/// Reads a request.
fn requested(message: &[u8]) -> Option<(u32, NeutronState)> {
    let (generation, role) = message.split_at_checked(4)?;
    let role = match role {
        b"p" => NeutronState::Primary,
        b"b" => NeutronState::Backup,
        _ => return None,
    };
    Some((u32::from_ne_bytes(generation.try_into().ok()?), role))
}

/// The monitor's end: the helper, and how long to wait for it.
#[derive(Debug)]
pub struct ConntrackOutlet {
    socket: OwnedFd,
    /// Held so that it ends with us; it notices by itself when the socket closes.
    _helper: Child,
    generation: u32,
    /// What it is working on, and until when the agent waits for that.
    running: Option<(NeutronState, Option<Moment>)>,
}

impl ConntrackOutlet {
    /// A line to a helper that listens on the other end of `socket`.
    pub fn new(socket: OwnedFd, helper: Child) -> Self {
        Self { socket, _helper: helper, generation: 0, running: None }
    }

    /// The socket to wait on.
    pub fn waiting_on(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Asks for `role`; what ran for another one is ended.
    pub fn start(&mut self, role: NeutronState, now: Moment) -> io::Result<()> {
        self.generation = self.generation.wrapping_add(1);
        let message = request(self.generation, role);
        send(&self.socket, &message, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
        self.running = Some((role, Some(now + GRACE)));
        Ok(())
    }

    /// When the agent has waited long enough.
    pub fn due(&self) -> Option<Moment> {
        self.running.and_then(|(_, grace)| grace)
    }

    /// The role to tell without waiting any longer, if it is time.
    pub fn tick(&mut self, now: Moment) -> Option<NeutronState> {
        let (role, grace) = self.running.as_mut()?;
        if (*grace)? > now {
            return None;
        }
        *grace = None;
        Some(*role)
    }

    /// The next report about the role asked for last. An error means that the helper is gone, or about to go.
    // Not inlined: its buffer would stand on the stack of everyone who waits.
    #[inline(never)]
    pub fn read(&mut self) -> io::Result<Option<(NeutronState, ConntrackReport)>> {
        // A path, what stands around it, and what the command said.
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
            let Some((role, _)) = self.running else {
                continue;
            };
            if generation != self.generation {
                continue;
            }
            if report == ConntrackReport::Ended {
                self.running = None;
            }
            return Ok(Some((role, report)));
        }
    }
}
