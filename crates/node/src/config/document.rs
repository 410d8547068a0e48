//! A TOML document as something to take keys from: what is of another kind than expected, and
//! what nobody took, is a fault with its line.

use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Something wrong in a configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}:{line}: {text}", file.display())]
pub struct SettingError {
    /// The file.
    pub file: PathBuf,
    /// The line; 1 is the first.
    pub line: u32,
    /// What.
    pub text: String,
}

/// Where faults gather.
#[derive(Debug)]
pub(super) struct SettingErrors<'a> {
    file: &'a Path,
    text: &'a str,
    pub(super) list: Vec<SettingError>,
}

impl<'a> SettingErrors<'a> {
    pub(super) fn of(file: &'a Path, text: &'a str) -> Self {
        Self { file, text, list: Vec::new() }
    }

    /// The line that the byte at `offset` is in.
    pub(super) fn line(&self, offset: usize) -> u32 {
        let breaks = self.text.get(..offset).unwrap_or_default().matches('\n').count();
        u32::try_from(breaks).unwrap_or(u32::MAX).saturating_add(1)
    }

    pub(super) fn add(&mut self, offset: usize, text: impl Into<String>) {
        let line = self.line(offset);
        self.list.push(SettingError { file: self.file.to_owned(), line, text: text.into() });
    }
}

/// A value, and where it stands.
pub(super) type Value<'a> = Spanned<DeValue<'a>>;

/// A table from which keys are taken.
pub(super) struct Table<'t, 'a> {
    keys: &'t DeTable<'a>,
    /// What it is called in messages; empty for the document.
    name: String,
    /// Where it begins.
    pub(super) offset: usize,
    known: Vec<&'static str>,
}

impl<'t, 'a> Table<'t, 'a> {
    pub(super) fn new(name: &str, table: &'t DeTable<'a>, offset: usize) -> Self {
        Self { keys: table, name: name.to_owned(), offset, known: Vec::new() }
    }

    /// The value itself, if it is a table.
    pub(super) fn of(
        name: &str,
        value: &'t Value<'a>,
        faults: &mut SettingErrors<'_>,
    ) -> Option<Self> {
        let offset = value.span().start;
        match value.get_ref() {
            DeValue::Table(table) => Some(Self::new(name, table, offset)),
            other => {
                faults.add(offset, format!("{name} is a table, not {}", kind(other)));
                None
            }
        }
    }

    /// The value of `key`, if there is one.
    pub(super) fn take(&mut self, key: &'static str) -> Option<&'t Value<'a>> {
        self.known.push(key);
        self.keys.iter().find(|(name, _)| name.get_ref() == key).map(|(_, value)| value)
    }

    /// The table called `key`.
    pub(super) fn table(
        &mut self,
        key: &'static str,
        faults: &mut SettingErrors<'_>,
    ) -> Option<Table<'t, 'a>> {
        let value = self.take(key)?;
        Table::of(key, value, faults)
    }

    /// The tables called `key`: one, or a list of them.
    pub(super) fn tables(
        &mut self,
        key: &'static str,
        faults: &mut SettingErrors<'_>,
    ) -> Vec<Table<'t, 'a>> {
        let Some(value) = self.take(key) else { return Vec::new() };
        match value.get_ref() {
            DeValue::Array(list) => {
                list.iter().filter_map(|value| Table::of(key, value, faults)).collect()
            }
            _ => Table::of(key, value, faults).into_iter().collect(),
        }
    }

    /// A string, or a list of them.
    pub(super) fn texts(
        &mut self,
        key: &'static str,
        faults: &mut SettingErrors<'_>,
    ) -> Option<Vec<(usize, &'t str)>> {
        let value = self.take(key)?;
        let each = match value.get_ref() {
            DeValue::Array(list) => list.iter().collect(),
            _ => vec![value],
        };
        let texts = each
            .into_iter()
            .filter_map(|value| Some((value.span().start, text(key, value, faults)?)));
        Some(texts.collect())
    }

