// SPDX-License-Identifier: Apache-2.0
//! A role record in few bytes.
//!
//! A node keeps the roles of all members of its groups, and a full view those of all groups of the domain. A [`RoleRecord`]
//! has a dozen texts and needs about 1 KiB; packed it needs less than a tenth of that. Numbers have only as many bytes as
//! they need, words of a known list are a number, and a text that ends with the id of the instance (`qrouter-ID`) has only
//! its first part. The record is unpacked when it is read.
//!
//! The node, its epoch and the revision are not part of the bytes. Times are kept in milliseconds, as nodes write them.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use strum::VariantArray;
use vipwatch_api::{RoleKind, Timestamp};
use vipwatch_core::CauseKind;
use vipwatch_core::FindingKind;

use super::bytes::{ByteReader, ByteWriter};
use super::identity::RoleIdentity;
use crate::record::{FORMAT, ReceivedAdverts, RecentTransition, RoleRecord};

/// The words of [`RoleRecord::origin`].
const ORIGINS: &[&str] = &["neutron", "keepalived", "vipwatch"];

/// Where Neutron's namespaces have the id of the router.
const NETNS_STARTS: &[&str] = &["qrouter-", "snat-"];

/// Which optional fields a record has.
mod present {
    pub(super) const REASON: u64 = 1;
    pub(super) const SINCE: u64 = 1 << 1;
    pub(super) const CAUSE: u64 = 1 << 2;
    pub(super) const NETNS: u64 = 1 << 3;
    pub(super) const VRID: u64 = 1 << 4;
    pub(super) const PRIORITY: u64 = 1 << 5;
    pub(super) const VRRP_VERSION: u64 = 1 << 6;
    pub(super) const ADVERT: u64 = 1 << 7;
    pub(super) const FINDINGS: u64 = 1 << 8;
    pub(super) const RECENT: u64 = 1 << 9;
    pub(super) const KEEPALIVED_RUNS: u64 = 1 << 10;
    pub(super) const KEEPALIVED_STOPPED: u64 = 1 << 11;
    pub(super) const SOURCE: u64 = 1 << 12;
    pub(super) const SYNC_GROUP: u64 = 1 << 13;
}

/// Packs a record. `model` is a text that the id of the instance often equals; [`unpack`] needs the same.
pub(super) fn pack(record: &RoleRecord, model: &str) -> Vec<u8> {
    let mut out = ByteWriter::default();
    out.byte(role_number(record.role) << 2 | adverts_number(record.adverts));
    out.text_like(&record.instance, model);
    out.unsigned(present_fields(record));
    out.text_like(&record.name, &record.instance);
    out.signed(record.seq);
    out.word(&record.origin, ORIGINS);
    out.text_like(&record.interface, &record.instance);
    out.list(&record.addresses, |out, address| network(out, *address));
    if let Some(reason) = &record.reason {
        out.text_like(reason, &record.instance);
    }
    if let Some(since) = record.since {
        out.signed(since.as_millisecond());
    }
    if let Some(word) = &record.cause {
        cause(&mut out, word);
    }
    if let Some(netns) = &record.netns {
        out.composed(netns, NETNS_STARTS, &record.instance);
    }
    for number in [record.vrid, record.priority, record.vrrp_version].into_iter().flatten() {
        out.byte(number);
    }
    if let Some(advert_ms) = record.advert_ms {
        out.unsigned(advert_ms);
    }
    if let Some(source) = record.source {
        network(&mut out, IpNet::from(source));
    }
    if let Some(group) = &record.sync_group {
        out.text_like(group, &record.instance);
    }
    if !record.findings.is_empty() {
        out.list(&record.findings, |out, name| out.word(name, FindingKind::NAMES));
    }
    if !record.recent.is_empty() {
        transitions(&mut out, record);
    }
    out.into_bytes()
}

/// The role of a packed record.
pub(super) fn role(bytes: &[u8]) -> RoleKind {
    bytes.first().and_then(|first| role_of(first >> 2)).unwrap_or(RoleKind::Unknown)
}

/// The id of the instance of a packed record.
pub(super) fn instance<'a>(bytes: &'a [u8], model: &'a str) -> Cow<'a, str> {
    let mut input = ByteReader::new(bytes);
    input.byte().and_then(|_| input.text_like(model)).unwrap_or_default()
}

