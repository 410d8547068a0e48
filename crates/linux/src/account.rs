// SPDX-License-Identifier: Apache-2.0
//! Ids of users and groups by name, from `/etc/passwd` and `/etc/group`. The files are read directly: a static program
//! cannot use other directory services (NSS).

/// Whether a name is that of a user or of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccountKind {
    /// `/etc/passwd`
    User,
    /// `/etc/group`
    Group,
}

impl AccountKind {
    /// `user` or `group`, for messages.
    pub fn word(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Group => "group",
        }
    }

    /// The file that contains the names.
    pub fn file(self) -> &'static str {
        match self {
            Self::User => "/etc/passwd",
            Self::Group => "/etc/group",
        }
    }
}

/// The id of the user or group `name`, or `name` itself if it is a number; `None` if it is unknown.
pub fn id(name: &str, kind: AccountKind) -> Option<u32> {
    if let Ok(number) = name.parse::<u32>()
        && number != u32::MAX
    {
        return Some(number);
    }
    // Read as bytes: a name that is not UTF-8 must not hide the others.
    let text = std::fs::read(kind.file()).unwrap_or_default();
    find(&String::from_utf8_lossy(&text), name)
}

/// In both files the name is the first field and the id the third.
fn find(text: &str, name: &str) -> Option<u32> {
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok())?
    })
}

/// A user of `/etc/passwd`, with the groups of `/etc/group`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserAccount {
    /// The name.
    pub name: String,
    /// User id.
    pub user: u32,
    /// The id of the primary group.
    pub group: u32,
    /// The ids of all groups of the user, with the primary one.
    pub groups: Vec<u32>,
    /// The home directory.
    pub home: String,
    /// The login shell; may be empty.
    pub shell: String,
}

impl UserAccount {
    /// The user with this id; `None` if it is unknown.
    pub fn find(user: u32) -> Option<Self> {
        let [users, groups] = [AccountKind::User, AccountKind::Group].map(|kind| {
            let text = std::fs::read(kind.file()).unwrap_or_default();
            String::from_utf8_lossy(&text).into_owned()
        });
        Self::parse(&users, &groups, user)
    }

    /// `NAME:PASSWORD:UID:GID:COMMENT:HOME:SHELL` and `NAME:PASSWORD:GID:MEMBER,MEMBER`.
    fn parse(users: &str, groups: &str, user: u32) -> Option<Self> {
        let mut lines = users.lines().map(|line| line.split(':').collect::<Vec<_>>());
        let fields =
            lines.find(|fields| fields.get(2).and_then(|id| id.parse().ok()) == Some(user))?;
        let text = |index: usize| fields.get(index).copied().unwrap_or_default().to_owned();
        let (name, group) = (text(0), text(3).parse().ok()?);
        let mut all = vec![group];
        for line in groups.lines() {
            let fields: Vec<&str> = line.split(':').collect();
            let [_, _, id, members] = fields[..] else { continue };
            let Ok(id) = id.parse() else { continue };
            if members.split(',').any(|member| member == name) && !all.contains(&id) {
                all.push(id);
            }
        }
        Some(Self { name, user, group, groups: all, home: text(5), shell: text(6) })
    }
}

/// The name of the user with this id; `None` if it is unknown.
pub fn name(user: u32) -> Option<String> {
    let text = std::fs::read(AccountKind::User.file()).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(user)).then(|| name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_its_own_id_and_a_name_is_looked_up() {
        assert_eq!(id("4711", AccountKind::User), Some(4711));
        assert_eq!(id("root", AccountKind::Group), Some(0));
        assert_eq!(find("a:x:1:2::/:/bin/sh\nneutron:x:64050:64050::/:", "neutron"), Some(64050));
        assert_eq!(find("broken\nneutron:x\n", "neutron"), None);
    }

    #[test]
    fn an_account_has_the_groups_that_name_the_user() {
        let users = "root:x:0:0:root:/root:/bin/sh\nhooks:x:990:991::/var/lib/hooks:/bin/false\n";
        let groups =
            "adm:x:4:syslog,hooks\nhooks:x:991:hooks\nbad\nbin:x:2:hooks2\nweb:x:33:hooks\n";
        let account = UserAccount::parse(users, groups, 990).unwrap();
        assert_eq!((account.name.as_str(), account.group), ("hooks", 991));
        assert_eq!(account.groups, [991, 4, 33]);
        assert_eq!(
            (account.home.as_str(), account.shell.as_str()),
            ("/var/lib/hooks", "/bin/false")
        );
        assert_eq!(UserAccount::parse(users, groups, 5), None);
    }

    #[test]
    fn a_user_has_a_name() {
        assert_eq!(name(0).as_deref(), Some("root"));
        assert_eq!(name(u32::MAX), None);
    }

    #[test]
    fn an_unknown_name_and_the_reserved_number_are_refused() {
        for name in ["no-such-user", "4294967295", "-1", ""] {
            assert_eq!(id(name, AccountKind::User), None, "{name}");
        }
    }
}