    /// What `parse` makes of a string; it says what is wrong with others.
    pub(super) fn parsed<T>(
        &mut self,
        key: &'static str,
        faults: &mut SettingErrors<'_>,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        let value = self.take(key)?;
        let offset = value.span().start;
        match parse(text(key, value, faults)?) {
            Ok(parsed) => Some(parsed),
            Err(why) => {
                faults.add(offset, format!("{key}: {why}"));
                None
            }
        }
    }

    pub(super) fn number(
        &mut self,
        key: &'static str,
        lowest: u64,
        highest: u64,
        faults: &mut SettingErrors<'_>,
    ) -> Option<u64> {
        let value = self.take(key)?;
        let number = value.get_ref().as_integer();
        let number = number
            .and_then(|number| u64::from_str_radix(number.as_str(), number.radix()).ok())
            .filter(|number| (lowest..=highest).contains(number));
        if number.is_none() {
            let text = format!("{key} is a number from {lowest} to {highest}");
            faults.add(value.span().start, text);
        }
        number
    }

    /// A span of time: a string with a unit, such as `"1500ms"`, `"2s"`, `"7d"`.
    pub(super) fn span(
        &mut self,
        key: &'static str,
        faults: &mut SettingErrors<'_>,
    ) -> Option<Duration> {
        self.parsed(key, faults, span)
    }

    /// `true` or `false`.
    pub(super) fn flag(
        &mut self,
        key: &'static str,
        faults: &mut SettingErrors<'_>,
    ) -> Option<bool> {
        let value = self.take(key)?;
        let flag = value.get_ref().as_bool();
        if flag.is_none() {
            faults.add(value.span().start, format!("{key} is true or false"));
        }
        flag
    }

    /// Complains about every key that nobody has asked for.
    pub(super) fn finish(self, faults: &mut SettingErrors<'_>) {
        for (name, _) in self.keys {
            let key = name.get_ref().as_ref();
            if self.known.contains(&key) {
                continue;
            }
            let place = match self.name.as_str() {
                "" => String::new(),
                place => format!(" in {place}"),
            };
            let hint = match nearest(key, &self.known) {
                Some(known) => format!("; did you mean {known}?"),
                None => format!("; there are: {}", self.known.join(", ")),
            };
            faults.add(name.span().start, format!("there is no key {key}{place}{hint}"));
        }
    }
}

fn text<'t>(key: &str, value: &'t Value<'_>, faults: &mut SettingErrors<'_>) -> Option<&'t str> {
    let text = value.get_ref().as_str();
    if text.is_none() {
        let what = kind(value.get_ref());
        faults.add(value.span().start, format!("{key} is a string, not {what}"));
    }
    text
}

fn kind(value: &DeValue<'_>) -> &'static str {
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

/// The word of `known` that `word` was probably meant to be.
pub fn nearest<'k>(word: &str, known: &[&'k str]) -> Option<&'k str> {
    let distance = |known: &&str| strsim::damerau_levenshtein(word, known);
    let nearest = known.iter().min_by_key(|known| distance(known))?;
    (distance(nearest) <= word.len().max(3) / 3).then_some(*nearest)
}

/// A number and a unit: `ms`, `s`, `m`, `h` or `d`.
pub fn span(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a number with ms, s, m, h or d behind it");
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let millis: u64 = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(wrong()),
    };
    let number: u64 = number.parse().map_err(|_error| wrong())?;
    number.checked_mul(millis).map(Duration::from_millis).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_a_unit() {
        assert_eq!(span("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(span("1500ms"), Ok(Duration::from_millis(1500)));
        assert_eq!(span("7d"), Ok(Duration::from_hours(168)));
        for wrong in ["", "h", "2", "2w", "-1h", "1.5h", "2ü", "99999999999999999999d"] {
            assert!(span(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_nearest_word_is_near() {
        assert_eq!(nearest("sokcet", &["socket", "state_dir"]), Some("socket"));
        assert_eq!(nearest("hooks", &["hook", "webhook"]), Some("hook"));
        assert_eq!(nearest("zebra", &["hook", "webhook"]), None);
    }
}
