//! Watches one namespace through one socket.
//!
//! ```text
//!            look()                  both dumps done, nothing relevant heard meanwhile
//!    live ───────────▶ looking ─────────────────────────────────────▶ live, Inventory
//!     ▲  │                │  ▲
//!     │  └── overrun ─────┤  │ something relevant was heard: again
//!     │      truncation   └──┘
//!  events     parse error
//! ```
//!
//! ORDER: the socket is subscribed before the first dump is asked for. A change between
//! the two is then heard twice, which costs another dump; the other way round it is never
//! heard at all.
//!
//! While we look, queued events may be older than the dump: an add and a remove that both
//! happened before it would replay as primary, then backup. So they are not passed on; if
//! one of them could matter, it is a reason to look again. An audit is different: we are in
//! step with the events, so they are passed on, and the dump must agree with them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use ipnet::IpNet;
use vipwatch_core::{Inventory, Observation, SnapshotReason};

use crate::netlink::decode::{Header, Malformed, Message, messages};
use crate::netlink::socket::{Received, Scratch, Socket};

/// How many datagrams one call to [`Monitor::read`] takes at most, so that a storm cannot
/// keep the caller from acting on what it knows.
const BATCH: usize = 256;

/// How many facts are kept while a picture is taken; with more, another is taken.
const MEANWHILE: usize = 1024;

/// Why watching failed.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// No socket, no watching.
    #[error("cannot open a netlink socket")]
    Subscribe(#[source] io::Error),
    /// The request for a dump did not leave.
    #[error("cannot ask the kernel for its addresses")]
    Request(#[source] io::Error),
    /// The kernel refused the dump.
    #[error("the kernel did not list its addresses")]
    Dump(#[source] io::Error),
    /// A part of the list made no sense.
    #[error("the kernel's list of addresses cannot be read")]
    Garbled(#[source] Malformed),
    /// The end of the list never came.
    #[error("the kernel's list of addresses has no end")]
    Endless,
    /// The socket is of no more use.
    #[error("cannot read from the netlink socket")]
    Receive(#[source] io::Error),
}

/// Why events are missing. The monitor is already looking again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// The kernel's queue for us was full.
    Overrun,
    /// A message was larger than our buffer.
    Truncated,
    /// A message made no sense.
    Malformed(Malformed),
}

/// What a read brought.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MonitorEvent {
    /// A fact.
    Observed(Observation),
    /// A gap; an inventory will follow.
    Lost(Loss),
}

/// Whether a read emptied the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueState {
    /// Nothing is left.
    Empty,
    /// The batch was full; read again before waiting.
    MoreToCome,
}

/// A picture being taken.
#[derive(Debug)]
struct PendingInventory {
    sequence: u32,
    /// `RTM_GETLINK` first, then `RTM_GETADDR`.
    part: u16,
    inventory: Inventory,
    /// The picture is already out of date; when it is finished, take another.
    is_disturbed: bool,
    /// The kernel dropped messages meanwhile, and may go on until the queue is empty. It says so only once, so the next
    /// picture begins as disturbed.
    has_overrun: bool,
    /// A part of the answer was larger than our buffer. It may have been the one with the end in it.
    has_lost_part: bool,
    /// What was passed on meanwhile and may be newer than the picture: it is passed on again
    /// behind it.
    meanwhile: Vec<Observation>,
}

impl PendingInventory {
    /// The look that follows this one.
    fn again(&self) -> Begin {
        Begin { look: self.inventory.look, is_disturbed: self.has_overrun }
    }

    fn overhear(&mut self, fact: &Observation) {
        if self.meanwhile.len() < MEANWHILE {
            self.meanwhile.push(fact.clone());
        } else {
            self.is_disturbed = true;
        }
    }
}

/// Which addresses anybody asks about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The watched one: the rest is not worth keeping.
    Vip,
    /// All of them. Only the watched one makes a picture worth taking again: that must be
    /// exact, while the others would keep us from ever finishing it.
    All,
}

/// One namespace, one socket.
#[derive(Debug)]
pub struct Monitor {
    socket: Socket,
    vip: IpNet,
    scope: Scope,
    exposure: Option<PendingInventory>,
    sequence: u32,
}

impl Monitor {
    /// Subscribes in the namespace of the calling thread. Say [`Self::look`] next.
    pub fn open(vip: IpNet, scope: Scope) -> Result<Self, WatchError> {
        let socket = Socket::subscribe().map_err(WatchError::Subscribe)?;
        Ok(Self { socket, vip, scope, exposure: None, sequence: 0 })
    }

    /// Whether an inventory is under way.
    pub fn is_looking(&self) -> bool {
        self.exposure.is_some()
    }

    /// Starts to take an inventory; [`Self::read`] will bring it.
    pub fn look(&mut self, look: SnapshotReason) -> Result<(), WatchError> {
        self.begin_look(Begin { look, is_disturbed: false })
    }

