//! `$NAME=value` and the places where `$NAME` or `${NAME}` stands for it.

use std::collections::BTreeMap;

use super::text::BLANKS;

/// Stands where keepalived puts a random number. No text file contains it.
pub(super) const UNKNOWN: char = '\0';

/// keepalived's buffer for a line, in bytes.
pub(super) const LINE_BYTES: usize = 1024;

/// More replacements in one line than any definition needs that does not refer to itself.
const MAX_REPLACEMENTS: u32 = 1_000;

#[derive(Debug, Clone)]
struct Definition {
    /// The lines of a definition of several lines end with `\n`.
    value: Value,
    has_lines: bool,
}

#[derive(Debug, Clone)]
enum Value {
    Text(String),
    /// `_PWD`: the directory of the file that is being read.
    Directory,
    /// `_INSTANCE`: the configuration id.
    ConfigId,
    /// `_RANDOM`: another number each time keepalived starts.
    Random,
}

/// All definitions, in all files together.
#[derive(Debug)]
pub(super) struct Definitions {
    known: BTreeMap<String, Definition>,
    config_id: String,
}

/// How far a replacement came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Replaced {
    /// There was nothing to replace.
    Nothing,
    Something,
    /// The line became too long.
    TooLong,
    /// A definition refers to itself.
    Endless,
}

/// A definition as it is used in a line.
struct Use<'a> {
    definition: &'a Definition,
    /// How many bytes of the line it replaces.
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
        let known =
            built_in.map(|(name, value)| (name.to_owned(), Definition { value, has_lines: false }));
        Self { known: known.into(), config_id: config_id.to_owned() }
    }

    /// Defines `name` for one round of `~SEQ` or `~LST`.
    pub(super) fn set(&mut self, name: &str, value: String) {
        let has_lines = self.known.get(name).is_some_and(|known| known.has_lines);
        self.known.insert(name.to_owned(), Definition { value: Value::Text(value), has_lines });
    }

    /// Takes `$NAME=value`: its name, and whether more lines of it follow. `None` if `line` is
    /// something else: a blank before the `=` is enough.
    pub(super) fn define(&mut self, line: &str) -> Option<(String, bool)> {
        let (name, value) = line.strip_prefix('$')?.split_once('=')?;
        if name_bytes(name) != name.len() || name.is_empty() {
            return None;
        }
        let value = value.trim_start_matches(BLANKS);
        let (value, has_lines) = match value.strip_suffix('\\') {
            Some("") => (String::new(), true),
            Some(first) => (format!("{}\n", first.trim_end_matches(BLANKS)), true),
            None => (value.to_owned(), false),
        };
        self.known.insert(name.to_owned(), Definition { value: Value::Text(value), has_lines });
        Some((name.to_owned(), has_lines))
    }

    /// Adds a line to the definition of several lines `name`; tells whether more follow.
    pub(super) fn extend(&mut self, name: &str, line: &str) -> bool {
        let Some(Definition { value: Value::Text(value), has_lines }) = self.known.get_mut(name)
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
                *has_lines &= !value.is_empty();
                value.push_str(line);
                false
            }
        }
    }

    /// Ends the definition of several lines `name`.
    pub(super) fn end(&mut self, name: &str) {
        if let Some(Definition { value: Value::Text(value), has_lines }) = self.known.get_mut(name)
        {
            *has_lines &= !value.is_empty();
        }
    }

    /// Replaces every use of a definition in `line`, also those in the text that was inserted. `lines` takes
    /// the further lines of each definition of several lines.
    pub(super) fn replace(
        &self,
        line: &mut String,
        limit: usize,
        directory: &str,
        mut lines: impl FnMut(String),
    ) -> Replaced {
        let mut from = 0;
        let mut count = 0;
        while let Some(at) = line[from..].find('$').map(|at| from + at) {
            let Some(Use { definition, bytes }) = self.find(&line[at + 1..]) else {
                from = at + 1;
                continue;
            };
            let random;
            let whole = match &definition.value {
                Value::Text(text) => text.as_str(),
                Value::Directory => directory,
                Value::ConfigId => &self.config_id,
                Value::Random => {
                    random = UNKNOWN.to_string();
                    &random
                }
            };
            let (value, further) = match whole.split_once('\n') {
                Some((first, further)) if definition.has_lines => (first, Some(further)),
                _ => (whole, None),
            };
            if line.len() + value.len() - bytes >= limit {
                return Replaced::TooLong;
            }
            count += 1;
            if count > MAX_REPLACEMENTS {
                return Replaced::Endless;
            }
            line.replace_range(at..at + bytes, value);
            if let Some(further) = further {
                lines(further.to_owned());
            }
            if whole.trim_start_matches(BLANKS).starts_with('~') {
                break;
            }
            from = at;
        }
        if count == 0 { Replaced::Nothing } else { Replaced::Something }
    }

    /// The definition that is used behind a `$`.
    fn find(&self, behind: &str) -> Option<Use<'_>> {
        let braced = behind.strip_prefix('{');
        let text = braced.unwrap_or(behind);
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
            // Blanks that are no parameters are not counted, as keepalived does not.
            replaced += 2 + if has_parameters { end } else { 0 };
        } else if !rest.is_empty() && !rest.starts_with([' ', '\t', ',', ')']) {
            return None;
        }
        let definition = self.known.get(name)?;
        // Several lines can only stand at the end of a line.
        let is_last = if braced.is_some() { rest.len() == 1 } else { rest.is_empty() };
        let takes_parameters = matches!(definition.value, Value::Random);
        if definition.has_lines && !is_last || has_parameters && !takes_parameters {
            return None;
        }
        Some(Use { definition, bytes: replaced })
    }
}

/// How many bytes of `text` are a name; 0 if it begins with none.
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
        known.replace(&mut line, LINE_BYTES, "/etc/keepalived", |more| lines.push(more));
        (line, lines)
    }

    #[test]
    fn a_definition_is_replaced_where_it_is_used_and_nested_ones_with_it() {
        let definitions = ["$NET=10.0.0", "$VIP=${NET}.9/24", "$EMPTY="];
        assert_eq!(replaced(&definitions, "$VIP dev x").0, "10.0.0.9/24 dev x");
        assert_eq!(replaced(&definitions, "a${EMPTY}b").0, "ab");
        assert_eq!(replaced(&definitions, "$NET.9").0, "$NET.9", "only a blank ends a bare name");
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
    fn a_definition_of_several_lines_stands_at_the_end_of_a_line() {
        let mut known = Definitions::new("");
        assert_eq!(known.define("$A=one\\"), Some(("A".to_owned(), true)));
        assert!(known.extend("A", "two\\") && !known.extend("A", "three"));
        let mut line = "x $A".to_owned();
        let mut lines = Vec::new();
        known.replace(&mut line, LINE_BYTES, "", |more| lines.push(more));
        assert_eq!((line.as_str(), lines[0].as_str()), ("x one", "two\nthree"));
    }

    #[test]
    fn a_definition_of_itself_ends() {
        let mut known = Definitions::new("");
        known.define("$A=${A}");
        let mut line = "$A".to_owned();
        assert_eq!(known.replace(&mut line, LINE_BYTES, "", |_| ()), Replaced::Endless);
    }
}
