// SPDX-License-Identifier: Apache-2.0
//! A role record in few bytes.
//!
//! A node keeps the roles of all members of its groups, and a full view those of all groups of the domain. A [`RoleRecord`]
//! has a dozen texts and needs about 1 KiB; packed it needs about a tenth of that. Numbers have only as many bytes as they
//! need, words of a known list are a number, and a text that ends with the id of the instance (`qrouter-ID`) has only its
//! first part. The record is unpacked when it is read.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use ipnet::IpNet;
use vipwatch_api::{InstanceRole, Timestamp};
use vipwatch_core::audit::FINDING_NAMES;
use vipwatch_core::{CauseKind, InstanceId};

use super::bytes::{ByteReader, ByteWriter};
use crate::key::{Bucket, ClusterName};
use crate::record::{FORMAT, HeardPrimary, RecentTransition, RoleRecord};

/// The node and the epoch of a role. All roles of a node share one.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NodeIdentity {
    pub(super) name: ClusterName,
    pub(super) epoch: Box<str>,
}

/// A role record, packed.
#[derive(Debug, Clone)]
pub(super) struct PackedRole {
    pub(super) identity: Arc<NodeIdentity>,
    /// The revision of the last change of the key.
    pub(super) mod_revision: i64,
    /// The other fields, in the order of [`PackedRole::new`].
    body: Box<[u8]>,
}

/// The words of [`RoleRecord::origin`].
const ORIGINS: &[&str] = &["neutron", "keepalived", "vipwatch"];

impl PackedRole {
    /// Packs a record. `bucket` must be the one that [`Self::unpack`] gets.
    pub(super) fn new(
        record: &RoleRecord,
        bucket: &Bucket,
        identity: Arc<NodeIdentity>,
        mod_revision: i64,
    ) -> Self {
        let mut out = ByteWriter::default();
        out.byte(role_number(record.role));
        out.text_like(&record.instance, id_of_bucket(bucket));
        out.text_like(&record.name, &record.instance);
        out.signed(record.seq);
        out.optional_text(record.reason.as_deref(), &record.instance);
        out.optional(record.since, |out, since| out.signed(since.as_microsecond()));
        out.optional(record.cause.as_deref(), cause);
        out.word(&record.origin, ORIGINS);
        out.optional_text(record.netns.as_deref(), &record.instance);
        out.text_like(&record.interface, &record.instance);
        for number in [record.vrid, record.priority, record.vrrp_version] {
            out.optional(number, ByteWriter::byte);
        }
        out.optional(record.advert_ms, ByteWriter::unsigned);
        out.list(&record.addresses, |out, address| network(out, *address));
        out.byte(match record.heard {
            HeardPrimary::Other => 1,
            HeardPrimary::None => 2,
            HeardPrimary::Unknown => 0,
        });
        out.list(&record.findings, |out, name| out.word(name, FINDING_NAMES));
        transitions(&mut out, record);
        Self { identity, mod_revision, body: out.into_bytes() }
    }

    /// The id of the instance.
    pub(super) fn instance<'a>(&'a self, bucket: &'a Bucket) -> std::borrow::Cow<'a, str> {
        let mut input = ByteReader::new(&self.body);
        input.byte().and_then(|_| input.text_like(id_of_bucket(bucket))).unwrap_or_default()
    }

    /// The role.
    pub(super) fn role(&self) -> InstanceRole {
        self.body.first().and_then(|number| role_of(*number)).unwrap_or(InstanceRole::Unknown)
    }

