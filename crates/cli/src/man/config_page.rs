// SPDX-License-Identifier: Apache-2.0
//! The manual page of the configuration file, from the text of `vipwatch config example`.

use clap_mangen::roff::{Roff, bold, roman};
use vipwatch_node::config::EXAMPLE;

const INTRODUCTION: &str = "The file vipwatch.toml has the settings of vipwatch-node(8) and vipwatch-receiver(8), in the \
format TOML. Without the file, and for every key that is left out, the defaults apply. `vipwatch config check` checks a file and prints \
every error with its position. `vipwatch reload` applies it, without an interruption, and returns the result. The values below are \
the defaults, unless the text says that they are examples.";

pub(super) fn page() -> Roff {
    let mut page = Roff::new();
    page.control("SH", ["NAME"]);
    page.text([roman("vipwatch.toml - configuration of vipwatch")]);
    page.control("SH", ["SYNOPSIS"]);
    page.text([roman("/etc/vipwatch/vipwatch.toml")]);
    page.control("SH", ["DESCRIPTION"]);
    page.text([roman(INTRODUCTION)]);
    settings(&mut page);
    page.control("SH", ["FILES"]);
    page.control("TP", []);
    page.text([bold("/etc/vipwatch/vipwatch.toml")]);
    page.text([roman(
        "Root or the user of the service must own it, and no other user may write to it. With credentials in it, it must not be \
         readable by every user.",
    )]);
    page.control("SH", ["SEE ALSO"]);
    page.text([roman(
        "vipwatch-node(8), vipwatch-receiver(8), vipwatch-config-check(1), vipwatch-reload(1)",
    )]);
    page
}

/// A section for each table of the example, with its keys and the comments above and behind them.
fn settings(page: &mut Roff) {
    let mut comment: Vec<&str> = Vec::new();
    // The first paragraph is about the file itself.
    let body = EXAMPLE.split_once("\n\n").map_or(EXAMPLE, |(_, body)| body);
    for line in body.lines() {
        if line.starts_with('[') {
            page.control("SH", [line]);
            if !comment.is_empty() {
                page.text([roman(comment.join(" "))]);
            }
            comment.clear();
        } else if let Some(setting) = SettingLine::of(line) {
            comment.extend(setting.comment);
            page.control("TP", []);
            page.text([bold(setting.setting)]);
            page.text([roman(sentences(&comment))]);
            comment.clear();
        } else if let Some(words) = line.strip_prefix('#') {
            comment.push(words.trim());
        }
    }
}

/// The comments of a key as sentences: one behind the key has neither a capital letter nor a full stop.
fn sentences(comment: &[&str]) -> String {
    let mut text = comment.join(" ");
    for end in [", for example:", "; for example:", ". For example:"] {
        if let Some(before) = text.strip_suffix(end) {
            text = format!("{before}. The value shown is an example.");
        }
    }
    if let Some(first) = text.get(..1).map(str::to_uppercase) {
        text.replace_range(..1, &first);
    }
    if !text.ends_with(['.', ':']) {
        text.push('.');
    }
    text
}

/// A line of the example that sets a key; also one that is commented out.
#[derive(Debug, PartialEq)]
struct SettingLine<'a> {
    /// The key with its value.
    setting: &'a str,
    /// The comment behind the value.
    comment: Option<&'a str>,
}

impl<'a> SettingLine<'a> {
    /// `None` for another line, also for a sentence that begins with a key and a value.
    fn of(line: &'a str) -> Option<Self> {
        let setting = line.strip_prefix("# ").unwrap_or(line);
        let (key, value) = setting.split_once(" = ")?;
        let is_key =
            key.chars().all(|letter| letter.is_ascii_lowercase() || "_0123456789".contains(letter));
        let length = value_length(value).filter(|_| is_key && !key.is_empty())?;
        let rest = value[length..].trim_start();
        let comment = rest.strip_prefix('#').map(str::trim);
        if comment.is_none() && !rest.is_empty() {
            return None;
        }
        Some(Self { setting: &setting[..key.len() + " = ".len() + length], comment })
    }
}

/// The length of the TOML value at the beginning of a text: up to the first space outside quotes and brackets.
fn value_length(text: &str) -> Option<usize> {
    let (mut depth, mut is_quoted) = (0_usize, false);
    for (index, letter) in text.char_indices() {
        match letter {
            '"' => is_quoted = !is_quoted,
            _ if is_quoted => {}
            '[' | '{' => depth += 1,
            ']' | '}' => depth = depth.checked_sub(1)?,
            ' ' if depth == 0 => return Some(index),
            // A value has no comma outside its brackets: the line is a sentence.
            ',' if depth == 0 => return None,
            _ => {}
        }
    }
    (depth == 0 && !is_quoted).then_some(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_that_begins_with_a_key_is_no_setting() {
        assert_eq!(SettingLine::of(r#"# deliver = "every" has not received them."#), None);
        assert_eq!(
            SettingLine::of("# allow_any_agent = true, any user may own and serve it."),
            None
        );
        assert_eq!(SettingLine::of(r#"# deliver = "latest"; for hooks, too."#), None);
    }

    #[test]
    fn a_comment_behind_a_value_is_no_part_of_the_key() {
        let line = SettingLine::of(r#"link = "et#0"  # for "dev LINK""#).unwrap();
        let expected =
            SettingLine { setting: r#"link = "et#0""#, comment: Some(r#"for "dev LINK""#) };
        assert_eq!(line, expected);
        let table = r#"# batch = { max = 100, wait = "200ms" }"#;
        assert_eq!(SettingLine::of(table).unwrap().setting, &table[2..]);
    }

    #[test]
    fn every_key_of_the_example_has_a_text() {
        let mut has_comment = false;
        for line in EXAMPLE.lines() {
            if let Some(setting) = SettingLine::of(line) {
                assert!(has_comment || setting.comment.is_some(), "without a comment: {line}");
                has_comment = false;
            } else {
                has_comment = line.starts_with('#');
            }
        }
    }

    #[test]
    fn a_section_has_its_keys_and_their_texts() {
        let text = page().to_roff();
        let (_, section) = text.split_once("SH [find]").unwrap();
        insta::assert_snapshot!(section.split_once(".SH").unwrap().0);
    }
}
