// SPDX-License-Identifier: Apache-2.0
//! Definitions: `$NAME=value`, and the replacement of `$NAME` and `${NAME}` in later lines.

use std::collections::BTreeMap;

use super::text::BLANKS;

/// Placeholder for a value that only keepalived knows: a random number, or a variable of its environment. No text file contains it.
pub(super) const RANDOM_MARK: char = '\0';

/// Size of keepalived's line buffer, in bytes.
pub(super) const LINE_BUFFER_BYTES: usize = 1024;

/// LIMIT: a line with more replacements contains a definition that refers to itself.
const MAX_REPLACEMENTS: u32 = 1_000;

#[derive(Debug, Clone)]
struct Definition {
    value: Value,
    /// Whether the value has several lines, separated by `\n`.
    is_multiline: bool,
}

#[derive(Debug, Clone)]
enum Value {
    Text(String),
    /// `_PWD`: the directory of the file that is being read.
    Directory,
    /// `_INSTANCE`: the configuration id.
    ConfigId,
    /// `_RANDOM`: a different number each time keepalived starts.
    Random,
}

/// The definitions of all files.
#[derive(Debug)]
pub(super) struct Definitions {
    known: BTreeMap<String, Definition>,
    config_id: String,
}

/// The result of a replacement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Replacement {
    /// The line contains no reference to a definition.
    Unchanged,
    Replaced,
    /// The line would not fit into keepalived's buffer.
    TooLong,
    /// A definition refers to itself.
    Recursive,
}

/// A reference to a definition in a line.
struct Reference<'a> {
    definition: &'a Definition,
    /// Length of the reference in the line, in bytes, with its `$`.
    bytes: usize,
}

impl Definitions {
    pub(super) fn new(config_id: &str) -> Self {
        let text = |value: &str| Value::Text(value.to_owned());
        let built_in = [
            ("_PWD", Value::Directory),
            ("_INSTANCE", Value::ConfigId),
            ("_RANDOM", Value::Random),
            ("_HASH", text("#")),
            ("_BANG", text("!")),
        ];
        let known = built_in
            .map(|(name, value)| (name.to_owned(), Definition { value, is_multiline: false }));
        Self { known: known.into(), config_id: config_id.to_owned() }
    }

    /// Sets `name` for one iteration of `~SEQ` or `~LST`.
    pub(super) fn set(&mut self, name: &str, value: String) {
        let is_multiline = self.known.get(name).is_some_and(|known| known.is_multiline);
        self.known.insert(name.to_owned(), Definition { value: Value::Text(value), is_multiline });
    }

    /// Reads `$NAME=value`; returns the name, and whether more lines of the value follow. `None` if `line` is
    /// not a definition, for example because of a blank before the `=`.
    pub(super) fn define(&mut self, line: &str) -> Option<(String, bool)> {
        let (name, value) = line.strip_prefix('$')?.split_once('=')?;
        if name_bytes(name) != name.len() || name.is_empty() {
            return None;
        }
        let value = value.trim_start_matches(BLANKS);
        let (value, is_multiline) = match value.strip_suffix('\\') {
            Some("") => (String::new(), true),
            Some(first) => (format!("{}\n", first.trim_end_matches(BLANKS)), true),
            None => (value.to_owned(), false),
        };
        self.known.insert(name.to_owned(), Definition { value: Value::Text(value), is_multiline });
        Some((name.to_owned(), is_multiline))
    }

    /// Adds a line to the multi-line definition `name`; returns whether more lines follow.
    pub(super) fn extend(&mut self, name: &str, line: &str) -> bool {
        let Some(Definition { value: Value::Text(value), is_multiline }) = self.known.get_mut(name)
        else {
            return false;
        };
        match line.strip_suffix('\\') {
            Some("") => true,
            Some(line) => {
                value.push_str(line.trim_end_matches(BLANKS));
                value.push('\n');
                true
            }
            None => {
                *is_multiline &= !value.is_empty();
                value.push_str(line);
                false
            }
        }
    }

    /// Ends the multi-line definition `name`.
    pub(super) fn end(&mut self, name: &str) {
        if let Some(Definition { value: Value::Text(value), is_multiline }) =
            self.known.get_mut(name)
        {
            *is_multiline &= !value.is_empty();
        }
    }