    fn begin_look(&mut self, begin: Begin) -> Result<(), WatchError> {
        let Begin { look, is_disturbed } = begin;
        self.sequence = self.sequence.wrapping_add(1);
        self.exposure = Some(PendingInventory {
            sequence: self.sequence,
            part: libc::RTM_GETLINK,
            inventory: Inventory { look, links: Vec::new(), addresses: Vec::new() },
            is_disturbed,
            has_overrun: false,
            has_lost_part: false,
            meanwhile: Vec::new(),
        });
        self.socket.request_dump(libc::RTM_GETLINK, self.sequence).map_err(WatchError::Request)
    }

    /// Forgets the look under way: what still comes of it is not ours any more.
    pub fn give_up(&mut self) {
        self.exposure = None;
    }

    /// Takes what is queued, without waiting. After an error, look again later.
    pub fn read(&mut self, heard: &mut Vec<MonitorEvent>) -> Result<QueueState, WatchError> {
        let mut scratch: Scratch = [0; _];
        for _ in 0..BATCH {
            let (vip, scope) = (self.vip, self.scope);
            let mut facts = AuditFacts { exposure: &mut self.exposure, vip, scope, heard };
            let port = self.socket.port();
            let verdict = match self.socket.receive(&mut scratch).map_err(WatchError::Receive)? {
                Received::Quiet => match facts.begin_again_without_end() {
                    Some(begin) => DebounceDecision::LookAgain(begin),
                    None => return Ok(QueueState::Empty),
                },
                Received::Overrun => facts.lose(Loss::Overrun),
                Received::Truncated => facts.lose(Loss::Truncated),
                Received::Datagram(bytes) => facts.take(bytes, port),
            };
            match verdict {
                DebounceDecision::Carry => {}
                DebounceDecision::NextPart(sequence) => self
                    .socket
                    .request_dump(libc::RTM_GETADDR, sequence)
                    .map_err(WatchError::Request)?,
                DebounceDecision::LookAgain(begin) => self.begin_look(begin)?,
                DebounceDecision::Garbled(malformed) => {
                    self.exposure = None;
                    return Err(WatchError::Garbled(malformed));
                }
                DebounceDecision::Refused(errno) => {
                    self.exposure = None;
                    let source = io::Error::from_raw_os_error(errno);
                    return Err(WatchError::Dump(source));
                }
            }
        }
        Ok(QueueState::MoreToCome)
    }

    /// The socket's address, for a test that forges messages.
    #[doc(hidden)]
    pub fn port(&self) -> u32 {
        self.socket.port()
    }

    /// Makes the queue smaller, so that a test can overrun it.
    #[doc(hidden)]
    pub fn shrink_queue(&self, bytes: usize) -> io::Result<()> {
        self.socket.shrink_queue(bytes)
    }
}

impl AsFd for Monitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// What a datagram asks the monitor to do next.
enum DebounceDecision {
    Carry,
    NextPart(u32),
    LookAgain(Begin),
    Refused(i32),
    Garbled(Malformed),
}

/// How a look begins.
#[derive(Debug, Clone, Copy)]
struct Begin {
    look: SnapshotReason,
    /// Its result is known to be out of date: after it, another is taken.
    is_disturbed: bool,
}

/// Whether a message answers us. The port alone does not tell: a notification carries that of
/// whoever caused it, and port numbers of other namespaces can equal ours.
fn is_reply(header: Header, message: &Message, port: u32) -> bool {
    let is_answer = match message {
        Message::Done | Message::Error(_) => true,
        Message::Fact(_) | Message::Unrelated => i32::from(header.flags) & libc::NLM_F_MULTI != 0,
    };
    is_answer && header.port == port
}

/// One datagram's worth of work: the borrowed halves of a [`Monitor`].
struct AuditFacts<'a> {
    exposure: &'a mut Option<PendingInventory>,
    vip: IpNet,
    scope: Scope,
    heard: &'a mut Vec<MonitorEvent>,
}

