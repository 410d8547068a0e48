//! Asks namespaces for their links and addresses, from outside.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use vipwatch_core::LinkName;
use vipwatch_core::announce::{LinkFacts, Survey};

use super::message::{self, Answer, Request};
use super::{Where, switch_on};
use crate::monitor::WatchError;
use crate::netlink::decode::facts::link_facts;
use crate::netlink::decode::{Malformed, envelopes};
use crate::netlink::socket::{Received, Scratch, Socket};
use crate::netns::{Netns, NetnsId};
use crate::survey::{Collected, Part, collect};

/// How often a namespace is asked again when it changes while it answers.
const ATTEMPTS: u32 = 10;

/// With more links than that, it takes less time to ask for all.
const MOST_LINKS: usize = 256;

/// Asks other namespaces from here, without entering them.
#[derive(Debug)]
pub struct Asker {
    socket: Socket,
    sequence: u32,
}

impl Asker {
    /// Opens a socket in the namespace of the calling thread. Asking about others takes
    /// `CAP_NET_ADMIN` there.
    pub fn open() -> io::Result<Self> {
        let socket = Socket::ask()?;
        switch_on(socket.as_fd(), libc::NETLINK_GET_STRICT_CHK)?;
        Ok(Self { socket, sequence: 0 })
    }

    /// How the kernel speaks of a namespace; `None` if it has no id here, and cannot be asked about.
    pub fn find(&mut self, netns: &Netns) -> io::Result<Option<Where>> {
        if NetnsId::current()? == netns.id() {
            return Ok(Some(Where::Here));
        }
        Ok(self.id_of(netns.as_fd())?.map(Where::There))
    }

    /// The id of a namespace, if it has one.
    pub(super) fn id_of(&mut self, netns: BorrowedFd<'_>) -> io::Result<Option<i32>> {
        let request = Request::new(libc::RTM_GETNSID, 0)
            .generic()
            .number(message::NETNSA_FD, netns.as_raw_fd().cast_unsigned());
        match self.ask(request)? {
            // -1 is how the kernel says "none".
            Answer::Id(id) => Ok(Some(id).filter(|id| *id >= 0)),
            Answer::Refused(errno) => Err(io::Error::from_raw_os_error(errno)),
            Answer::Done => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// One request with one answer.
    pub(super) fn ask(&mut self, request: Request) -> io::Result<Answer> {
        self.sequence = self.sequence.wrapping_add(1);
        self.socket.send(&request.finish(self.sequence))?;
        let mut scratch: Scratch = [0; _];
        loop {
            match self.socket.receive(&mut scratch)? {
                Received::Datagram(bytes) => {
                    for (header, body) in envelopes(bytes).flatten() {
                        if header.sequence == self.sequence
                            && let Some(answer) = Answer::read(header.kind, body)
                        {
                            return Ok(answer);
                        }
                    }
                }
                // The kernel answers before the request returns.
                Received::Quiet | Received::Truncated | Received::Overrun => {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
        }
    }

    /// Everything in a namespace, now.
    pub fn survey(&mut self, place: Where) -> Result<Survey, WatchError> {
        for _ in 0..ATTEMPTS {
            let mut survey = Survey::default();
            let mut parts = vec![self.dump(Request::links(place), place, &mut survey)?];
            for family in [libc::AF_INET, libc::AF_INET6] {
                let request = Request::addresses(place, family, None);
                parts.push(self.dump(request, place, &mut survey)?);
            }
            if parts.iter().all(|collected| collected.part == Part::Whole) {
                survey.settle();
                return Ok(survey);
            }
        }
        Err(WatchError::Endless)
    }

    /// These links of a namespace and their addresses, now. Other links neither make the answer longer nor
    /// disturb it when they change. Where the kernel cannot answer so, it is asked for everything.
    pub fn survey_links(&mut self, place: Where, links: &[LinkName]) -> Result<Survey, WatchError> {
        if links.len() > MOST_LINKS {
            return self.survey(place);
        }
        match self.collect_links(place, links) {
            Ok(Some(survey)) => Ok(survey),
            Ok(None) | Err(WatchError::Dump(_) | WatchError::Garbled(_)) => self.survey(place),
            Err(error) => Err(error),
        }
    }

    /// `None` if a link went meanwhile, or has more addresses than the kernel puts into one datagram: then
    /// it does not say whether they changed meanwhile.
    fn collect_links(
        &mut self,
        place: Where,
        links: &[LinkName],
    ) -> Result<Option<Survey>, WatchError> {
        let mut survey = Survey::default();
        for name in links {
            let Some(facts) = self.link(place, *name)? else { continue };
            for family in [libc::AF_INET, libc::AF_INET6] {
                let request = Request::addresses(place, family, Some(facts.link));
                let collected = self.dump(request, place, &mut survey)?;
                if collected.part != Part::Whole || collected.datagrams > 1 {
                    return Ok(None);
                }
            }
            survey.links.push(facts);
        }
        survey.settle();
        Ok(Some(survey))
    }

    /// One link of a namespace, by its name; `None` if there is none.
    fn link(&mut self, place: Where, name: LinkName) -> Result<Option<LinkFacts>, WatchError> {
        self.sequence = self.sequence.wrapping_add(1);
        let request = Request::link(place, name).finish(self.sequence);
        self.socket.send(&request).map_err(WatchError::Request)?;
        let mut scratch: Scratch = [0; _];
        loop {
            // The kernel answers before the request returns.
            let datagram = match self.socket.receive(&mut scratch).map_err(WatchError::Receive)? {
                Received::Datagram(bytes) => bytes,
                Received::Quiet | Received::Truncated | Received::Overrun => {
                    return Err(WatchError::Garbled(Malformed::Link));
                }
            };
            for (header, body) in envelopes(datagram).flatten() {
                if header.sequence != self.sequence {
                    continue;
                }
                if header.kind == libc::RTM_NEWLINK {
                    let is_about_it = is_about(place, header.kind, body);
                    let facts = link_facts(body).and_then(|facts| {
                        if is_about_it { Ok(facts) } else { Err(Malformed::Link) }
                    });
                    return facts.map(Some).map_err(WatchError::Garbled);
                }
                match Answer::read(header.kind, body) {
                    Some(Answer::Refused(libc::ENODEV)) => return Ok(None),
                    Some(Answer::Refused(errno)) => {
                        return Err(WatchError::Dump(io::Error::from_raw_os_error(errno)));
                    }
                    Some(Answer::Done | Answer::Id(_)) | None => {}
                }
            }
        }
    }

    fn dump(
        &mut self,
        request: Request,
        place: Where,
        survey: &mut Survey,
    ) -> Result<Collected, WatchError> {
        self.sequence = self.sequence.wrapping_add(1);
        self.socket.send(&request.finish(self.sequence)).map_err(WatchError::Request)?;
        let is_about_it = |kind, body: &[u8]| is_about(place, kind, body);
        collect(&mut self.socket, self.sequence, survey, is_about_it)
    }
}

/// Fact 4: whether an answer is about the namespace that was asked about.
fn is_about(place: Where, kind: u16, body: &[u8]) -> bool {
    match (place, kind) {
        (Where::There(id), libc::RTM_NEWLINK) => message::link_netns(body) == Some(id),
        (Where::There(id), libc::RTM_NEWADDR) => message::address_netns(body) == Some(id),
        _ => true,
    }
}