/// The record; `None` never happens for bytes of [`pack`].
pub(super) fn unpack(bytes: &[u8], model: &str, identity: &RoleIdentity) -> Option<RoleRecord> {
    let input = &mut ByteReader::new(bytes);
    let first = input.byte()?;
    let instance = input.text_like(model)?.into_owned();
    let fields = input.unsigned()?;
    let has = |field: u64| fields & field != 0;
    let mut record = RoleRecord {
        schema: FORMAT,
        node: identity.name.as_str().to_owned(),
        name: input.text_like(&instance)?.into_owned(),
        epoch: identity.epoch.to_string(),
        seq: input.signed()?,
        role: role_of(first >> 2)?,
        reason: None,
        since: None,
        cause: None,
        origin: input.word(ORIGINS)?,
        netns: None,
        interface: input.text_like(&instance)?.into_owned(),
        vrid: None,
        priority: None,
        advert_ms: None,
        vrrp_version: None,
        addresses: input.list(read_network)?,
        adverts: adverts_of(first & 3),
        keepalived: None,
        source: None,
        sync_group: None,
        findings: Vec::new(),
        recent: Vec::new(),
        instance,
    };
    if has(present::REASON) {
        record.reason = Some(input.text_like(&record.instance)?.into_owned());
    }
    if has(present::SINCE) {
        record.since = Some(time(input.signed()?)?);
    }
    if has(present::CAUSE) {
        record.cause = Some(read_cause(input)?);
    }
    if has(present::NETNS) {
        record.netns = Some(input.composed(NETNS_STARTS, &record.instance)?);
    }
    if has(present::VRID) {
        record.vrid = Some(input.byte()?);
    }
    if has(present::PRIORITY) {
        record.priority = Some(input.byte()?);
    }
    if has(present::VRRP_VERSION) {
        record.vrrp_version = Some(input.byte()?);
    }
    if has(present::ADVERT) {
        record.advert_ms = Some(input.unsigned()?);
    }
    if has(present::KEEPALIVED_RUNS) || has(present::KEEPALIVED_STOPPED) {
        record.keepalived = Some(has(present::KEEPALIVED_RUNS));
    }
    if has(present::SOURCE) {
        record.source = Some(read_network(input)?.addr());
    }
    if has(present::SYNC_GROUP) {
        record.sync_group = Some(input.text_like(&record.instance)?.into_owned());
    }
    if has(present::FINDINGS) {
        record.findings = input.list(|input| input.word(FindingKind::NAMES))?;
    }
    if has(present::RECENT) {
        record.recent = read_transitions(input, &record)?;
    }
    Some(record)
}

fn present_fields(record: &RoleRecord) -> u64 {
    let fields = [
        (record.reason.is_some(), present::REASON),
        (record.since.is_some(), present::SINCE),
        (record.cause.is_some(), present::CAUSE),
        (record.netns.is_some(), present::NETNS),
        (record.vrid.is_some(), present::VRID),
        (record.priority.is_some(), present::PRIORITY),
        (record.vrrp_version.is_some(), present::VRRP_VERSION),
        (record.advert_ms.is_some(), present::ADVERT),
        (!record.findings.is_empty(), present::FINDINGS),
        (!record.recent.is_empty(), present::RECENT),
        (record.keepalived == Some(true), present::KEEPALIVED_RUNS),
        (record.keepalived == Some(false), present::KEEPALIVED_STOPPED),
        (record.source.is_some(), present::SOURCE),
        (record.sync_group.is_some(), present::SYNC_GROUP),
    ];
    fields.into_iter().filter(|(is_present, _)| *is_present).map(|(_, field)| field).sum()
}

fn role_number(role: RoleKind) -> u8 {
    match role {
        RoleKind::Primary => 1,
        RoleKind::Partial => 2,
        RoleKind::Backup => 3,
        RoleKind::Fault => 4,
        RoleKind::Unknown => 5,
    }
}

fn role_of(number: u8) -> Option<RoleKind> {
    RoleKind::ALL.into_iter().find(|role| role_number(*role) == number)
}

