// SPDX-License-Identifier: Apache-2.0
//! The keys in etcd.
//!
//! ```text
//!   /vipwatch/v1/DOMAIN/node/NODE                    NodeRecord      lease of the process: the node is alive
//!   /vipwatch/v1/DOMAIN/member/NODE                  MemberRecord    lease of the membership
//!   /vipwatch/v1/DOMAIN/role/BUCKET/NODE/INSTANCE    RoleRecord      lease of the membership
//!   /vipwatch/v1/DOMAIN/reporter                     ReporterRecord  lease of the process
//!   /vipwatch/v1/DOMAIN/finding/ID                   FindingRecord   no lease: an open finding
//!   /vipwatch/v1/DOMAIN/closed/ID                    FindingRecord   lease of the retention
//!   /vipwatch/v1/DOMAIN/silence/ID                   SilenceRecord   lease of its own: the end of the silence
//! ```
//!
//! The lease of the process ends seconds after the process. The lease of the membership ends days later, so that the last
//! known roles of a lost node stay visible. A bucket holds all instances that can belong to one group, so a node
//! watches only the buckets of its own instances.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use vipwatch_core::InstanceId;

use crate::group::naming_address;

/// The first part of all keys, with the version of the layout.
const ROOT: &str = "/vipwatch/v1";

/// The keys of one domain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeySpace {
    /// `/vipwatch/v1/DOMAIN/`
    prefix: String,
}

/// A text that cannot be the name of a domain or of a node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid name {name:?}: use 1 to 64 letters, digits, '-', '_' and '.'")]
pub struct InvalidName {
    /// The text.
    pub name: String,
}

/// The name of a node or of a domain: letters, digits, `-`, `_` and `.`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterName(InstanceId);

/// The domain of a node without one in its configuration.
const DEFAULT_DOMAIN: &str = "default";

impl ClusterName {
    /// The domain of a node without one in its configuration.
    pub fn default_domain() -> Self {
        Self(
            InstanceId::of_name(DEFAULT_DOMAIN)
                .unwrap_or_else(|_error| unreachable!("a valid name")),
        )
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl FromStr for ClusterName {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let invalid = |_| InvalidName { name: text.chars().take(80).collect() };
        let id: InstanceId = text.parse().map_err(invalid)?;
        if text.contains('~') {
            return Err(InvalidName { name: text.to_owned() });
        }
        Ok(Self(id))
    }
}

impl fmt::Display for ClusterName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The set of instances that can belong to one group.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Bucket {
    /// A Neutron router: all instances with this id are one group.
    Router(InstanceId),
    /// A configured group: all instances of this bucket are one group.
    Configured(InstanceId),
    /// A family and a VRID: instances with a common virtual address are one group.
    Vrrp {
        /// Whether the addresses are IPv6 addresses.
        is_ipv6: bool,
        /// The virtual router id; `None` for instances of which no VRID is known.
        vrid: Option<u8>,
    },
    /// An instance that has neither of them: it is alone.
    Alone {
        /// The node of the instance.
        node: ClusterName,
        /// The instance.
        instance: InstanceId,
    },
}

impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Router(id) => write!(f, "router:{id}"),
            Self::Configured(name) => write!(f, "group:{name}"),
            Self::Vrrp { is_ipv6, vrid } => {
                let family = if *is_ipv6 { "ipv6" } else { "ipv4" };
                match vrid {
                    Some(vrid) => write!(f, "vrrp:{family}:{vrid}"),
                    None => write!(f, "vrrp:{family}:-"),
                }
            }
            Self::Alone { node, instance } => write!(f, "alone:{node}:{instance}"),
        }
    }
}

/// A text is not the name of a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not the name of a bucket")]
pub struct InvalidBucket;

impl FromStr for Bucket {
    type Err = InvalidBucket;

