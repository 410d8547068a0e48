// SPDX-License-Identifier: Apache-2.0
//! Repetitions: `~SEQ(…)` and `~LST(…)` repeat a text, each time with other values of definitions.

use super::text::BLANKS;

/// A text with the values for its remaining iterations.
#[derive(Debug, Clone)]
pub(super) enum Repeat {
    /// `~SEQ(NAME, FIRST, STEP, LAST) TEXT`.
    Sequence(Sequence),
    /// `~LST({NAME, …}, {VALUE, …}, …) TEXT`.
    List(List),
}

#[derive(Debug, Clone)]
pub(super) struct Sequence {
    name: String,
    next: i64,
    step: i64,
    last: i64,
    is_hex: bool,
    text: String,
}

#[derive(Debug, Clone)]
pub(super) struct List {
    names: Vec<String>,
    /// For each remaining iteration one value per name, in reverse order.
    sets: Vec<Vec<String>>,
    text: String,
}

/// One iteration of a repetition.
pub(super) struct Iteration {
    /// The names of definitions and their values.
    pub(super) values: Vec<(String, String)>,
    pub(super) text: String,
    pub(super) is_last: bool,
}

impl Repeat {
    /// The next iteration.
    pub(super) fn next(&mut self) -> Iteration {
        match self {
            Self::Sequence(sequence) => sequence.next(),
            Self::List(list) => list.next(),
        }
    }

    /// Parses `~SEQ…` or `~LST…`. `expand` replaces the definitions in the numbers of a sequence. `None` if
    /// keepalived rejects the line.
    pub(super) fn parse(line: &str, expand: impl FnOnce(&str) -> Option<String>) -> Option<Self> {
        match line.strip_prefix("~SEQ") {
            Some(rest) => Sequence::parse(rest, expand).map(Self::Sequence),
            None => List::parse(line.strip_prefix("~LST")?).map(Self::List),
        }
    }
}

impl Sequence {
    fn next(&mut self) -> Iteration {
        let value = if self.is_hex { format!("{:x}", self.next) } else { self.next.to_string() };
        self.next = self.next.saturating_add(self.step);
        let is_last = if self.step > 0 { self.next > self.last } else { self.next < self.last };
        Iteration { values: vec![(self.name.clone(), value)], text: self.text.clone(), is_last }
    }

    fn parse(rest: &str, expand: impl FnOnce(&str) -> Option<String>) -> Option<Self> {
        let (is_hex, rest) = rest.strip_prefix('x').map_or((false, rest), |rest| (true, rest));
        let rest = rest.trim_start_matches(BLANKS).strip_prefix('(')?.trim_start_matches(BLANKS);
        let end = rest.find([' ', '\t', ',', ')'])?;
        let (name, rest) = rest.split_at(end);
        let rest = rest.trim_start_matches(BLANKS);
        // Any character after the name separates it from the numbers.
        let rest = rest.get(1..).filter(|_| !rest.starts_with(')') && !name.is_empty())?;
        let (numbers, text) = rest.split_once(')')?;
        let numbers = expand(numbers.trim_start_matches(BLANKS))?;
        let numbers: Vec<i64> = numbers.split(',').map(number).collect::<Option<_>>()?;
        let (next, step, last) = match *numbers.as_slice() {
            [last] => (if last < 0 { -1 } else { 1 }, if last < 1 { -1 } else { 1 }, last),
            [first, last] => (first, if first <= last { 1 } else { -1 }, last),
            [first, step, last] => (first, step, last),
            _ => return None,
        };
        let is_endless = step == 0 || (next < last && step < 0) || (next > last && step > 0);
        if is_endless && numbers.len() == 3 || is_hex && (next < 0 || last < 0) {
            return None;
        }
        let text = text.trim_start_matches(BLANKS).to_owned();
        Some(Self { name: name.to_owned(), next, step, last, is_hex, text })
    }
}