impl AuditFacts<'_> {
    fn lose(&mut self, loss: Loss) -> DebounceDecision {
        // LIMIT: a socket can run one dump at a time, so the one under way is read to its
        // end before the next is begun.
        if let Some(exposure) = self.exposure {
            exposure.is_disturbed = true;
            exposure.has_overrun |= loss == Loss::Overrun;
            exposure.has_lost_part |= loss == Loss::Truncated;
            if exposure.inventory.look == SnapshotReason::Audit {
                exposure.inventory.look = SnapshotReason::Resync;
            }
            return DebounceDecision::Carry;
        }
        self.heard.push(MonitorEvent::Lost(loss));
        let is_disturbed = loss == Loss::Overrun;
        DebounceDecision::LookAgain(Begin { look: SnapshotReason::Resync, is_disturbed })
    }

    /// Begins a look again that has lost a part of its answer, now that nothing is queued. The kernel queues the next part
    /// before it hands one over, so an empty queue means that the lost part was the last one.
    fn begin_again_without_end(&self) -> Option<Begin> {
        self.exposure
            .as_ref()
            .filter(|exposure| exposure.has_lost_part)
            .map(PendingInventory::again)
    }

    fn take(&mut self, datagram: &[u8], port: u32) -> DebounceDecision {
        for message in messages(datagram) {
            let verdict = match message {
                Ok((header, message)) if is_reply(header, &message, port) => {
                    self.reply(header, &message)
                }
                Ok((_, Message::Fact(fact))) => {
                    self.notification(fact);
                    DebounceDecision::Carry
                }
                Ok((_, Message::Done | Message::Error(_) | Message::Unrelated)) => {
                    DebounceDecision::Carry
                }
                // While we look, asking again at once could go on for ever.
                Err(malformed) if self.exposure.is_some() => DebounceDecision::Garbled(malformed),
                Err(malformed) => self.lose(Loss::Malformed(malformed)),
            };
            if !matches!(verdict, DebounceDecision::Carry) {
                return verdict;
            }
        }
        DebounceDecision::Carry
    }

    fn notification(&mut self, fact: Observation) {
        if !self.is_relevant(&fact) {
            if self.scope == Scope::All {
                if let Some(exposure) = self.exposure {
                    exposure.overhear(&fact);
                }
                self.heard.push(MonitorEvent::Observed(fact));
            }
            return;
        }
        if let Some(exposure) = self.exposure {
            exposure.is_disturbed = true;
            if exposure.inventory.look != SnapshotReason::Audit {
                return;
            }
        }
        self.heard.push(MonitorEvent::Observed(fact));
    }

    /// Link news always is: which name is ours is not known here.
    fn is_relevant(&self, fact: &Observation) -> bool {
        match fact {
            Observation::AddressSeen { cidr, .. } | Observation::AddressRemoved { cidr, .. } => {
                *cidr == self.vip
            }
            Observation::LinkSeen { .. }
            | Observation::LinkRemoved { .. }
            | Observation::Inventory(_)
            | Observation::FirstSnapshotOverdue
            | Observation::NamespaceRemoved => true,
        }
    }

    fn reply(&mut self, header: Header, message: &Message) -> DebounceDecision {
        let Some(exposure) = self.exposure else {
            return DebounceDecision::Carry;
        };
        if header.sequence != exposure.sequence {
            return DebounceDecision::Carry;
        }
        // The tables changed between two parts of the dump.
        if i32::from(header.flags) & libc::NLM_F_DUMP_INTR != 0 {
            exposure.is_disturbed = true;
        }
        match *message {
            Message::Fact(Observation::LinkSeen { link, name }) => {
                exposure.inventory.links.push((link, name));
                DebounceDecision::Carry
            }
            Message::Fact(Observation::AddressSeen { link, cidr, usability }) => {
                if cidr == self.vip || self.scope == Scope::All {
                    exposure.inventory.addresses.push((link, cidr, usability));
                }
                DebounceDecision::Carry
            }
            Message::Done if exposure.part == libc::RTM_GETLINK => {
                exposure.part = libc::RTM_GETADDR;
                DebounceDecision::NextPart(exposure.sequence)
            }
            Message::Done if exposure.is_disturbed => DebounceDecision::LookAgain(exposure.again()),
            Message::Done => {
                if let Some(done) = self.exposure.take() {
                    self.heard.push(MonitorEvent::Observed(Observation::Inventory(done.inventory)));
                    self.heard.extend(done.meanwhile.into_iter().map(MonitorEvent::Observed));
                }
                DebounceDecision::Carry
            }
            Message::Error(0) | Message::Unrelated | Message::Fact(_) => DebounceDecision::Carry,
            Message::Error(errno) => DebounceDecision::Refused(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Some kernels put `NLMSG_DONE` into the last part, and parts can be larger than a page where pages are.
    #[test]
    fn a_truncated_part_may_have_held_the_end_of_the_answer() {
        let mut exposure = Some(PendingInventory {
            sequence: 1,
            part: libc::RTM_GETADDR,
            inventory: Inventory {
                look: SnapshotReason::First,
                links: Vec::new(),
                addresses: Vec::new(),
            },
            is_disturbed: false,
            has_overrun: false,
            has_lost_part: false,
            meanwhile: Vec::new(),
        });
        let mut heard = Vec::new();
        let vip = "169.254.0.1/24".parse().unwrap();
        let mut facts =
            AuditFacts { exposure: &mut exposure, vip, scope: Scope::Vip, heard: &mut heard };
        assert!(facts.begin_again_without_end().is_none(), "the next part may come later");
        assert!(matches!(facts.lose(Loss::Truncated), DebounceDecision::Carry));
        let again = facts.begin_again_without_end().expect("an empty queue is the end");
        assert_eq!((again.look, again.is_disturbed), (SnapshotReason::First, false));
    }
}