    fn from_str(text: &str) -> Result<Self, InvalidBucket> {
        let id = |text: &str| text.parse::<InstanceId>().ok().ok_or(InvalidBucket);
        let (kind, rest) = text.split_once(':').ok_or(InvalidBucket)?;
        match kind {
            "router" => Ok(Self::Router(id(rest)?)),
            "group" => Ok(Self::Configured(id(rest)?)),
            "vrrp" => {
                let (family, vrid) = rest.split_once(':').ok_or(InvalidBucket)?;
                let is_ipv6 = match family {
                    "ipv4" => false,
                    "ipv6" => true,
                    _ => return Err(InvalidBucket),
                };
                if vrid == "-" {
                    return Ok(Self::Vrrp { is_ipv6, vrid: None });
                }
                let number = vrid.parse::<u8>().ok().ok_or(InvalidBucket)?;
                // Each bucket has one name only.
                let is_plain = number.to_string() == vrid;
                is_plain.then_some(Self::Vrrp { is_ipv6, vrid: Some(number) }).ok_or(InvalidBucket)
            }
            "alone" => {
                let (node, instance) = rest.split_once(':').ok_or(InvalidBucket)?;
                let node = node.parse().ok().ok_or(InvalidBucket)?;
                Ok(Self::Alone { node, instance: id(instance)? })
            }
            _ => Err(InvalidBucket),
        }
    }
}

impl Bucket {
    /// The id of an instance's group as its own node knows it, without the records of other nodes: that of the group, unless
    /// other members of the group have other first addresses. `addresses` are those of the instance, in the order of its
    /// configuration.
    pub fn own_group(&self, addresses: impl Iterator<Item = IpAddr>) -> String {
        match self {
            Self::Vrrp { is_ipv6, .. } => match naming_address(addresses, *is_ipv6) {
                Some(address) => format!("{self}:{address}"),
                None => self.to_string(),
            },
            Self::Router(_) | Self::Configured(_) | Self::Alone { .. } => self.to_string(),
        }
    }

    /// The bucket of a group; `None` if the text is not the id of a group. That of a VRID ends with an address.
    pub fn of_group(group: &str) -> Option<Self> {
        let Some(rest) = group.strip_prefix("vrrp:") else { return group.parse().ok() };
        let mut parts = rest.splitn(3, ':');
        let (family, vrid, address) = (parts.next()?, parts.next()?, parts.next()?);
        let bucket = format!("vrrp:{family}:{vrid}").parse().ok()?;
        let address: IpAddr = address.parse().ok()?;
        matches!(bucket, Self::Vrrp { is_ipv6, .. } if is_ipv6 == address.is_ipv6())
            .then_some(bucket)
    }
}

/// The instance that a key of a role is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RoleKey {
    /// The bucket of the instance.
    pub bucket: Bucket,
    /// The node that follows the instance.
    pub node: ClusterName,
    /// The id of the instance on that node.
    pub instance: InstanceId,
}

/// A key of vipwatch.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ClusterKey {
    /// A running node.
    Node(ClusterName),
    /// A node that belongs to the cluster, running or not.
    Member(ClusterName),
    /// The role of an instance.
    Role(RoleKey),
    /// The node that delivers the findings of the cluster.
    Reporter,
    /// An open finding.
    Finding(FindingId),
    /// A finding that has ended.
    Closed(FindingId),
    /// A silence.
    Silence(SilenceId),
}

/// The id of a silence.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SilenceId(String);

impl SilenceId {
    /// The id of a silence with this number on a node.
    pub fn of_node(node: &ClusterName, number: i64) -> Self {
        Self(format!("{node}.{number}"))
    }

    /// The name of the node that adds silences with such ids; `None` for a silence that a command has added.
    pub(crate) fn node(&self) -> Option<&str> {
        let (node, number) = self.0.rsplit_once('.')?;
        number.parse::<i64>().is_ok().then_some(node)
    }

