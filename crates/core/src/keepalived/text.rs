// SPDX-License-Identifier: Apache-2.0
//! Splits one line of text into comment, words and braces.

/// The characters that keepalived removes at both ends of a line.
pub(super) const BLANKS: [char; 2] = [' ', '\t'];

/// The characters that separate words.
const SPACES: [char; 6] = [' ', '\t', '\x0c', '\n', '\r', '\x0b'];

/// A line without its comment.
pub(super) struct Uncommented {
    /// The text without blanks at both ends. A backslash at the end of the line remains, also after a
    /// comment.
    pub(super) text: String,
    /// Whether a `"` is not closed.
    pub(super) has_open_quote: bool,
}

/// Removes the comment, and the backslash before an escaped `#` or `!`.
pub(super) fn uncomment(line: &str) -> Uncommented {
    let mut text = String::with_capacity(line.len());
    let mut comment = None;
    let mut is_quoted = false;
    let mut is_continued = false;
    let mut chars = line.trim_start_matches(BLANKS).chars();
    while let Some(c) = chars.next() {
        match c {
            '"' => {
                is_quoted ^= comment.is_none();
                text.push(c);
            }
            '\\' => match chars.next() {
                None => is_continued = true,
                Some(escaped @ ('#' | '!')) if !is_quoted => text.push(escaped),
                Some(escaped) => text.extend(['\\', escaped]),
            },
            '#' | '!' if !is_quoted && comment.is_none() => {
                comment = Some(text.len());
                text.push(c);
            }
            other => text.push(other),
        }
    }
    text.truncate(comment.unwrap_or(text.len()));
    text.truncate(text.trim_end_matches(BLANKS).len());
    if is_continued {
        text.push('\\');
    }
    Uncommented { text, has_open_quote: is_quoted }
}

/// Splits a line into words. A `"` at the start of a word keeps words together; there are no escapes inside.
/// The line ends before a quoted word that is not closed.
pub(super) fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut rest = line.trim_start_matches(SPACES);
    while !rest.is_empty() {
        let parts = if let Some(quoted) = rest.strip_prefix('"') {
            quoted.split_once('"')
        } else {
            let end = rest.find(|c| c == '"' || SPACES.contains(&c)).unwrap_or(rest.len());
            Some(rest.split_at(end))
        };
        let Some((word, tail)) = parts else { break };
        words.push(word.to_owned());
        rest = tail.trim_start_matches(SPACES);
    }
    words
}

/// The keywords with a secret, and the number of words before it.
const SECRETS: [(&str, usize); 3] = [("auth_pass", 1), ("password", 1), ("key", 2)];

/// Overwrites the secret in a line, up to a `}`. Blanks, quotes and braces outside of quotes stay: they decide how the
/// line is split. Returns whether the line is one for a secret.
pub(super) fn hide_secret(line: &mut String) -> bool {
    let Some(mut words_before) = words_before_secret(line) else { return false };
    let (mut is_in_word, mut is_quoted) = (false, false);
    let hidden = line.chars().map(|c| {
        is_quoted ^= c == '"';
        let is_brace = !is_quoted && matches!(c, '{' | '}');
        let is_kept = is_brace || c == '"' || SPACES.contains(&c);
        if is_brace && c == '}' {
            words_before = usize::MAX;
        } else if is_in_word && is_kept && (!is_quoted || c == '"') {
            words_before = words_before.saturating_sub(1);
        }
        is_in_word = is_quoted || !is_kept;
        if is_kept || words_before > 0 { c } else { '*' }
    });
    *line = hidden.collect();
    true
}

/// The number of words before the secret in a line; `None` if the line has none.
fn words_before_secret(line: &str) -> Option<usize> {
    let first = line.trim_start_matches(SPACES).trim_start_matches('"');
    let is_end =
        |rest: &str| rest.is_empty() || rest.starts_with(['{', '"']) || rest.starts_with(SPACES);
    let mut names = SECRETS.iter();
    let (_, words) = names.find(|(name, _)| first.strip_prefix(name).is_some_and(is_end))?;
    Some(*words)
}

