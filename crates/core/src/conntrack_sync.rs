// SPDX-License-Identifier: Apache-2.0
//! The result of one synchronisation of connection tracking: one line of text that the drop-in writes and the node reads.
//!
//! ```text
//!   primary 1731800000123 12345 0
//!   state   end (Unix ms)  µs   failed commands
//! ```

use std::fmt;
use std::time::Duration;

use crate::NeutronState;

/// The name of the file, in the directory of the state file.
pub const CONNTRACK_STATUS_FILE: &str = "conntrack.status";

/// Maximum length of the line in bytes.
pub const MAX_CONNTRACK_STATUS_BYTES: usize = 128;

/// The longest duration that is believed. The commands of one request have a time limit of some seconds each.
const MAX_DURATION: Duration = Duration::from_hours(1);

/// The result of one synchronisation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConntrackSync {
    /// The state for which the commands ran.
    pub state: NeutronState,
    /// When the last command ended, in milliseconds since the Unix epoch.
    pub ended_at: u64,
    /// The time from the request to the end of the last command.
    pub duration: Duration,
    /// The number of commands that failed or could not be started.
    pub failed: u32,
}

impl fmt::Display for ConntrackSync {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { state, ended_at, duration, failed } = self;
        writeln!(f, "{} {ended_at} {} {failed}", state.as_str(), duration.as_micros())
    }
}

impl ConntrackSync {
    /// Reads the content of the file, which another user may have written. `None` if it is not exactly one valid line.
    pub fn parse(content: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(content).ok()?.strip_suffix('\n')?;
        if text.len() >= MAX_CONNTRACK_STATUS_BYTES || text.contains('\n') {
            return None;
        }
        let mut words = text.split(' ');
        let mut next = || words.next();
        let state = match next()? {
            "primary" => NeutronState::Primary,
            "backup" => NeutronState::Backup,
            _ => return None,
        };
        let ended_at = next()?.parse().ok()?;
        let duration = Duration::from_micros(next()?.parse().ok()?);
        let failed = next()?.parse().ok()?;
        let is_valid = next().is_none() && duration <= MAX_DURATION;
        is_valid.then_some(Self { state, ended_at, duration, failed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_read_as_it_was_written() {
        for (state, failed) in [(NeutronState::Primary, 0), (NeutronState::Backup, 3)] {
            let duration = Duration::from_micros(12_345);
            let sync = ConntrackSync { state, ended_at: 1_731_800_000_123, duration, failed };
            let text = sync.to_string();
            assert!(text.len() < MAX_CONNTRACK_STATUS_BYTES);
            assert_eq!(ConntrackSync::parse(text.as_bytes()), Some(sync), "{text}");
        }
    }

    #[test]
    fn other_content_is_no_result() {
        let long = format!("primary 1 {} 0\n", "9".repeat(200));
        for text in [
            "",
            "\n",
            "primary 1 2 0",
            "primary 1 2\n",
            "primary 1 2 0 5\n",
            "master 1 2 0\n",
            "primary -1 2 0\n",
            "primary 1 2 0\nprimary 1 2 0\n",
            "primary 1 99999999999999999999 0\n",
            "primary 1 3600000001 0\n",
            "primary  1 2 0\n",
            &long,
        ] {
            assert_eq!(ConntrackSync::parse(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(ConntrackSync::parse(b"\xff\xfe 1 2 0\n"), None);
    }
}
