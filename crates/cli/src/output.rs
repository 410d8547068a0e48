//! Prints tables for people and JSON for scripts. Text from other programs, files and hosts is escaped.

use std::io::Write;

use serde_json::Value;
pub(crate) use vipwatch_core::escape_untrusted;
use vipwatch_core::escape_untrusted_json;

/// Prints `text`. A closed pipe is not an error.
pub(crate) fn print(text: &str) {
    let _ = print_or_closed(text);
}

/// Prints `text`; false if the reader has closed the pipe.
pub(crate) fn print_or_closed(text: &str) -> bool {
    let mut stdout = std::io::stdout();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).is_ok()
}

/// Prints a value as JSON in several lines.
pub(crate) fn json(value: &Value) {
    let text = serde_json::to_string_pretty(value).unwrap_or_default();
    print(&format!("{}\n", escape_untrusted_json(&text)));
}

/// A value as JSON in one line.
pub(crate) fn json_line(value: &Value) -> String {
    escape_untrusted_json(&value.to_string())
}

/// A table; each column is as wide as its longest cell.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| cell_text(cell)).collect()).collect();
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).chain([head[column].len()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line = |cells: Vec<&str>| {
        let padded: Vec<String> =
            cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        format!("{}\n", padded.join("  ").trim_end())
    };
    let mut text = line(head.to_vec());
    for row in &rows {
        text.push_str(&line(row.iter().map(String::as_str).collect()));
    }
    text
}

/// The text of a cell: `-` for an empty one, otherwise escaped.
fn cell_text(cell: &str) -> String {
    if cell.is_empty() { "-".to_owned() } else { escape_untrusted(cell) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_escaped_for_the_terminal_and_keeps_its_value() {
        let value = serde_json::json!({ "a": "x\u{202e}y\u{e0041}\n\u{9b}é" });
        let line = json_line(&value);
        assert_eq!(line, r#"{"a":"x\u202ey\udb40\udc41\n\u009bé"}"#);
        assert_eq!(serde_json::from_str::<Value>(&line).unwrap(), value);
    }

    #[test]
    fn columns_are_aligned_and_control_characters_are_escaped() {
        let rows = [
            vec!["a".to_owned(), "primary".to_owned(), String::new()],
            vec!["longer\u{1b}[2J\u{202e}".to_owned(), "backup".to_owned(), "why".to_owned()],
        ];
        let text = table(&["ID", "ROLE", "REASON"], &rows);
        let expected = "ID                       ROLE     REASON\n\
                        a                        primary  -\n\
                        longer\\u{1b}[2J\\u{202e}  backup   why\n";
        assert_eq!(text, expected);
    }
}