/// Whether a line has a secret, also behind `@ID`, a repetition or a brace.
pub fn has_secret(line: &str) -> bool {
    parts(behind_prefixes(line).1).any(|(_, is_secret)| is_secret)
}

/// Splits a line behind its conditions and repetitions, `@ID` and `~SEQ(...)`.
fn behind_prefixes(line: &str) -> (&str, &str) {
    let mut rest = line.trim_start_matches(SPACES);
    while let Some((_, after)) = match rest.chars().next() {
        Some('@') => rest.split_once(SPACES),
        Some('~') => rest.split_once(')'),
        _ => None,
    } {
        rest = after.trim_start_matches(SPACES);
    }
    line.split_at(line.len() - rest.len())
}

/// A line for a comparison: one `*` stands for each secret, whatever its length. Blanks around braces do not remain.
///
/// COST: linear. A line may be as long as a file, and its author may not be trusted.
pub fn without_secrets(line: &str) -> String {
    let (prefixes, line) = behind_prefixes(line);
    let mut text = prefixes.trim_end().to_owned();
    for (part, is_secret) in parts(line) {
        if !text.is_empty() {
            text.push(' ');
        }
        if !is_secret {
            text.push_str(part);
            continue;
        }
        let mut secret = part.to_owned();
        hide_secret(&mut secret);
        match secret.split_once('*') {
            Some((before, _)) => {
                text.push_str(before.trim_end_matches(['{', '"']));
                text.push('*');
            }
            None => text.push_str(secret.trim_end_matches(BLANKS)),
        }
    }
    text
}

/// The parts between the braces of a line, and whether each has a secret: then it ends before a `}`.
fn parts(line: &str) -> impl Iterator<Item = (&str, bool)> {
    let mut rest = line;
    std::iter::from_fn(move || {
        let text = Some(rest).filter(|rest| !rest.is_empty())?;
        let is_secret = words_before_secret(text).is_some();
        let (part, others) = if is_secret {
            text.split_at(end_of_secret(text))
        } else {
            let (part, others) = split_at_brace(text);
            (part, others.unwrap_or_default())
        };
        rest = others;
        Some((part, is_secret))
    })
}

/// The position of the first `}` outside of quotes, or the length.
fn end_of_secret(line: &str) -> usize {
    let mut is_quoted = false;
    let is_end = |c| {
        is_quoted ^= c == '"';
        c == '}' && !is_quoted
    };
    line.find(is_end).unwrap_or(line.len())
}

/// Splits a line before its first brace outside of quotes, or after a brace at its start. Returns the first
/// part, and the text that remains for the next line.
pub(super) fn split_at_brace(line: &str) -> (&str, Option<&str>) {
    let (first, rest) = match first_brace(line) {
        None => (line, ""),
        Some(0) => line.split_at(1),
        Some(at) => line.split_at(at),
    };
    let rest = rest.trim_matches(BLANKS);
    (first.trim_end_matches(BLANKS), (!rest.is_empty()).then_some(rest))
}