    /// The record; `None` never happens for bytes of [`Self::new`].
    pub(super) fn unpack(&self, bucket: &Bucket) -> Option<RoleRecord> {
        let input = &mut ByteReader::new(&self.body);
        let role = role_of(input.byte()?)?;
        let instance = input.text_like(id_of_bucket(bucket))?.into_owned();
        let name = input.text_like(&instance)?.into_owned();
        let seq = input.signed()?;
        let reason = input.optional_text(&instance)?;
        let since = input.optional(|input| time(input.signed()?))?;
        let cause = input.optional(read_cause)?;
        let origin = input.word(ORIGINS)?;
        let netns = input.optional_text(&instance)?;
        let interface = input.text_like(&instance)?.into_owned();
        let vrid = input.optional(ByteReader::byte)?;
        let priority = input.optional(ByteReader::byte)?;
        let vrrp_version = input.optional(ByteReader::byte)?;
        let advert_ms = input.optional(ByteReader::unsigned)?;
        let addresses = input.list(read_network)?;
        let heard = match input.byte()? {
            1 => HeardPrimary::Other,
            2 => HeardPrimary::None,
            _ => HeardPrimary::Unknown,
        };
        let findings = input.list(|input| input.word(FINDING_NAMES))?;
        let recent = read_transitions(input, seq)?;
        let node = self.identity.name.as_str().to_owned();
        let epoch = self.identity.epoch.to_string();
        Some(RoleRecord {
            schema: FORMAT,
            node,
            instance,
            name,
            epoch,
            seq,
            role,
            reason,
            since,
            cause,
            origin,
            netns,
            interface,
            vrid,
            priority,
            advert_ms,
            vrrp_version,
            addresses,
            heard,
            findings,
            recent,
        })
    }
}

/// A text that the instances of a bucket often have as their id.
fn id_of_bucket(bucket: &Bucket) -> &str {
    match bucket {
        Bucket::Router(id) | Bucket::Configured(id) | Bucket::Alone { instance: id, .. } => {
            InstanceId::as_str(id)
        }
        Bucket::Vrrp { .. } => "",
    }
}

fn role_number(role: InstanceRole) -> u8 {
    match role {
        InstanceRole::Primary => 1,
        InstanceRole::Partial => 2,
        InstanceRole::Backup => 3,
        InstanceRole::Fault => 4,
        InstanceRole::Unknown => 5,
    }
}

fn role_of(number: u8) -> Option<InstanceRole> {
    InstanceRole::ALL.into_iter().find(|role| role_number(*role) == number)
}

fn time(microseconds: i64) -> Option<Timestamp> {
    Timestamp::from_microsecond(microseconds).ok()
}

/// 0 and a text, or the number of the word, from 1.
fn cause(out: &mut ByteWriter, word: &str) {
    let position = CauseKind::ALL.iter().position(|kind| kind.as_str() == word);
    match position.and_then(|position| u8::try_from(position + 1).ok()) {
        Some(number) => out.byte(number),
        None => {
            out.byte(0);
            out.text_like(word, "");
        }
    }
}

fn read_cause(input: &mut ByteReader<'_>) -> Option<String> {
    match input.byte()? {
        0 => Some(input.text_like("")?.into_owned()),
        number => {
            let kind = CauseKind::ALL.get(usize::from(number) - 1)?;
            Some(kind.as_str().to_owned())
        }
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

/// The transitions, with their numbers and times as distances: the last one has the number of the record.
fn transitions(out: &mut ByteWriter, record: &RoleRecord) {
    let mut seq = record.seq;
    let mut at = 0;
    out.list(&record.recent, |out, transition| {
        out.signed(transition.seq.wrapping_sub(seq));
        out.signed(transition.at.as_microsecond().wrapping_sub(at));
        let from = transition.from.map_or(0, role_number);
        out.byte(from << 4 | role_number(transition.to));
        out.optional(transition.cause.as_deref(), cause);
        seq = transition.seq;
        at = transition.at.as_microsecond();
    });
}

fn read_transitions(input: &mut ByteReader<'_>, seq: i64) -> Option<Vec<RecentTransition>> {
    let mut seq = seq;
    let mut at = 0_i64;
    input.list(|input| {
        seq = seq.wrapping_add(input.signed()?);
        at = at.wrapping_add(input.signed()?);
        let roles = input.byte()?;
        let cause = input.optional(read_cause)?;
        let from = role_of(roles >> 4);
        Some(RecentTransition { seq, at: time(at)?, from, to: role_of(roles & 0xF)?, cause })
    })
}

#[cfg(test)]
mod tests;