    /// Replaces every reference to a definition in `line`, also those in inserted text. `lines` gets the
    /// second and further lines of each multi-line definition.
    pub(super) fn replace(
        &self,
        line: &mut String,
        limit: usize,
        directory: &str,
        mut lines: impl FnMut(String),
    ) -> Replacement {
        let mut from = 0;
        let mut count = 0;
        while let Some(at) = line[from..].find('$').map(|at| from + at) {
            let Some(Reference { definition, bytes }) = self.find(&line[at + 1..]) else {
                from = at + 1;
                continue;
            };
            let random;
            let whole = match &definition.value {
                Value::Text(text) => text.as_str(),
                Value::Directory => directory,
                Value::ConfigId => &self.config_id,
                Value::Random => {
                    random = RANDOM_MARK.to_string();
                    &random
                }
            };
            let (value, more_lines) = match whole.split_once('\n') {
                Some((first, more)) if definition.is_multiline => (first, Some(more)),
                _ => (whole, None),
            };
            if line.len() + value.len() - bytes >= limit {
                return Replacement::TooLong;
            }
            count += 1;
            if count > MAX_REPLACEMENTS {
                return Replacement::Recursive;
            }
            line.replace_range(at..at + bytes, value);
            if let Some(more_lines) = more_lines {
                lines(more_lines.to_owned());
            }
            if whole.trim_start_matches(BLANKS).starts_with('~') {
                break;
            }
            from = at;
        }
        if count == 0 { Replacement::Unchanged } else { Replacement::Replaced }
    }

    /// The reference that starts with a `$` before `text`; `None` if there is none.
    fn find(&self, text: &str) -> Option<Reference<'_>> {
        let braced = text.strip_prefix('{');
        let text = braced.unwrap_or(text);
        let bytes = name_bytes(text);
        let (name, rest) = text.split_at(bytes);
        let mut has_parameters = false;
        let mut replaced = 1 + bytes;
        if braced.is_some() {
            let end = rest.find(|c: char| c != ' ' && !c.is_ascii_digit())?;
            has_parameters = rest[..end].contains(|c: char| c.is_ascii_digit());
            if !rest[end..].starts_with('}') || has_parameters && rest[..end].ends_with(' ') {
                return None;
            }
            // keepalived does not count blanks without parameters.
            replaced += 2 + if has_parameters { end } else { 0 };
        } else if !rest.is_empty() && !rest.starts_with([' ', '\t', ',', ')']) {
            return None;
        }
        let definition = self.known.get(name)?;
        // A multi-line definition is replaced at the end of a line only.
        let is_last = if braced.is_some() { rest.len() == 1 } else { rest.is_empty() };
        let takes_parameters = matches!(definition.value, Value::Random);
        if definition.is_multiline && !is_last || has_parameters && !takes_parameters {
            return None;
        }
        Some(Reference { definition, bytes: replaced })
    }
}

/// Length of the name at the start of `text`, in bytes; 0 if there is none.
fn name_bytes(text: &str) -> usize {
    if text.starts_with(|c: char| c.is_ascii_digit()) {
        return 0;
    }
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.find(|c| !is_part(c)).unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replaced(definitions: &[&str], line: &str) -> (String, Vec<String>) {
        let mut known = Definitions::new("node1");
        for definition in definitions {
            assert!(known.define(definition).is_some(), "{definition}");
        }
        let (mut line, mut lines) = (line.to_owned(), Vec::new());
        known.replace(&mut line, LINE_BUFFER_BYTES, "/etc/keepalived", |more| lines.push(more));
        (line, lines)
    }

    #[test]
    fn references_to_definitions_are_replaced_also_in_other_definitions() {
        let definitions = ["$NET=10.0.0", "$VIP=${NET}.9/24", "$EMPTY="];
        assert_eq!(replaced(&definitions, "$VIP dev x").0, "10.0.0.9/24 dev x");
        assert_eq!(replaced(&definitions, "a${EMPTY}b").0, "ab");
        assert_eq!(
            replaced(&definitions, "$NET.9").0,
            "$NET.9",
            "a name without braces ends at a blank"
        );
        assert_eq!(replaced(&definitions, "$OTHER ${OTHER}").0, "$OTHER ${OTHER}");
        assert_eq!(replaced(&[], "${_PWD}/${_INSTANCE}${_HASH}").0, "/etc/keepalived/node1#");
        assert_eq!(replaced(&[], "priority ${_RANDOM 1 9}").0, "priority \0");
    }

    #[test]
    fn a_blank_before_the_equals_sign_defines_nothing() {
        assert!(Definitions::new("").define("$A = 1").is_none());
        assert!(Definitions::new("").define("$1=1").is_none());
    }

    #[test]
    fn a_multi_line_definition_is_replaced_at_the_end_of_a_line() {
        let mut known = Definitions::new("");
        assert_eq!(known.define("$A=one\\"), Some(("A".to_owned(), true)));
        assert!(known.extend("A", "two\\") && !known.extend("A", "three"));
        let mut line = "x $A".to_owned();
        let mut lines = Vec::new();
        known.replace(&mut line, LINE_BUFFER_BYTES, "", |more| lines.push(more));
        assert_eq!((line.as_str(), lines[0].as_str()), ("x one", "two\nthree"));
    }

    #[test]
    fn a_definition_that_refers_to_itself_is_an_error() {
        let mut known = Definitions::new("");
        known.define("$A=${A}");
        let mut line = "$A".to_owned();
        assert_eq!(known.replace(&mut line, LINE_BUFFER_BYTES, "", |_| ()), Replacement::Recursive);
    }
}