fn adverts_number(adverts: ReceivedAdverts) -> u8 {
    match adverts {
        ReceivedAdverts::Unknown => 0,
        ReceivedAdverts::Other => 1,
        ReceivedAdverts::None => 2,
    }
}

fn adverts_of(number: u8) -> ReceivedAdverts {
    match number {
        1 => ReceivedAdverts::Other,
        2 => ReceivedAdverts::None,
        _ => ReceivedAdverts::Unknown,
    }
}

fn time(milliseconds: i64) -> Option<Timestamp> {
    Timestamp::from_millisecond(milliseconds).ok()
}

/// 0 and a text, or the number of the word, from 1.
fn cause(out: &mut ByteWriter, word: &str) {
    let position = CauseKind::VARIANTS.iter().position(|kind| kind.as_str() == word);
    let number = position.and_then(|position| u8::try_from(position + 1).ok());
    out.byte(number.unwrap_or(0));
    if number.is_none() {
        out.text_like(word, "");
    }
}

fn read_cause(input: &mut ByteReader<'_>) -> Option<String> {
    match usize::from(input.byte()?).checked_sub(1) {
        None => Some(input.text_like("")?.into_owned()),
        Some(position) => Some(CauseKind::VARIANTS.get(position)?.as_str().to_owned()),
    }
}

/// IPv4: one byte with a mark and the prefix length, then the address. IPv6: a mark, the prefix length, the address.
fn network(out: &mut ByteWriter, network: IpNet) {
    match network {
        IpNet::V4(net) => {
            out.byte(IPV4 | net.prefix_len());
            out.bytes(&net.addr().octets());
        }
        IpNet::V6(net) => {
            out.byte(IPV6);
            out.byte(net.prefix_len());
            out.bytes(&net.addr().octets());
        }
    }
}

const IPV4: u8 = 0x40;
const IPV6: u8 = 0x80;

fn read_network(input: &mut ByteReader<'_>) -> Option<IpNet> {
    let first = input.byte()?;
    let (address, length) = if first == IPV6 {
        let length = input.byte()?;
        (IpAddr::from(Ipv6Addr::from(input.array::<16>()?)), length)
    } else {
        (IpAddr::from(Ipv4Addr::from(input.array::<4>()?)), first & !IPV4)
    };
    IpNet::new(address, length).ok()
}

/// The transitions, the last one first, with numbers and times as distances: the last one often has those of the record.
fn transitions(out: &mut ByteWriter, record: &RoleRecord) {
    let (mut seq, mut at) = last_transition(record);
    let newest_first: Vec<&RecentTransition> = record.recent.iter().rev().collect();
    out.list(&newest_first, |out, transition| {
        let milliseconds = transition.at.as_millisecond();
        out.signed(transition.seq.wrapping_sub(seq));
        out.signed(milliseconds.wrapping_sub(at));
        let from = transition.from.map_or(0, role_number);
        let has_cause = if transition.cause.is_some() { HAS_CAUSE } else { 0 };
        out.byte(has_cause | from << 3 | role_number(transition.to));
        if let Some(word) = &transition.cause {
            cause(out, word);
        }
        (seq, at) = (transition.seq, milliseconds);
    });
}

const HAS_CAUSE: u8 = 0x80;

fn read_transitions(
    input: &mut ByteReader<'_>,
    record: &RoleRecord,
) -> Option<Vec<RecentTransition>> {
    let (mut seq, mut at) = last_transition(record);
    let mut transitions = input.list(|input| {
        seq = seq.wrapping_add(input.signed()?);
        at = at.wrapping_add(input.signed()?);
        let roles = input.byte()?;
        let cause = if roles & HAS_CAUSE != 0 { Some(read_cause(input)?) } else { None };
        let (from, to) = (role_of(roles >> 3 & 7), role_of(roles & 7)?);
        Some(RecentTransition { seq, at: time(at)?, from, to, cause })
    })?;
    transitions.reverse();
    Some(transitions)
}

/// The sequence number and the time, in milliseconds, that the last transition is expected to have.
fn last_transition(record: &RoleRecord) -> (i64, i64) {
    (record.seq, record.since.map_or(0, Timestamp::as_millisecond))
}

#[cfg(test)]
mod tests;
