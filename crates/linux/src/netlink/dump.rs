// SPDX-License-Identifier: Apache-2.0
//! Reads the answer to a dump (`RTM_GETLINK`, `RTM_GETADDR`) into a [`Snapshot`].
//!
//! [`collect`] reads one answer from its first message to its end; a query uses it. [`add_message`] adds one message;
//! a monitor uses it, because its socket also delivers notifications between the messages of an answer.

use std::io;

use vipwatch_core::snapshot::{AddressFacts, Snapshot};

use super::decode::facts::{address_facts, link_facts};
use super::decode::{Malformed, Message, envelopes, message};
use super::socket::{Received, Scratch, Socket};
use crate::monitor::WatchError;

/// Whether the answer shows the kernel's tables at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DumpQuality {
    /// All messages were read, and the tables did not change meanwhile.
    Consistent,
    /// The tables changed during the dump, or a message was lost because it was larger than the buffer.
    Disturbed,
}

/// The result of one dump.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DumpResult {
    pub(crate) quality: DumpQuality,
    /// Number of datagrams with links or addresses. The kernel fills each of them at one moment.
    pub(crate) datagrams: usize,
}

/// Whether another message of the same answer follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DumpProgress {
    /// The answer goes on.
    More,
    /// This was the last message.
    Done,
    /// The kernel refused the request or stopped the dump: a positive errno.
    Refused(i32),
}

/// Reads the answer to the dump with this `sequence` into `snapshot`. A message for which `is_about_netns` is false
/// makes the dump fail with [`WatchError::Malformed`].
pub(crate) fn collect(
    socket: &mut Socket,
    sequence: u32,
    snapshot: &mut Snapshot,
    is_about_netns: impl Fn(u16, &[u8]) -> bool,
) -> Result<DumpResult, WatchError> {
    let mut scratch: Scratch = [0; _];
    let mut quality = DumpQuality::Consistent;
    let mut datagrams = 0;
    // After a malformed message the answer is still read to its end: only then can the next dump begin.
    let mut first_malformed = None;
    loop {
        let before = snapshot.links.len() + snapshot.addresses.len();
        let datagram = match socket.receive(&mut scratch).map_err(WatchError::Receive)? {
            Received::Datagram(bytes) => bytes,
            // The kernel queues the next datagram while this one is read, so an empty queue means that none will come.
            Received::QueueEmpty => return Err(WatchError::Incomplete),
            // The buffer has grown. The rest is read, so that the next dump can begin.
            Received::Truncated | Received::Overrun => {
                quality = DumpQuality::Disturbed;
                continue;
            }
        };
        for envelope in envelopes(datagram) {
            let (header, body) = match envelope {
                Ok(envelope) => envelope,
                Err(malformed) => {
                    first_malformed.get_or_insert(malformed);
                    break;
                }
            };
            if header.sequence != sequence {
                continue;
            }
            if i32::from(header.flags) & libc::NLM_F_DUMP_INTR != 0 {
                quality = DumpQuality::Disturbed;
            }
            if !is_about_netns(header.kind, body) {
                first_malformed.get_or_insert(Malformed::Address);
                continue;
            }
            match add_message(header.kind, body, snapshot, |_| true) {
                Ok(DumpProgress::More) => {}
                Ok(DumpProgress::Done) => {
                    datagrams +=
                        usize::from(snapshot.links.len() + snapshot.addresses.len() > before);
                    let result = DumpResult { quality, datagrams };
                    return first_malformed
                        .map_or(Ok(result), |why| Err(WatchError::Malformed(why)));
                }
                Ok(DumpProgress::Refused(errno)) => {
                    return Err(WatchError::Dump(io::Error::from_raw_os_error(errno)));
                }
                Err(malformed) => {
                    first_malformed.get_or_insert(malformed);
                }
            }
        }
        datagrams += usize::from(snapshot.links.len() + snapshot.addresses.len() > before);
    }
}

/// Adds one message of an answer to `snapshot`: a link, or an address for which `is_wanted` is true.
pub(crate) fn add_message(
    kind: u16,
    body: &[u8],
    snapshot: &mut Snapshot,
    is_wanted: impl Fn(&AddressFacts) -> bool,
) -> Result<DumpProgress, Malformed> {
    match kind {
        libc::RTM_NEWLINK => snapshot.links.push(link_facts(body)?),
        libc::RTM_NEWADDR => snapshot.addresses.extend(address_facts(body)?.filter(is_wanted)),
        other => match message(other, body)? {
            Message::Done => return Ok(DumpProgress::Done),
            Message::Error(errno) if errno != 0 => return Ok(DumpProgress::Refused(errno)),
            Message::Error(_) | Message::Unrelated | Message::Fact(_) => {}
        },
    }
    Ok(DumpProgress::More)
}
