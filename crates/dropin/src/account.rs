//! Users and groups by name. The file is read here: a static program has no other
//! directory services to ask.

use crate::failure::{Code, Failure};

/// The id of `name` in `/etc/passwd`, or `name` itself if it is a number.
pub(crate) fn user(name: &str) -> Result<u32, Failure> {
    id(name, "user", "/etc/passwd")
}

/// The id of `name` in `/etc/group`, or `name` itself if it is a number.
pub(crate) fn group(name: &str) -> Result<u32, Failure> {
    id(name, "group", "/etc/group")
}

fn id(name: &str, kind: &str, file: &str) -> Result<u32, Failure> {
    if let Ok(number) = name.parse::<u32>()
        && number != u32::MAX
    {
        return Ok(number);
    }
    // Read as bytes: one odd name in the file must not hide the others.
    let text = std::fs::read(file).unwrap_or_default();
    find(&String::from_utf8_lossy(&text), name).ok_or_else(|| {
        let message = format!("unknown {kind} {name:?}: not in {file}");
        Failure::new(Code::Environment, message)
            .hint(format!("give the numeric id to use a {kind} from another directory service"))
    })
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
        assert_eq!(user("4711").unwrap(), 4711);
        assert_eq!(user("root").unwrap(), 0);
        assert_eq!(find("a:x:1:2::/:/bin/sh\nneutron:x:64050:64050::/:", "neutron"), Some(64050));
        assert_eq!(find("broken\nneutron:x\n", "neutron"), None);
    }

    #[test]
    fn an_unknown_name_and_the_reserved_number_are_refused() {
        for name in ["no-such-user", "4294967295", "-1", ""] {
            assert_eq!(user(name).unwrap_err().code, Code::Environment, "{name}");
        }
    }
}
