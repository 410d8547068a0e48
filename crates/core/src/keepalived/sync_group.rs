// SPDX-License-Identifier: Apache-2.0
//! The `vrrp_sync_group` blocks: which instances change their role together.

use std::sync::Arc;

use super::blocks::Statement;

/// A `vrrp_sync_group` with the names of its members.
#[derive(Debug)]
struct SyncGroup {
    name: Arc<str>,
    members: Vec<String>,
}

/// All groups of a configuration, in the order of the file.
#[derive(Debug, Default)]
pub(super) struct SyncGroups {
    groups: Vec<SyncGroup>,
    /// Whether the entries of `group` belong to the last group.
    is_open: bool,
}

impl SyncGroups {
    /// A block begins; `statement` is its head. keepalived skips a group without a name, with several names, or with
    /// the name of an earlier group.
    pub(super) fn begin(&mut self, statement: Statement<'_>) {
        self.is_open = false;
        let [keyword, name] = statement.words else { return };
        let is_known = self.groups.iter().any(|group| *group.name == **name);
        if keyword == "vrrp_sync_group" && !is_known {
            self.groups.push(SyncGroup { name: name.as_str().into(), members: Vec::new() });
            self.is_open = true;
        }
    }

    /// A line of the list `group`: one name or several.
    ///
    /// LIMIT: keepalived reports an error for a second list of the same group and ignores it; here its names count.
    pub(super) fn entry(&mut self, entry: Statement<'_>) {
        let Some(group) = self.groups.last_mut().filter(|_| self.is_open) else { return };
        group.members.extend_from_slice(entry.words);
    }

    /// The group of an instance; `None` if it is in none. keepalived puts an instance into the first group that names it.
    pub(super) fn group_of(&self, instance: &str) -> Option<Arc<str>> {
        let has_member = |group: &&SyncGroup| group.members.iter().any(|member| member == instance);
        self.groups.iter().find(has_member).map(|group| Arc::clone(&group.name))
    }
}
