// SPDX-License-Identifier: Apache-2.0
//! Names of instances, namespaces and links, and the watched address.
//!
//! Names come from a command line or a file and are validated once, when they are parsed. After that, a
//! [`LinkName`] is valid for the kernel, and an [`InstanceId`] is safe in a path, a header or a log line.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use ipnet::IpNet;

/// Why a name is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The name is empty.
    #[error("empty name")]
    Empty,
    /// The name is too long.
    #[error("longer than {limit} bytes")]
    TooLong {
        /// The maximum length of this kind of name, in bytes.
        limit: usize,
    },
    /// The name contains a character that could change the meaning of a path, a header or a log line.
    #[error("invalid character {0:?}")]
    Character(char),
    /// The name is `.` or `..`, which has a special meaning in a path.
    #[error("names a directory")]
    Directory,
}

/// The id of an instance, for example the id of a Neutron router. Clones share the text: a node has
/// thousands of ids, each in many tables.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InstanceId(Arc<str>);

impl InstanceId {
    /// The maximum length in bytes. A UUID has 36, and the id must fit into a socket address.
    pub const LIMIT: usize = 64;

    /// The id as text: ASCII letters, digits, `-`, `_`, `.`, and the `~XX` escapes of [`Self::of_name`].
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The id for an instance of any name. Each byte that is invalid in an id becomes `~` and two
    /// hexadecimal digits: `VI/1` gives `VI~2F1`. Two different names never have the same id.
    pub fn of_name(name: &str) -> Result<Self, NameError> {
        use fmt::Write as _;
        let is_directory = name == "." || name == "..";
        let mut id = String::with_capacity(name.len());
        for byte in name.bytes() {
            if is_plain(char::from(byte)) && !is_directory {
                id.push(char::from(byte));
            } else {
                // Writing to a string cannot fail.
                let _ = write!(id, "~{byte:02X}");
            }
        }
        id.parse()
    }
}

/// Whether an id contains the character without an escape.
fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')
}

impl FromStr for InstanceId {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        check(text, Self::LIMIT, |c| is_plain(c) || c == '~')?;
        let is_digit = |c: char| matches!(c, '0'..='9' | 'A'..='F');
        let is_escape = |rest: &str| rest.chars().take(2).filter(|c| is_digit(*c)).count() == 2;
        if text.split('~').skip(1).all(is_escape) {
            Ok(Self(text.into()))
        } else {
            Err(NameError::Character('~'))
        }
    }
}

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The name of a network namespace, as `ip netns` lists it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NetnsName {
    text: Arc<str>,
    /// Set for a namespace without a name of its own.
    process: Option<NetnsProcess>,
}

/// A process in a namespace without a name: it leads to the namespace as long as it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NetnsProcess {
    /// The pid.
    pub pid: u32,
    /// The start time in clock ticks since the boot, which tells the process from a later one with the same pid.
    pub started: u64,
}

impl NetnsName {
    /// The namespace of a process, if it has no name. It is shown as `pid:PID`.
    pub fn of_process(process: NetnsProcess) -> Self {
        Self { text: format!("pid:{}", process.pid).into(), process: Some(process) }
    }

    /// The process that leads to the namespace; `None` if the namespace has a name.
    pub fn process(&self) -> Option<NetnsProcess> {
        self.process
    }

    /// The name as text; never a path.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl FromStr for NetnsName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        check(text, 255, |c| c != '/' && !c.is_control() && !c.is_whitespace())?;
        Ok(Self { text: text.into(), process: None })
    }
}

impl fmt::Display for NetnsName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The name of a network interface. It is stored inline because every link event copies it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct LinkName {
    bytes: [u8; Self::LIMIT],
    len: u8,
}

impl LinkName {
    /// The maximum length in bytes: `IFNAMSIZ` without the final zero.
    pub const LIMIT: usize = 15;

    /// A name from a kernel message; `None` if it is empty or too long.
    pub fn from_kernel(name: &[u8]) -> Option<Self> {
        if name.is_empty() || name.len() > Self::LIMIT {
            return None;
        }
        let mut bytes = [0; Self::LIMIT];
        bytes[..name.len()].copy_from_slice(name);
        Some(Self { bytes, len: u8::try_from(name.len()).ok()? })
    }

