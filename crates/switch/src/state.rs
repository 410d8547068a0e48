// SPDX-License-Identifier: Apache-2.0
//! The state of a router: in its state file, and in the kernel.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use vipwatch_core::{NeutronState, Tracker};
use vipwatch_linux::file::read_head;
use vipwatch_linux::netns_query::{NetnsQuery, NetnsQueryError};

use crate::command_line::MonitorCommand;

/// The word in the state file; `None` if there is none, or if it is not a word of Neutron.
pub(crate) fn word_in_file(conf_dir: &Path) -> Option<&'static str> {
    let text = read_head(&conf_dir.join("state"), 16).ok()?;
    ["primary", "master", "backup"].into_iter().find(|word| text == word.as_bytes())
}

/// The state that a word means.
pub(crate) fn state_of_word(word: &str) -> NeutronState {
    if word == "backup" { NeutronState::Backup } else { NeutronState::Primary }
}

/// The state by the addresses in the router's namespace.
pub(crate) fn state_in_kernel(command: &MonitorCommand) -> Result<NeutronState, NetnsQueryError> {
    let snapshot = NetnsQuery::snapshot_by_visit(Some(&command.netns))?;
    Ok(command.watch.map_or(NeutronState::Backup, |watch| Tracker::new(watch).state_in(&snapshot)))
}

/// When and in which file a state was written. Every write changes it, also one of the same word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StateMark(Option<(u64, i64, i64)>);

impl StateMark {
    /// The mark of the state file as it is now.
    pub(crate) fn of(conf_dir: &Path) -> Self {
        let metadata = std::fs::metadata(conf_dir.join("state")).ok();
        Self(metadata.map(|file| (file.ino(), file.mtime(), file.mtime_nsec())))
    }
}
