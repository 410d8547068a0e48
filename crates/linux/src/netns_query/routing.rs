// SPDX-License-Identifier: Apache-2.0
//! Reads the routes and routing rules of a network namespace once.
//!
//! The kernel answers these requests only about the namespace of the socket: unlike those for links and addresses, they
//! have no attribute that names another one. So a thread enters the namespace.
//!
//! [`NetnsQuery`] reads the links and addresses.
//!
//! [`NetnsQuery`]: super::NetnsQuery

mod decode;

use std::io;
use std::os::fd::AsFd;

use vipwatch_core::NetnsName;
use vipwatch_core::routing::{RouteFacts, RoutingQuestion, RoutingTables, RuleFacts};

use self::decode::{route, rule};
use super::request::NetlinkRequest;
use crate::netlink::decode::{Malformed, Message, envelopes, message};
use crate::netlink::socket::{Received, Scratch, Socket, enable_option};
use crate::netns::{NetnsError, visit};

/// How often a table is read again when it changes during the dump, before the query fails.
const ATTEMPTS: u32 = 3;

/// LIMIT: a table with more routes than this is not read to its end, and its routes are unknown: a router of the
/// internet has about a million, and reading them takes seconds.
const MAX_ROUTES: usize = 200_000;

/// Why routes or rules could not be read.
#[derive(Debug, thiserror::Error)]
pub enum RoutingError {
    /// No netlink socket.
    #[error("cannot open a netlink socket for routes")]
    Open(#[source] io::Error),
    /// The request could not be sent, or the answer not read.
    #[error("cannot request routes from the kernel")]
    Request(#[source] io::Error),
    /// The kernel refused the dump, for example because it has no routing rules.
    #[error("the kernel refused to list routes or rules")]
    Refused(#[source] io::Error),
    /// A message of the dump could not be decoded.
    #[error("cannot decode the kernel's list of routes")]
    Malformed(#[source] Malformed),
    /// The table kept changing during every attempt.
    #[error("the kernel's list of routes is incomplete")]
    Incomplete,
    /// The table has too many routes.
    #[error("the routing table has more than {MAX_ROUTES} routes")]
    TooLarge,
}

/// Reads what the question asks for, in the namespace with this name or in the caller's own if it is `None`. A part that
/// cannot be read is `None` in the answer.
pub fn routing_tables(
    netns: Option<&NetnsName>,
    question: &RoutingQuestion,
) -> Result<RoutingTables, NetnsError> {
    visit(netns, || {
        let wants_routes = !question.destinations.is_empty();
        RoutingTables {
            routes: wants_routes.then(|| routes(question).ok()).flatten(),
            rules_v4: question.wants_rules.then(|| rules(libc::AF_INET).ok()).flatten(),
            rules_v6: question.wants_rules.then(|| rules(libc::AF_INET6).ok()).flatten(),
        }
    })
}

/// The routes to the wanted destinations in the namespace of the calling thread.
fn routes(question: &RoutingQuestion) -> Result<Vec<RouteFacts>, RoutingError> {
    let mut found = Vec::new();
    let has_all = question.tables.contains(&None);
    let tables = question.tables.iter().filter(|table| table.is_none() || !has_all);
    for table in tables {
        for (family, is_ipv6) in [(libc::AF_INET, false), (libc::AF_INET6, true)] {
            let is_family = |one: &ipnet::IpNet| one.addr().is_ipv6() == is_ipv6;
            if !question.destinations.iter().any(is_family) {
                continue;
            }
            let request = || NetlinkRequest::routes(family, *table);
            let mut read = dump(request, |kind, body| {
                let route = (kind == libc::RTM_NEWROUTE).then(|| route(body)).transpose()?;
                let is_wanted = |one: &RouteFacts| question.destinations.contains(&one.destination);
                Ok(route.flatten().filter(is_wanted))
            })?;
            found.append(&mut read);
        }
    }
    Ok(found)
}

/// All rules of one family in the namespace of the calling thread.
fn rules(family: libc::c_int) -> Result<Vec<RuleFacts>, RoutingError> {
    dump(
        || NetlinkRequest::rules(family),
        |kind, body| Ok((kind == libc::RTM_NEWRULE).then(|| rule(body)).transpose()?.flatten()),
    )
}

/// Sends a request, and decodes the messages of its answer.
fn dump<T>(
    request: impl Fn() -> NetlinkRequest,
    decode: impl Fn(u16, &[u8]) -> Result<Option<T>, Malformed>,
) -> Result<Vec<T>, RoutingError> {
    for sequence in 1..=ATTEMPTS {
        // A socket of its own for each attempt: the rest of an answer that is not read to its end goes with it.
        let mut socket = Socket::open_for_queries().map_err(RoutingError::Open)?;
        // Before Linux 4.20 the kernel lists all tables; `decode` selects.
        let _ = enable_option(socket.as_fd(), libc::NETLINK_GET_STRICT_CHK);
        socket.send(&request().finish(sequence)).map_err(RoutingError::Request)?;
        if let Some(found) = collect(&mut socket, sequence, &decode)? {
            return Ok(found);
        }
    }
    Err(RoutingError::Incomplete)
}

/// Reads one answer to its end; `None` if the table changed meanwhile.
fn collect<T>(
    socket: &mut Socket,
    sequence: u32,
    decode: impl Fn(u16, &[u8]) -> Result<Option<T>, Malformed>,
) -> Result<Option<Vec<T>>, RoutingError> {
    let mut scratch: Scratch = [0; _];
    let mut found = Vec::new();
    let mut count = 0;
    loop {
        let datagram = match socket.receive(&mut scratch).map_err(RoutingError::Request)? {
            Received::Datagram(bytes) => bytes,
            Received::QueueEmpty | Received::Truncated | Received::Overrun => return Ok(None),
        };
        for envelope in envelopes(datagram) {
            let (header, body) = envelope.map_err(RoutingError::Malformed)?;
            if header.sequence != sequence {
                continue;
            }
            if i32::from(header.flags) & libc::NLM_F_DUMP_INTR != 0 {
                return Ok(None);
            }
            match message(header.kind, body).map_err(RoutingError::Malformed)? {
                // A table that does not exist (ENOENT) has no routes.
                Message::Done | Message::Error(libc::ENOENT) => return Ok(Some(found)),
                Message::Error(errno) if errno != 0 => {
                    return Err(RoutingError::Refused(io::Error::from_raw_os_error(errno)));
                }
                Message::Error(_) | Message::Fact(_) | Message::Unrelated => {}
            }
            found.extend(decode(header.kind, body).map_err(RoutingError::Malformed)?);
            count += 1;
            if count > MAX_ROUTES {
                return Err(RoutingError::TooLarge);
            }
        }
    }
}

/// The decoders, on any bytes.
#[cfg(fuzzing)]
pub mod fuzzing {
    use vipwatch_core::routing::{RouteFacts, RuleFacts};

    use super::decode;

    /// Decodes the body of an `RTM_NEWROUTE`.
    pub fn route(body: &[u8]) -> Option<RouteFacts> {
        decode::route(body).ok().flatten()
    }

    /// Decodes the body of an `RTM_NEWRULE`.
    pub fn rule(body: &[u8]) -> Option<RuleFacts> {
        decode::rule(body).ok().flatten()
    }
}
