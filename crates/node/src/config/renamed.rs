// SPDX-License-Identifier: Apache-2.0
//! Keys and values of the configuration that have a new name: the reader names the new one in its error, or in a warning
//! if the old name still works, and `vipwatch config migrate` rewrites the file.

/// A key that has a new name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RenamedKey {
    /// The name of the table of the key; empty for the top level of the document.
    pub(super) table: &'static str,
    /// The name that is now an error or a warning.
    pub(super) old: &'static str,
    /// The name to use.
    pub(super) new: &'static str,
    /// Whether the old name still works, with a warning.
    pub(super) is_accepted: bool,
    /// How the table is written in a file, for messages.
    kind: KeyKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeyKind {
    /// `key = value`
    Value,
    /// `[key]`
    Table,
    /// `[[key]]`
    TableArray,
}

/// A value of a key that has a new name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RenamedValue {
    /// The table of the key.
    pub(super) table: &'static str,
    /// The key.
    pub(super) key: &'static str,
    /// The value that is now an error.
    pub(super) old: &'static str,
    /// The value to use.
    pub(super) new: &'static str,
}

const KEYS: [RenamedKey; 4] = [
    RenamedKey {
        table: "",
        old: "agent",
        new: "receiver",
        is_accepted: false,
        kind: KeyKind::Table,
    },
    RenamedKey {
        table: "",
        old: "outlet",
        new: "notify",
        is_accepted: false,
        kind: KeyKind::TableArray,
    },
    RenamedKey {
        table: "history",
        old: "keep_changes",
        new: "keep_transitions",
        is_accepted: false,
        kind: KeyKind::Value,
    },
    RenamedKey {
        table: "hook",
        old: "deadline",
        new: "timeout",
        is_accepted: true,
        kind: KeyKind::Value,
    },
];

const VALUES: [RenamedValue; 1] =
    [RenamedValue { table: "node", key: "listen", old: "each", new: "per-netns" }];

impl RenamedKey {
    /// The error for a file that uses the old name.
    pub(super) fn message(&self) -> String {
        let write = |name: &str| match self.kind {
            KeyKind::Value => name.to_owned(),
            KeyKind::Table => format!("[{name}]"),
            KeyKind::TableArray => format!("[[{name}]]"),
        };
        format!("{} is called {} now", write(self.old), write(self.new))
    }
}

impl RenamedValue {
    /// The error for a file that uses the old value.
    pub(super) fn message(&self) -> String {
        format!("{}: {:?} is called {:?} now", self.key, self.old, self.new)
    }
}

/// The renamed key with the old name `old` in `table`. `table` may be a path: `notify.hook` and `receiver.hook` are
/// tables with the name `hook`.
pub(super) fn by_old_key(table: &str, old: &str) -> Option<RenamedKey> {
    let name = table.rsplit_once('.').map_or(table, |(_, name)| name);
    KEYS.into_iter().find(|key| key.table == name && key.old == old)
}

/// The renamed key with the new name `new` in `table`.
pub(super) fn by_new_key(table: &str, new: &str) -> Option<RenamedKey> {
    KEYS.into_iter().find(|key| key.table == table && key.new == new)
}

/// The renamed value `old` of `key` in `table`.
pub(super) fn by_old_value(table: &str, key: &str, old: &str) -> Option<RenamedValue> {
    VALUES.into_iter().find(|value| value.table == table && value.key == key && value.old == old)
}