fn first_brace(line: &str) -> Option<usize> {
    let mut from = 0;
    if line.starts_with(['{', '}']) {
        return Some(0);
    }
    loop {
        let at = from + line[from..].find(['{', '}', '"'])?;
        if !line[at..].starts_with('"') {
            return Some(at);
        }
        from = at + 1 + line[at + 1..].find('"')? + 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn without_comment(line: &str) -> String {
        uncomment(line).text
    }

    #[test]
    fn a_comment_is_removed_unless_it_is_quoted_or_escaped() {
        assert_eq!(without_comment("  auth_pass \"a # b\" # really"), "auth_pass \"a # b\"");
        assert_eq!(without_comment("interface eth0 ! nic"), "interface eth0");
        assert_eq!(without_comment("auth_pass a\\#b"), "auth_pass a#b");
        assert_eq!(without_comment("auth_pass \"\\\"#\" x"), "auth_pass \"\\\"#\" x");
        assert_eq!(without_comment("# only a comment"), "");
    }

    #[test]
    fn a_backslash_at_the_end_stays_without_the_blanks_before_it() {
        assert_eq!(without_comment("$A=1 \\"), "$A=1\\");
        assert_eq!(without_comment("$A=1 # one \\"), "$A=1\\");
    }

    #[test]
    fn only_double_quotes_keep_words_together() {
        assert_eq!(words("a \"b c\"d 'e f'"), ["a", "b c", "d", "'e", "f'"]);
        assert_eq!(words("auth_pass \"\\\"\""), ["auth_pass", "\\"]);
        assert_eq!(words("a \"\" b"), ["a", "", "b"]);
        assert_eq!(words("  "), Vec::<String>::new());
    }

    #[test]
    fn a_secret_is_overwritten_and_the_line_is_split_as_before() {
        let hidden = |line: &str| {
            let mut line = line.to_owned();
            hide_secret(&mut line);
            line
        };
        assert_eq!(hidden("auth_pass secret"), "auth_pass ******");
        assert_eq!(hidden("\"auth_pass\" \"a { b\" }"), "\"auth_pass\" \"* * *\" }");
        assert_eq!(hidden("auth_pass a{b} c"), "auth_pass *{*} c");
        assert_eq!(hidden("auth_pass{b"), "auth_pass{*");
        assert_eq!(hidden("auth_pass\"b"), "auth_pass\"*");
        assert_eq!(hidden("auth_pass"), "auth_pass");
        assert_eq!(hidden("key 7 hex:00ff"), "key 7 ********");
        assert_eq!(hidden("key\t7\t\"a }\""), "key\t7\t\"* *\"");
        assert_eq!(hidden("keys 7 x"), "keys 7 x");
        assert_eq!(hidden("virtual_ipaddress { 10.0.0.1 }"), "virtual_ipaddress { 10.0.0.1 }");
    }

    #[test]
    fn lines_that_differ_in_their_secrets_alone_are_equal_without_them() {
        for line in [
            "auth_pass SECRET",
            "@id auth_pass SECRET",
            "{ auth_pass SECRET }",
            "password SECRET",
            "{key 7 SECRET}",
        ] {
            let with = |secret: &str| without_secrets(&line.replace("SECRET", secret));
            for secret in ["*", "**", "longer", "\"a } b\"", "{a"] {
                assert_eq!(with(secret), with("x"), "{line} {secret}");
            }
        }
        assert!(has_secret("@^id ~SEQ(N,1,2) auth_pass $N") && !has_secret("@id priority 9"));
        assert_eq!(without_secrets("~SEQ(N,1,2) @id key 7 x"), "~SEQ(N,1,2) @id key 7 *");
        assert_eq!(without_secrets("key 7 x"), "key 7 *");
        assert_ne!(without_secrets("key 7 x"), without_secrets("key 8 x"));
        assert_ne!(without_secrets("auth_pass x"), without_secrets("auth_pass x }"));
        assert_ne!(without_secrets("auth_pass x"), without_secrets("auth_pass"));
        assert_eq!(without_secrets("interface * { a }"), "interface * { a }");
    }

    /// With quadratic work, this test does not end.
    #[test]
    fn a_line_as_long_as_a_file_is_compared_in_linear_time() {
        for part in ["{", "x{", "key 1 {{{", "key 1 x }", "\"\"{", "@a {", "{ "] {
            let line = part.repeat(200_000);
            assert!(!without_secrets(&line).is_empty());
        }
    }

    #[test]
    fn a_brace_is_a_line_of_its_own() {
        assert_eq!(
            split_at_brace("track_interface { eth0 }"),
            ("track_interface", Some("{ eth0 }"))
        );
        assert_eq!(split_at_brace("{ eth0 }"), ("{", Some("eth0 }")));
        assert_eq!(split_at_brace("eth0 }"), ("eth0", Some("}")));
        assert_eq!(split_at_brace("}"), ("}", None));
        assert_eq!(split_at_brace("script \"a {b}\" {"), ("script \"a {b}\"", Some("{")));
        assert_eq!(split_at_brace("script \"a {b}"), ("script \"a {b}", None));
    }
}
