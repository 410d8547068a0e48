// SPDX-License-Identifier: Apache-2.0
//! Typed access to a parsed TOML document. A value of the wrong type, and a key that no caller has read, is
//! an error with its line.

use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Maximum number of characters of a line that is shown with an error.
const MAX_SOURCE_CHARACTERS: usize = 160;

/// An error in the configuration file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}:{line}: {text}", file.display())]
pub struct SettingError {
    /// The file.
    pub file: PathBuf,
    /// The line number; the first line is 1.
    pub line: u32,
    /// The number of the character in the line; the first character is 1.
    pub column: u32,
    /// The line of the file; `None` if it may contain a secret.
    pub source_line: Option<String>,
    /// The message.
    pub text: String,
}

impl SettingError {
    /// The message with its column, and below it the line of the file with a mark below the column, if the line may be
    /// shown.
    pub fn with_source_line(&self) -> String {
        let Self { file, line, column, source_line, text } = self;
        let message = format!("{}:{line}:{column}: {text}", file.display());
        let Some(source_line) = source_line else { return message };
        let number = line.to_string();
        let margin = " ".repeat(number.len());
        let indent = " ".repeat(usize::try_from(column.saturating_sub(1)).unwrap_or(0));
        format!("{message}\n  {number} | {source_line}\n  {margin} | {indent}^")
    }
}

/// Collects the errors of one file.
#[derive(Debug)]
pub(super) struct SettingErrors<'a> {
    file: &'a Path,
    text: &'a str,
    pub(super) list: Vec<SettingError>,
}

impl<'a> SettingErrors<'a> {
    pub(super) fn new(file: &'a Path, text: &'a str) -> Self {
        Self { file, text, list: Vec::new() }
    }

    /// The line number of the byte at `offset`.
    pub(super) fn line(&self, offset: usize) -> u32 {
        line_of(self.text, offset)
    }

    pub(super) fn add(&mut self, offset: usize, text: impl Into<String>) {
        let before = self.text.get(..offset).unwrap_or_default();
        let start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let characters = before[start..].chars().count();
        let source_line = self.text[start..].lines().next().unwrap_or_default();
        self.list.push(SettingError {
            file: self.file.to_owned(),
            line: self.line(offset),
            column: u32::try_from(characters).unwrap_or(u32::MAX).saturating_add(1),
            source_line: shown_line(source_line),
            text: text.into(),
        });
    }
}

/// A line for a message; `None` if it has a URL, which may be secret. A tab would move the mark.
fn shown_line(line: &str) -> Option<String> {
    let shown = line.chars().take(MAX_SOURCE_CHARACTERS).collect::<String>().replace('\t', " ");
    (!line.contains("://")).then_some(shown)
}

/// The line number of the byte at `offset` in `text`; the first line is 1.
pub(super) fn line_of(text: &str, offset: usize) -> u32 {
    let newlines = text.get(..offset).unwrap_or_default().matches('\n').count();
    u32::try_from(newlines).unwrap_or(u32::MAX).saturating_add(1)
}

/// A value with its position in the text.
pub(super) type Value<'a> = Spanned<DeValue<'a>>;

/// A table of the document, with the keys that were read from it.
pub(super) struct Table<'t, 'a> {
    keys: &'t DeTable<'a>,
    /// The name in messages; empty for the top level of the document.
    name: String,
    /// The position of the table in the text, in bytes.
    pub(super) offset: usize,
    known: Vec<&'static str>,
}

impl<'t, 'a> Table<'t, 'a> {
    pub(super) fn new(name: &str, table: &'t DeTable<'a>, offset: usize) -> Self {
        Self { keys: table, name: name.to_owned(), offset, known: Vec::new() }
    }

    /// `value` as a table; an error if it has another type.
    pub(super) fn of(
        name: &str,
        value: &'t Value<'a>,
        errors: &mut SettingErrors<'_>,
    ) -> Option<Self> {
        let offset = value.span().start;
        match value.get_ref() {
            DeValue::Table(table) => Some(Self::new(name, table, offset)),
            other => {
                errors.add(offset, format!("{name} is a table, not {}", type_name(other)));
                None
            }
        }
    }

    /// The value of `key`; `None` if the table has no such key.
    pub(super) fn take(&mut self, key: &'static str) -> Option<&'t Value<'a>> {
        self.known.push(key);
        self.keys.get(key)
    }

    /// The table with the name `key`.
    pub(super) fn table(
        &mut self,
        key: &'static str,
        errors: &mut SettingErrors<'_>,
    ) -> Option<Table<'t, 'a>> {
        let value = self.take(key)?;
        Table::of(key, value, errors)
    }

    /// The tables with the name `key`, each written `[[key]]`. `[key]` is an error, because a second one would not be
    /// valid TOML.
    pub(super) fn table_array(
        &mut self,
        key: &'static str,
        errors: &mut SettingErrors<'_>,
    ) -> Vec<Table<'t, 'a>> {
        if let Some((name, value)) = self.keys.get_key_value(key)
            && matches!(value.get_ref(), DeValue::Table(_))
        {
            errors.add(name.span().start, single_table_message(key));
        }
        self.tables(key, errors)
    }

    /// The tables with the name `key`: one table or an array of tables.
    pub(super) fn tables(
        &mut self,
        key: &'static str,
        errors: &mut SettingErrors<'_>,
    ) -> Vec<Table<'t, 'a>> {
        let Some(value) = self.take(key) else { return Vec::new() };
        match value.get_ref() {
            DeValue::Array(list) => {
                list.iter().filter_map(|value| Table::of(key, value, errors)).collect()
            }
            _ => Table::of(key, value, errors).into_iter().collect(),
        }
    }