    /// Whether a silence with this id was added on this node.
    pub fn is_of_node(&self, node: &ClusterName) -> bool {
        self.node() == Some(node.as_str())
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for SilenceId {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let is_valid = !text.is_empty()
            && text.len() <= MAX_SILENCE_ID
            && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
        let invalid = || InvalidName { name: text.chars().take(80).collect() };
        is_valid.then(|| Self(text.to_owned())).ok_or_else(invalid)
    }
}

impl fmt::Display for SilenceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The maximum length of a silence's id: the name of a node, and a number.
const MAX_SILENCE_ID: usize = 96;

/// The id of a finding: the revision of etcd at which it was opened, and its name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FindingId(String);

impl FindingId {
    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for FindingId {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let name: ClusterName = text.parse()?;
        Ok(Self(name.as_str().to_owned()))
    }
}

impl fmt::Display for FindingId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl KeySpace {
    /// The keys of a domain.
    pub fn new(domain: &ClusterName) -> Self {
        Self { prefix: format!("{ROOT}/{domain}/") }
    }

    /// The prefix of the keys of all domains.
    pub(crate) fn domains() -> String {
        format!("{ROOT}/")
    }

    /// The domain of a key; `None` for a key that vipwatch does not write.
    pub(crate) fn domain_of(key: &str) -> Option<ClusterName> {
        key.strip_prefix(ROOT)?.strip_prefix('/')?.split_once('/')?.0.parse().ok()
    }

    /// The prefix of all keys of the domain.
    pub fn all(&self) -> &str {
        &self.prefix
    }

    /// The prefix of the keys of running nodes.
    pub fn nodes(&self) -> String {
        self.below("node/")
    }

    /// The prefix of the keys of members.
    pub fn members(&self) -> String {
        self.below("member/")
    }

    /// The prefix of the keys of all roles.
    pub fn roles(&self) -> String {
        self.below("role/")
    }

    /// The prefix of the keys of the roles in one bucket.
    pub fn bucket(&self, bucket: &Bucket) -> String {
        self.below(&format!("role/{bucket}/"))
    }

    /// The prefix of the keys of open findings.
    pub fn findings(&self) -> String {
        self.below("finding/")
    }

    /// The prefix of the keys of findings that have ended.
    pub fn closed_findings(&self) -> String {
        self.below("closed/")
    }

    /// The prefix of the keys of silences.
    pub fn silences(&self) -> String {
        self.below("silence/")
    }

    /// The text of a key.
    pub fn text(&self, key: &ClusterKey) -> String {
        match key {
            ClusterKey::Node(node) => self.below(&format!("node/{node}")),
            ClusterKey::Member(node) => self.below(&format!("member/{node}")),
            ClusterKey::Role(RoleKey { bucket, node, instance }) => {
                self.below(&format!("role/{bucket}/{node}/{instance}"))
            }
            ClusterKey::Reporter => self.below("reporter"),
            ClusterKey::Finding(id) => self.below(&format!("finding/{id}")),
            ClusterKey::Closed(id) => self.below(&format!("closed/{id}")),
            ClusterKey::Silence(id) => self.below(&format!("silence/{id}")),
        }
    }

    /// The key with this text; `None` for a key that vipwatch does not write in this domain.
    pub fn parse(&self, text: &str) -> Option<ClusterKey> {
        let rest = text.strip_prefix(&self.prefix)?;
        if rest == "reporter" {
            return Some(ClusterKey::Reporter);
        }
        let (kind, rest) = rest.split_once('/')?;
        match kind {
            "node" => Some(ClusterKey::Node(rest.parse().ok()?)),
            "member" => Some(ClusterKey::Member(rest.parse().ok()?)),
            "finding" => Some(ClusterKey::Finding(rest.parse().ok()?)),
            "closed" => Some(ClusterKey::Closed(rest.parse().ok()?)),
            "silence" => Some(ClusterKey::Silence(rest.parse().ok()?)),
            "role" => {
                let mut parts = rest.split('/');
                let (bucket, node, instance) = (parts.next()?, parts.next()?, parts.next()?);
                if parts.next().is_some() {
                    return None;
                }
                let bucket = bucket.parse().ok()?;
                Some(ClusterKey::Role(RoleKey {
                    bucket,
                    node: node.parse().ok()?,
                    instance: instance.parse().ok()?,
                }))
            }
            _ => None,
        }
    }