/// A decimal, octal (`0…`) or hexadecimal (`0x…`) number, as C's `strtol` reads it; empty text is zero.
fn number(text: &str) -> Option<i64> {
    let text = text.trim_matches(BLANKS);
    let (is_negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if digits.contains(['-', '+']) {
        return None;
    }
    let lower = digits.to_ascii_lowercase();
    let value = match (lower.strip_prefix("0x"), lower.strip_prefix('0')) {
        (Some(hex), _) => i64::from_str_radix(hex, 16).ok()?,
        (None, Some(octal)) if !octal.is_empty() => i64::from_str_radix(octal, 8).ok()?,
        _ if text.is_empty() => 0,
        _ => digits.parse().ok()?,
    };
    if is_negative { value.checked_neg() } else { Some(value) }
}

impl List {
    fn next(&mut self) -> Iteration {
        let values = self.sets.pop().unwrap_or_default();
        Iteration {
            values: self.names.iter().cloned().zip(values).collect(),
            text: self.text.clone(),
            is_last: self.sets.is_empty(),
        }
    }

    fn parse(rest: &str) -> Option<Self> {
        let rest = rest.trim_start_matches(BLANKS).strip_prefix('(')?.trim_start_matches(BLANKS);
        let (names, mut rest) = group(rest, "},")?;
        let mut sets = Vec::new();
        rest = rest.strip_prefix(',')?.trim_start_matches(BLANKS);
        loop {
            let (mut values, tail) = group(rest, "},)")?;
            if values.len() > names.len() {
                return None;
            }
            values.resize(names.len(), String::new());
            sets.push(values);
            if let Some(text) = tail.strip_prefix(')') {
                sets.reverse();
                let text = text.trim_start_matches(BLANKS).to_owned();
                return Some(Self { names, sets, text });
            }
            rest = tail.strip_prefix(',')?.trim_start_matches(BLANKS);
        }
    }
}

/// Parses `{A, B}` or `A`; returns the elements, and the text from the next separator on. An element ends
/// at a blank or at one of `ends`.
fn group<'a>(text: &'a str, ends: &str) -> Option<(Vec<String>, &'a str)> {
    let braced = text.strip_prefix('{').map(|inner| inner.trim_start_matches(BLANKS));
    let mut rest = braced.unwrap_or(text);
    let mut elements = Vec::new();
    loop {
        let end =
            rest.find(|c: char| BLANKS.contains(&c) || ends.contains(c)).unwrap_or(rest.len());
        let (element, tail) = rest.split_at(end);
        elements.push(element.to_owned());
        rest = tail.trim_start_matches(BLANKS);
        match rest.chars().next()? {
            '}' if braced.is_some() => {
                return Some((elements, rest[1..].trim_start_matches(BLANKS)));
            }
            ',' if braced.is_some() => rest = rest[1..].trim_start_matches(BLANKS),
            ',' | ')' if braced.is_none() => return Some((elements, rest)),
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn iterations(line: &str) -> Option<Vec<String>> {
        let mut repeat = Repeat::parse(line, |text| Some(text.to_owned()))?;
        let mut iterations = Vec::new();
        loop {
            let Iteration { values, text, is_last } = repeat.next();
            let values: Vec<String> =
                values.iter().map(|(name, value)| format!("{name}={value}")).collect();
            iterations.push(format!("{} {text}", values.join(" ")));
            if is_last {
                return Some(iterations);
            }
        }
    }

    #[test]
    fn a_sequence_counts_up_down_and_in_steps() {
        assert_eq!(iterations("~SEQ(A, 3) x").unwrap(), ["A=1 x", "A=2 x", "A=3 x"]);
        assert_eq!(iterations("~SEQ(A, 2, 1) x").unwrap(), ["A=2 x", "A=1 x"]);
        assert_eq!(iterations("~SEQ(A, 1, 4, 9) x").unwrap(), ["A=1 x", "A=5 x", "A=9 x"]);
        assert_eq!(iterations("~SEQx(A, 9, 0xa) x").unwrap(), ["A=9 x", "A=a x"]);
        assert_eq!(iterations("~SEQ(A, 1, -1, 9) x"), None);
        assert_eq!(iterations("~SEQ(A) x"), None);
    }

    #[test]
    fn a_list_gives_each_name_its_value() {
        assert_eq!(iterations("~LST(A, 1, 2) x").unwrap(), ["A=1 x", "A=2 x"]);
        assert_eq!(iterations("~LST({A, B}, {1, 2}, {3}) x").unwrap(), ["A=1 B=2 x", "A=3 B= x"]);
        assert_eq!(iterations("~LST({A}, {1, 2}) x"), None);
    }
}