    /// A string or an array of strings, each with its position in bytes.
    pub(super) fn texts(
        &mut self,
        key: &'static str,
        errors: &mut SettingErrors<'_>,
    ) -> Option<Vec<(usize, &'t str)>> {
        let value = self.take(key)?;
        let each = match value.get_ref() {
            DeValue::Array(list) => list.iter().collect(),
            _ => vec![value],
        };
        let texts = each
            .into_iter()
            .filter_map(|value| Some((value.span().start, text(key, value, errors)?)));
        Some(texts.collect())
    }

    /// A string, converted by `parse`; its error is reported with the key and the line.
    pub(super) fn parsed<T>(
        &mut self,
        key: &'static str,
        errors: &mut SettingErrors<'_>,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        let value = self.take(key)?;
        let offset = value.span().start;
        match parse(text(key, value, errors)?) {
            Ok(parsed) => Some(parsed),
            Err(error) => {
                errors.add(offset, format!("{key}: {error}"));
                None
            }
        }
    }

    /// An integer in the range `lowest..=highest`.
    pub(super) fn number(
        &mut self,
        key: &'static str,
        lowest: u64,
        highest: u64,
        errors: &mut SettingErrors<'_>,
    ) -> Option<u64> {
        let value = self.take(key)?;
        let number = value.get_ref().as_integer();
        let number = number
            .and_then(|number| u64::from_str_radix(number.as_str(), number.radix()).ok())
            .filter(|number| (lowest..=highest).contains(number));
        if number.is_none() {
            let text = format!("{key} is a number from {lowest} to {highest}");
            errors.add(value.span().start, text);
        }
        number
    }

    /// A period of time: a string with a unit, for example `"1500ms"`, `"2s"` or `"7d"`.
    pub(super) fn span(
        &mut self,
        key: &'static str,
        errors: &mut SettingErrors<'_>,
    ) -> Option<Duration> {
        self.parsed(key, errors, span)
    }

    /// `true` or `false`.
    pub(super) fn flag(
        &mut self,
        key: &'static str,
        errors: &mut SettingErrors<'_>,
    ) -> Option<bool> {
        let value = self.take(key)?;
        let flag = value.get_ref().as_bool();
        if flag.is_none() {
            errors.add(value.span().start, format!("{key} is true or false"));
        }
        flag
    }

    /// Reports every key that no caller has read, with the nearest known one.
    pub(super) fn finish(self, errors: &mut SettingErrors<'_>) {
        for (name, _) in self.keys {
            let key = name.get_ref().as_ref();
            if self.known.contains(&key) {
                continue;
            }
            let table = match self.name.as_str() {
                "" => String::new(),
                table => format!(" in {table}"),
            };
            let hint = match nearest(key, &self.known) {
                Some(known) => format!("; did you mean {known}?"),
                None => format!("; there are: {}", self.known.join(", ")),
            };
            errors.add(name.span().start, format!("there is no key {key}{table}{hint}"));
        }
    }
}

/// The error for `[key]` where `[[key]]` is needed.
fn single_table_message(key: &str) -> String {
    format!("write [[{key}]] instead of [{key}]: the file may have several of them")
}

/// The message of a TOML syntax error at `offset` of `text`. "duplicate key" at `[notify]` means that the second
/// table needs double brackets.
pub(super) fn syntax_message(message: &str, text: &str, offset: usize) -> String {
    let message = message.replace('\n', ", ");
    let rest = text.get(offset..).unwrap_or_default().trim_start_matches(['[', ' ']);
    let word = |character: char| character.is_ascii_alphanumeric() || character == '_';
    let key = &rest[..rest.find(|character| !word(character)).unwrap_or(rest.len())];
    if message.contains("duplicate key") && ["notify", "instance", "group"].contains(&key) {
        return format!("{message}: {}", single_table_message(key));
    }
    message
}

/// `value` as a string; an error if it has another type.
fn text<'t>(key: &str, value: &'t Value<'_>, errors: &mut SettingErrors<'_>) -> Option<&'t str> {
    let text = value.get_ref().as_str();
    if text.is_none() {
        let actual = type_name(value.get_ref());
        errors.add(value.span().start, format!("{key} is a string, not {actual}"));
    }
    text
}

fn type_name(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "a number",
        DeValue::Float(_) => "a fraction",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

/// The entry of `known` that differs least from `word`; `None` if all of them differ in more than a third of
/// the letters.
pub fn nearest<'k>(word: &str, known: &[&'k str]) -> Option<&'k str> {
    let distance = |known: &&str| strsim::damerau_levenshtein(word, known);
    let nearest = known.iter().min_by_key(|known| distance(known))?;
    (distance(nearest) <= word.len().max(3) / 3).then_some(*nearest)
}

/// Parses a whole number with a unit: `ms`, `s`, `m`, `h` or `d`.
pub fn span(text: &str) -> Result<Duration, String> {
    let invalid = || format!("{text:?} is not a number with ms, s, m, h or d behind it");
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let millis: u64 = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(invalid()),
    };
    let number: u64 = number.parse().map_err(|_error| invalid())?;
    number.checked_mul(millis).map(Duration::from_millis).ok_or_else(invalid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_of_time_needs_a_unit() {
        assert_eq!(span("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(span("1500ms"), Ok(Duration::from_millis(1500)));
        assert_eq!(span("7d"), Ok(Duration::from_hours(168)));
        for invalid in ["", "h", "2", "2w", "-1h", "1.5h", "2ü", "99999999999999999999d"] {
            assert!(span(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn the_nearest_word_differs_in_few_letters() {
        assert_eq!(nearest("sokcet", &["socket", "state_dir"]), Some("socket"));
        assert_eq!(nearest("hooks", &["hook", "webhook"]), Some("hook"));
        assert_eq!(nearest("zebra", &["hook", "webhook"]), None);
    }
}