    fn below(&self, rest: &str) -> String {
        format!("{}{rest}", self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key_space() -> KeySpace {
        KeySpace::new(&"prod".parse().unwrap())
    }

    #[test]
    fn a_key_is_parsed_from_its_own_text() {
        let instance: InstanceId = "VI_1".parse().unwrap();
        let node: ClusterName = "net-1.example".parse().unwrap();
        let buckets = [
            Bucket::Router("8b1c".parse().unwrap()),
            Bucket::Configured(InstanceId::of_name("web/front").unwrap()),
            Bucket::Vrrp { is_ipv6: true, vrid: Some(51) },
            Bucket::Alone { node: node.clone(), instance: instance.clone() },
        ];
        let roles = buckets.map(|bucket| {
            let (node, instance) = (node.clone(), instance.clone());
            ClusterKey::Role(RoleKey { bucket, node, instance })
        });
        let id: FindingId = "17-no-primary".parse().unwrap();
        let others = [
            ClusterKey::Node(node.clone()),
            ClusterKey::Member(node),
            ClusterKey::Reporter,
            ClusterKey::Finding(id.clone()),
            ClusterKey::Closed(id),
        ];
        for key in roles.into_iter().chain(others) {
            let text = key_space().text(&key);
            assert_eq!(key_space().parse(&text), Some(key), "{text}");
        }
    }

    #[test]
    fn the_bucket_of_a_group_is_in_its_id() {
        let bucket = |text: &str| Bucket::of_group(text).map(|bucket| bucket.to_string());
        assert_eq!(bucket("vrrp:ipv6:51:2001:db8::1").as_deref(), Some("vrrp:ipv6:51"));
        assert_eq!(bucket("vrrp:ipv4:7:192.0.2.1").as_deref(), Some("vrrp:ipv4:7"));
        assert_eq!(bucket("router:8b1c").as_deref(), Some("router:8b1c"));
        assert_eq!(bucket("group:web").as_deref(), Some("group:web"));
        for text in ["nonsense", "vrrp:ipv4:7:a text", "vrrp:ipv4:7:2001:db8::1", "vrrp:ipv4:7"] {
            assert_eq!(bucket(text), None, "{text}");
        }
    }

    #[test]
    fn the_domain_of_a_key_is_its_third_part() {
        let domain = |key: &str| KeySpace::domain_of(key).map(|name| name.to_string());
        assert_eq!(domain("/vipwatch/v1/prod/node/a").as_deref(), Some("prod"));
        for key in ["/vipwatch/v1/prod", "/vipwatch/v1//node", "/vipwatch/v2/prod/node", "/other"] {
            assert_eq!(domain(key), None, "{key}");
        }
    }

    #[test]
    fn a_foreign_key_is_not_parsed() {
        for text in [
            "/vipwatch/v1/other/node/a",
            "/vipwatch/v1/prod/node/a b",
            "/vipwatch/v1/prod/node/a/b",
            "/vipwatch/v1/prod/role/vrrp:ipv4:051/a/VI_1",
            "/vipwatch/v1/prod/role/vrrp:ipv4:256/a/VI_1",
            "/vipwatch/v1/prod/role/vrrp:ipv4:51/a",
            "/vipwatch/v1/prod/role/vrrp:ipv4:51/a/VI_1/more",
            "/vipwatch/v1/prod/unknown/a",
            "/vipwatch/v1/prod/reporter/a",
        ] {
            assert_eq!(key_space().parse(text), None, "{text}");
        }
    }
}