    /// The name as bytes, at most [`Self::LIMIT`].
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl FromStr for LinkName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        check(text, Self::LIMIT, |c| {
            c != '/' && c != ':' && !c.is_control() && !c.is_whitespace()
        })?;
        Self::from_kernel(text.as_bytes()).ok_or(NameError::Empty)
    }
}

impl fmt::Display for LinkName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(self.as_bytes()))
    }
}

impl fmt::Debug for LinkName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LinkName({self})")
    }
}

/// The address that decides the state: the node that holds it on the link is primary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WatchedAddress {
    /// The name of the link. A link that is created again keeps its name, not its index.
    pub link: LinkName,
    /// The virtual address with its prefix length; both must match.
    pub vip: IpNet,
}

/// Parses a virtual address in any spelling. Without a prefix length it is a host address, as for
/// keepalived and `ip address`. `None` if the text is not an address.
pub fn parse_vip(text: &str) -> Option<IpNet> {
    text.parse().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from))
}

fn check(text: &str, limit: usize, is_allowed: impl Fn(char) -> bool) -> Result<(), NameError> {
    if text.is_empty() {
        return Err(NameError::Empty);
    }
    if text.len() > limit {
        return Err(NameError::TooLong { limit });
    }
    if text == "." || text == ".." {
        return Err(NameError::Directory);
    }
    text.chars().find(|c| !is_allowed(*c)).map_or(Ok(()), |c| Err(NameError::Character(c)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_of_an_address_is_the_same_address() {
        let canonical = parse_vip("2001:db8::1/64");
        assert!(canonical.is_some());
        assert_eq!(parse_vip("2001:DB8:0:0:0:0:0:1/64"), canonical);
        assert_eq!(parse_vip("2001:0db8::0001/64"), canonical);
    }

    #[test]
    fn the_prefix_length_is_part_of_the_address() {
        assert_ne!(parse_vip("169.254.0.1/24"), parse_vip("169.254.0.1/32"));
        assert_eq!(parse_vip("169.254.0.1"), parse_vip("169.254.0.1/32"));
    }

    #[test]
    fn text_that_is_not_an_address_is_none() {
        for text in
            ["failed_IP_address", "", "1.2.3/24", "1.2.3.4/33", "::1/129", "1.2.3.4/", "a/b"]
        {
            assert_eq!(parse_vip(text), None, "{text}");
        }
    }

    #[test]
    fn an_id_that_could_break_a_header_a_path_or_a_log_is_refused() {
        for text in ["", "..", "a/b", "a\r\nX-Neutron-State: primary", "a b", "a\0", "é"] {
            assert!(text.parse::<InstanceId>().is_err(), "{text:?}");
        }
        assert!("a".repeat(InstanceId::LIMIT + 1).parse::<InstanceId>().is_err());
        assert!("6f1c8a0e-0c4c-4f0e-9a5d-0f0f0f0f0f0f".parse::<InstanceId>().is_ok());
    }

    #[test]
    fn different_instance_names_have_different_ids() {
        let id = |name: &str| InstanceId::of_name(name).unwrap().to_string();
        assert_eq!(id("VI_1"), "VI_1");
        assert_eq!(id("VI/1"), "VI~2F1");
        assert_eq!(id("a b~c"), "a~20b~7Ec");
        assert_eq!(id(".."), "~2E~2E");
        assert_eq!(id("é"), "~C3~A9");
        assert!(InstanceId::of_name("").is_err() && InstanceId::of_name(&"/".repeat(30)).is_err());
        for text in ["a~", "a~2", "a~2f", "~zz"] {
            assert!(text.parse::<InstanceId>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_link_name_must_fit_the_kernel() {
        assert!("ha-12345678-90".parse::<LinkName>().is_ok());
        for text in ["", "sixteen-bytes-xx", "a/b", "a b", "eth0:1", ".."] {
            assert!(text.parse::<LinkName>().is_err(), "{text:?}");
        }
    }
}
