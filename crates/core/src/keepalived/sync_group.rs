// SPDX-License-Identifier: Apache-2.0
//! The `vrrp_sync_group` blocks: which instances change their role together.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::blocks::Statement;

/// All groups of a configuration.
#[derive(Debug, Default)]
pub(super) struct SyncGroups {
    names: HashSet<Arc<str>>,
    /// The first group that names each instance.
    groups_by_member: HashMap<String, Arc<str>>,
    /// The group that the entries of `group` belong to; `None` if keepalived skips them.
    open: Option<Arc<str>>,
}

impl SyncGroups {
    /// A block begins; `statement` is its head. keepalived skips a group without a name, with several names, or with
    /// the name of an earlier group.
    pub(super) fn begin(&mut self, statement: Statement<'_>) {
        self.open = None;
        let [keyword, name] = statement.words else { return };
        if keyword == "vrrp_sync_group" && !self.names.contains(name.as_str()) {
            let name: Arc<str> = name.as_str().into();
            self.names.insert(Arc::clone(&name));
            self.open = Some(name);
        }
    }

    /// A line of the list `group`: one name or several.
    ///
    /// LIMIT: keepalived reports an error for a second list of the same group and ignores it; here its names count.
    pub(super) fn entry(&mut self, entry: Statement<'_>) {
        let Some(group) = &self.open else { return };
        for member in entry.words {
            self.groups_by_member.entry(member.clone()).or_insert_with(|| Arc::clone(group));
        }
    }

    /// The group of an instance; `None` if it is in none. keepalived puts an instance into the first group that names it.
    pub(super) fn group_of(&self, instance: &str) -> Option<Arc<str>> {
        self.groups_by_member.get(instance).cloned()
    }
}
