// SPDX-License-Identifier: Apache-2.0
//! Prints answers: tables for people, JSON and YAML for scripts. Text from other programs, files and hosts is
//! escaped.

mod style;
mod table;

use std::io::Write;

use serde::Serialize;
pub(crate) use vipwatch_core::escape_untrusted;
use vipwatch_core::escape_untrusted_json;

pub(crate) use self::style::{Style, count, latencies, latency, severity_counts};
pub(crate) use self::table::TextTable;
use crate::args::{Format, OutputOptions};

/// An answer that can be printed in every format.
pub(crate) trait Page: Serialize {
    /// The answer for people. It ends with a line break.
    fn text(&self, style: &Style) -> String;
    /// The names of its items, for `-o name`.
    fn names(&self) -> Vec<String>;
}

/// Prints `page` in the format that the options choose.
pub(crate) fn show(options: &OutputOptions, page: &impl Page) {
    show_value(options, page, |style| page.text(style), || page.names());
}

/// Prints `value` in the format that the options choose. `text` is the form for people, `names` that of `-o name`.
pub(crate) fn show_value(
    options: &OutputOptions,
    value: &impl Serialize,
    text: impl FnOnce(&Style) -> String,
    names: impl FnOnce() -> Vec<String>,
) {
    if options.quiet {
        return;
    }
    print(&match options.format() {
        Format::Table => text(&Style::new()),
        Format::Wide => text(&Style { is_wide: true, ..Style::new() }),
        Format::Json => format!("{}\n", pretty_json(value)),
        Format::Yaml => yaml(value),
        Format::Name => name_lines(&names()),
    });
}

/// A table of any width.
pub(crate) fn table(head: &[&'static str], rows: &[Vec<String>]) -> String {
    let mut table = TextTable::new(head);
    for row in rows {
        table.row(row.clone());
    }
    table.text(&Style { is_wide: true, ..Style::new() })
}

/// Adds a line to a page. The line may contain text of other programs.
pub(crate) fn push_line(page: &mut String, line: &str) {
    page.push_str(&escape_untrusted(line));
    page.push('\n');
}

/// Prints `text`. A closed pipe is not an error.
pub(crate) fn print(text: &str) {
    let _ = print_or_closed(text);
}

/// Prints `text`; false if the reader has closed the pipe.
pub(crate) fn print_or_closed(text: &str) -> bool {
    let mut stdout = std::io::stdout();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).is_ok()
}

fn pretty_json(value: &impl Serialize) -> String {
    // The keys of all documents are strings, so this cannot fail.
    escape_untrusted_json(&serde_json::to_string_pretty(value).unwrap_or_default())
}

/// A value as JSON in one line.
pub(crate) fn json_line(value: &impl Serialize) -> String {
    escape_untrusted_json(&serde_json::to_string(value).unwrap_or_default())
}

/// A value as YAML. The writer escapes control characters, but not invisible characters and those that reorder text:
/// with such characters the value is written as JSON, which is valid YAML and can escape them.
pub(crate) fn yaml(value: &impl Serialize) -> String {
    let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
    match serde_saphyr::to_string_with_options(value, options) {
        Ok(text) if text.lines().all(|line| escape_untrusted(line) == line) => text,
        Ok(_) | Err(_) => format!("{}\n", pretty_json(value)),
    }
}

/// The names, one in each line.
fn name_lines(names: &[String]) -> String {
    let mut lines = String::new();
    for name in names {
        push_line(&mut lines, name);
    }
    lines
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn json_is_escaped_for_the_terminal_and_keeps_its_value() {
        let value = json!({ "a": "x\u{202e}y\u{e0041}\n\u{9b}é" });
        let line = json_line(&value);
        assert_eq!(line, r#"{"a":"x\u202ey\udb40\udc41\n\u009bé"}"#);
        assert_eq!(serde_json::from_str::<Value>(&line).unwrap(), value);
    }

    #[test]
    fn yaml_quotes_what_is_not_a_string_and_escapes_harmful_characters() {
        let value = json!({ "a": "true", "b": ["x: y", "12", "\u{1b}[2J"], "c": null });
        insta::assert_snapshot!(yaml(&value), @r#"
        a: "true"
        b:
        - "x: y"
        - "12"
        - "\e[2J"
        c: null
        "#);
        let reordered = yaml(&json!({ "a": "x\u{202e}y" }));
        assert_eq!(reordered, "{\n  \"a\": \"x\\u202ey\"\n}\n");
    }
}
