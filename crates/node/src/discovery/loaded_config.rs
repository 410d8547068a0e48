// SPDX-License-Identifier: Apache-2.0
//! The configuration that the process of a file has loaded. keepalived reads its files when it starts and at each reload:
//! an edit changes no address before.

use std::time::{Duration, Instant, SystemTime};

use vipwatch_core::keepalived::Configuration;

use super::include::{ConfigRequest, load_copy};
use crate::processes::{MAX_LOADED_BYTES, ProcessSource};

/// The longest time for which a copy is taken to be changing; keepalived writes it within milliseconds. Without a copy, for
/// how long an edit has no effect. Withheld role changes wait for longer.
pub(super) const MAX_CHANGING: Duration = Duration::from_secs(4);

/// The configuration loaded by a file's process.
#[derive(Debug)]
pub(super) enum LoadedConfig {
    /// No running process is known to use the file.
    NoProcess,
    /// The process keeps no copy: it is a keepalived before 2.2. Or it has not completed its copy for a long time.
    NoCopy,
    /// The copy is being written.
    Changing,
    /// The whole copy, and when it was written.
    Known(Configuration, SystemTime),
}

/// Why the content of a file is not the one in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PendingEdit {
    /// The file, or what its process has loaded, is changing now. After a reload, keepalived may not have changed its
    /// addresses yet.
    Changing,
    /// The process has loaded another content, and wrote its copy at this time.
    NotLoaded {
        loaded_at: SystemTime,
        /// The file is missing, or keepalived may end or lose more when it reads it.
        is_refused: bool,
    },
    /// The process that had loaded another content has ended. Its addresses may be left.
    Ended,
}

impl LoadedConfig {
    /// Reads what the process `source` has loaded from the file of `request`.
    pub(super) fn read(source: Option<&ProcessSource>, request: ConfigRequest<'_>) -> Self {
        let Some(source) = source.filter(|source| source.is_running()) else {
            return Self::NoProcess;
        };
        let copy = match source.loaded_config() {
            Ok(Some(copy)) => copy,
            _ if !source.is_running() => return Self::NoProcess,
            Ok(None) => return Self::NoCopy,
            // For example without a free file descriptor.
            Err(_) => return Self::Changing,
        };
        let written = copy.written;
        let text = copy.text(MAX_LOADED_BYTES).unwrap_or_default();
        // ORDER: a reload that began during the read has changed the time.
        let is_same = source.has_loaded_at(written);
        match load_copy(request, &text).filter(|_| is_same) {
            Some(configuration) => Self::Known(configuration, written),
            None => Self::Changing,
        }
    }

    /// The same; a copy that has been changing for [`MAX_CHANGING`] counts as none: keepalived may be frozen, or its copy
    /// is beyond a limit. `since` is the time at which a scan first found it changing.
    pub(super) fn without_endless_change(self, since: &mut Option<Instant>) -> Self {
        if !matches!(self, Self::Changing) {
            *since = None;
            return self;
        }
        let since = since.get_or_insert_with(Instant::now);
        if since.elapsed() < MAX_CHANGING { self } else { Self::NoCopy }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_that_is_never_complete_counts_as_none_until_it_is() {
        let mut since = None;
        let changing = LoadedConfig::Changing.without_endless_change(&mut since);
        assert!(matches!(changing, LoadedConfig::Changing) && since.is_some());
        since = Instant::now().checked_sub(MAX_CHANGING);
        let endless = LoadedConfig::Changing.without_endless_change(&mut since);
        assert!(matches!(endless, LoadedConfig::NoCopy) && since.is_some());
        let known = LoadedConfig::Known(Configuration::default(), SystemTime::UNIX_EPOCH);
        let known = known.without_endless_change(&mut since);
        assert!(matches!(known, LoadedConfig::Known(..)) && since.is_none());
    }
}
