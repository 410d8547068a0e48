// SPDX-License-Identifier: Apache-2.0
//! The release of keepalived that reads a configuration: it decides which words are known.

use std::fmt;

/// What stands before the version in the executable, as in `Keepalived v2.2.7 (01/16,2022)`.
const MARK: &[u8] = b"Keepalived v";

/// A release of keepalived.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(u8, u8, u8);

impl Version {
    /// The newest release with a known grammar.
    pub const NEWEST: Self = Self(2, 4, 3);

    /// The longest text that [`Self::in_executable`] needs, in bytes.
    pub const TEXT_BYTES: usize = MARK.len() + "255.255.255 ".len();

    pub(super) const fn new(major: u8, minor: u8, patch: u8) -> Self {
        Self(major, minor, patch)
    }

    /// The version in a part of keepalived's executable; `None` if no version begins in it.
    pub fn in_executable(bytes: &[u8]) -> Option<Self> {
        let mut starts =
            bytes.windows(MARK.len()).enumerate().filter(|(_, window)| *window == MARK);
        starts.find_map(|(at, _)| Self::parse(&bytes[at + MARK.len()..]))
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let is_part = |byte: &u8| byte.is_ascii_digit() || *byte == b'.';
        let end = bytes.iter().position(|byte| !is_part(byte))?;
        let mut parts = std::str::from_utf8(&bytes[..end]).ok()?.split('.').map(str::parse);
        let version = Self(parts.next()?.ok()?, parts.next()?.ok()?, parts.next()?.ok()?);
        parts.next().is_none().then_some(version)
    }
}

/// The newest: it knows all words.
impl Default for Version {
    fn default() -> Self {
        Self::NEWEST
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(major, minor, patch) = self;
        write!(f, "{major}.{minor}.{patch}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_found_between_other_bytes() {
        let of = |text: &str| Version::in_executable(text.as_bytes());
        let version = of("\0Keepalived v\0Keepalived v2.2.7 (01/16,2022)\0").unwrap();
        assert_eq!((version, version.to_string().as_str()), (Version(2, 2, 7), "2.2.7"));
        assert_eq!(of("Keepalived v2.4.10+git"), Some(Version(2, 4, 10)));
        for other in ["Keepalived v2.2", "Keepalived v2.2.7", "Keepalived v999.1.1 ", "v2.2.7 "] {
            assert_eq!(of(other), None, "{other}");
        }
        assert!(of("Keepalived v255.255.255 ").is_some() && Version::TEXT_BYTES == 24);
    }
}
