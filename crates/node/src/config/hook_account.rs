// SPDX-License-Identifier: Apache-2.0
//! `user` and `group` of a hook: which user its program runs as.

use vipwatch_linux::account::{AccountKind, UserAccount, id};
use vipwatch_linux::privilege::Identity;
use vipwatch_linux::program::RunAs;

use super::document::{SettingErrors, Table};

/// The user and the group of a hook, as they are written in the file.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct HookAccount {
    /// A name or a number; `None` for the user of the node.
    pub user: Option<String>,
    /// A name or a number; `None` for the primary group of the user.
    pub group: Option<String>,
}

/// Why an account cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HookAccountError {
    /// A name is unknown.
    #[error(
        "there is no {} {name:?} in {}; other directories, such as LDAP, are not read: write the number",
        kind.word(), kind.file()
    )]
    Unknown {
        /// Whether it is the name of a user or of a group.
        kind: AccountKind,
        /// The name.
        name: String,
    },
    /// A user without an entry has no primary group.
    #[error("user {0} is not in /etc/passwd, so its group is not known: set group")]
    NoGroup(u32),
}

/// The identity of the program of a hook, and the user's entry of `/etc/passwd`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvedAccount {
    /// The ids.
    pub run_as: RunAs,
    /// `None` for a number without an entry.
    pub account: Option<UserAccount>,
    /// Whether the user is a member of the group, so that `group` gives it no further right.
    has_own_group: bool,
}

impl ResolvedAccount {
    /// The users, besides root, that may own the program and its directories: the user of the program. With a group of
    /// which this user is no member there is none, because the user could give itself the rights of the group.
    pub fn trusted_owners(&self) -> &[u32] {
        if self.has_own_group { std::slice::from_ref(&self.run_as.user) } else { &[] }
    }
}

impl HookAccount {
    /// Reads both keys. An unknown name is an error.
    pub(super) fn read(table: &mut Table<'_, '_>, errors: &mut SettingErrors<'_>) -> Self {
        let offset = table.offset;
        let known = |kind: AccountKind| {
            move |name: &str| match id(name, kind) {
                Some(_) => Ok(name.to_owned()),
                None => Err(HookAccountError::unknown(kind, name).to_string()),
            }
        };
        let user = table.parsed("user", errors, known(AccountKind::User));
        let group = table.parsed("group", errors, known(AccountKind::Group));
        let account = Self { user, group };
        if let Err(error @ HookAccountError::NoGroup(_)) = account.resolve(Identity::current()) {
            errors.add(offset, format!("user: {error}"));
        }
        account
    }

    /// The ids in force. `node` is the user and group of the node, which apply without `user`.
    pub fn resolve(&self, node: Identity) -> Result<ResolvedAccount, HookAccountError> {
        let find = |name: &str, kind| id(name, kind).ok_or(HookAccountError::unknown(kind, name));
        let user = self.user.as_deref().map(|name| find(name, AccountKind::User)).transpose()?;
        let group = self.group.as_deref().map(|name| find(name, AccountKind::Group)).transpose()?;
        let id = user.unwrap_or(node.user);
        let account = UserAccount::find(id);
        let primary = account.as_ref().map(|account| account.group);
        let of_node = (id == node.user).then_some(node.group);
        let is_own = |group: u32| {
            let is_member = account.as_ref().is_some_and(|account| account.groups.contains(&group));
            is_member || of_node == Some(group)
        };
        let has_own_group = group.is_none_or(is_own);
        let group = group.or(primary).or(of_node).ok_or(HookAccountError::NoGroup(id))?;
        let groups = account.as_ref().map_or_else(|| vec![group], |account| account.groups.clone());
        Ok(ResolvedAccount { run_as: RunAs { user: id, group, groups }, account, has_own_group })
    }
}

impl HookAccountError {
    fn unknown(kind: AccountKind, name: &str) -> Self {
        Self::Unknown { kind, name: name.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: Identity = Identity { user: 4711, group: 4712 };

    fn account(user: Option<&str>, group: Option<&str>) -> HookAccount {
        HookAccount { user: user.map(str::to_owned), group: group.map(str::to_owned) }
    }

    #[test]
    fn without_user_a_hook_runs_as_the_user_of_the_node() {
        let resolved = account(None, None).resolve(NODE).unwrap();
        assert_eq!(resolved.run_as, RunAs { user: 4711, group: 4712, groups: vec![4712] });
    }

    #[test]
    fn the_group_follows_from_the_user_unless_it_is_set() {
        let root = account(Some("root"), None).resolve(NODE).unwrap();
        assert_eq!((root.run_as.user, root.run_as.group), (0, 0));
        let with_group = account(Some("root"), Some("4713")).resolve(NODE).unwrap();
        assert_eq!((with_group.run_as.user, with_group.run_as.group), (0, 4713));
        assert_eq!(account(Some("4714"), None).resolve(NODE), Err(HookAccountError::NoGroup(4714)));
        assert_eq!(account(Some("4714"), Some("7")).resolve(NODE).unwrap().run_as.group, 7);
    }

    #[test]
    fn only_root_may_own_a_program_with_a_group_that_its_user_does_not_have() {
        let owners =
            |user, group| account(user, group).resolve(NODE).unwrap().trusted_owners().to_vec();
        assert_eq!(owners(None, None), [4711]);
        assert_eq!(owners(None, Some("4712")), [4711], "the group of the node");
        assert_eq!(owners(None, Some("4713")), [0; 0]);
        assert_eq!(owners(Some("daemon"), None), [1], "not the user of the node");
        assert_eq!(owners(Some("daemon"), Some("daemon")), [1]);
        assert_eq!(owners(Some("daemon"), Some("4713")), [0; 0]);
        assert_eq!(owners(Some("4714"), Some("7")), [0; 0], "the groups of the user are not known");
    }
}
