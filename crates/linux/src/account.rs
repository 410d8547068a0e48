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
