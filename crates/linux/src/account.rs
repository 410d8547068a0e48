//! Users and groups by name. The files are read here: a static program has no other directory
//! services to ask.

/// Which file knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccountKind {
    /// `/etc/passwd`
    User,
    /// `/etc/group`
    Group,
}

impl AccountKind {
    /// One word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Group => "group",
        }
    }

    /// The file.
    pub fn file(self) -> &'static str {
        match self {
            Self::User => "/etc/passwd",
            Self::Group => "/etc/group",
        }
    }
}

/// The id of `name`, or `name` itself if it is a number.
pub fn id(name: &str, kind: AccountKind) -> Option<u32> {
    if let Ok(number) = name.parse::<u32>()
        && number != u32::MAX
    {
        return Some(number);
    }
    // Read as bytes: one odd name in the file must not hide the others.
    let text = std::fs::read(kind.file()).unwrap_or_default();
    find(&String::from_utf8_lossy(&text), name)
}

/// Both files have the name first and the number third.
fn find(text: &str, name: &str) -> Option<u32> {
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_needs_no_file_and_a_name_is_looked_up() {
        assert_eq!(id("4711", AccountKind::User), Some(4711));
        assert_eq!(id("root", AccountKind::Group), Some(0));
        assert_eq!(find("a:x:1:2::/:/bin/sh\nneutron:x:64050:64050::/:", "neutron"), Some(64050));
        assert_eq!(find("broken\nneutron:x\n", "neutron"), None);
    }

    #[test]
    fn an_unknown_name_and_the_reserved_number_are_refused() {
        for name in ["no-such-user", "4294967295", "-1", ""] {
            assert_eq!(id(name, AccountKind::User), None, "{name}");
        }
    }
}
