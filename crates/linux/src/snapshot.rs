//! Asks the kernel for every link and address of a namespace, now.
//!
//! [`crate::monitor`] follows; this looks once. It takes no privilege, and nothing is kept.

use std::io;

use vipwatch_core::snapshot::Snapshot;

use crate::monitor::WatchError;
use crate::netlink::decode::facts::{address_facts, link_facts};
use crate::netlink::decode::{Malformed, Message, envelopes, message};
use crate::netlink::socket::{Received, Scratch, Socket};

/// How often a picture that was disturbed is taken again before it is good enough: whoever
/// uses it asks again before the next step anyway.
const ATTEMPTS: u32 = 3;

/// Asks in one namespace, as often as needed.
#[derive(Debug)]
pub struct OwnNetnsQuery {
    socket: Socket,
    sequence: u32,
}

/// Whether a part was whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DumpPart {
    Whole,
    /// The tables changed meanwhile, or the buffer had to grow.
    Disturbed,
}

/// The answer to one dump.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Collected {
    pub(crate) part: DumpPart,
    /// Datagrams with links or addresses. The kernel makes each of them at one moment.
    pub(crate) datagrams: usize,
}

impl OwnNetnsQuery {
    /// Opens a socket in the namespace of the calling thread.
    pub fn open() -> Result<Self, WatchError> {
        let socket = Socket::ask().map_err(WatchError::Subscribe)?;
        Ok(Self { socket, sequence: 0 })
    }

    /// The namespace as it is now.
    pub fn snapshot(&mut self) -> Result<Snapshot, WatchError> {
        let mut snapshot = Snapshot::default();
        for _ in 0..ATTEMPTS {
            snapshot = Snapshot::default();
            let links = self.ask(libc::RTM_GETLINK, &mut snapshot)?;
            let addresses = self.ask(libc::RTM_GETADDR, &mut snapshot)?;
            if (links, addresses) == (DumpPart::Whole, DumpPart::Whole) {
                break;
            }
        }
        snapshot.sort_addresses();
        Ok(snapshot)
    }

    fn ask(&mut self, kind: u16, snapshot: &mut Snapshot) -> Result<DumpPart, WatchError> {
        self.sequence = self.sequence.wrapping_add(1);
        self.socket.request_dump(kind, self.sequence).map_err(WatchError::Request)?;
        let collected = collect(&mut self.socket, self.sequence, snapshot, |_, _| true)?;
        Ok(collected.part)
    }
}

/// Reads the answer to the dump that was asked for with this `sequence`, into `snapshot`. Every
/// part of it must be about whom was asked.
pub(crate) fn collect(
    socket: &mut Socket,
    sequence: u32,
    snapshot: &mut Snapshot,
    is_about_it: impl Fn(u16, &[u8]) -> bool,
) -> Result<Collected, WatchError> {
    let mut scratch: Scratch = [0; _];
    let mut part = DumpPart::Whole;
    let mut datagrams = 0;
    let mut garbled = None;
    loop {
        let before = snapshot.links.len() + snapshot.addresses.len();
        let datagram = match socket.receive(&mut scratch).map_err(WatchError::Receive)? {
            Received::Datagram(bytes) => bytes,
            // The next part is made while this one is read: there is nothing to wait for.
            Received::Quiet => return Err(WatchError::Endless),
            // The buffer has grown; the rest is read, so that the next dump can begin.
            Received::Truncated | Received::Overrun => {
                part = DumpPart::Disturbed;
                continue;
            }
        };
        for envelope in envelopes(datagram) {
            // It is read to its end all the same, so that the next dump can begin.
            let (header, body) = match envelope {
                Ok(envelope) => envelope,
                Err(malformed) => {
                    garbled.get_or_insert(malformed);
                    break;
                }
            };
            if header.sequence != sequence {
                continue;
            }
            if i32::from(header.flags) & libc::NLM_F_DUMP_INTR != 0 {
                part = DumpPart::Disturbed;
            }
            if !is_about_it(header.kind, body) {
                garbled.get_or_insert(Malformed::Address);
                continue;
            }
            match take(header.kind, body, snapshot) {
                Ok(DumpProgress::More) => {}
                Ok(DumpProgress::Done) => {
                    datagrams +=
                        usize::from(snapshot.links.len() + snapshot.addresses.len() > before);
                    let collected = Collected { part, datagrams };
                    return garbled.map_or(Ok(collected), |why| Err(WatchError::Garbled(why)));
                }
                Err(WatchError::Garbled(malformed)) => {
                    garbled.get_or_insert(malformed);
                }
                Err(error) => return Err(error),
            }
        }
        datagrams += usize::from(snapshot.links.len() + snapshot.addresses.len() > before);
    }
}

#[derive(PartialEq, Eq)]
enum DumpProgress {
    More,
    Done,
}

fn take(kind: u16, body: &[u8], snapshot: &mut Snapshot) -> Result<DumpProgress, WatchError> {
    let garbled = |malformed: Malformed| WatchError::Garbled(malformed);
    match kind {
        libc::RTM_NEWLINK => snapshot.links.push(link_facts(body).map_err(garbled)?),
        libc::RTM_NEWADDR => snapshot.addresses.extend(address_facts(body).map_err(garbled)?),
        other => match message(other, body).map_err(garbled)? {
            Message::Done => return Ok(DumpProgress::Done),
            Message::Error(errno) if errno != 0 => {
                return Err(WatchError::Dump(io::Error::from_raw_os_error(errno)));
            }
            Message::Error(_) | Message::Unrelated | Message::Fact(_) => {}
        },
    }
    Ok(DumpProgress::More)
}
