// SPDX-License-Identifier: Apache-2.0
//! A table for people. Each column is as wide as its longest cell; a table that is too wide shortens the cells of
//! chosen columns.

use super::{Style, escape_untrusted};

/// The greatest width of a table in characters; `-o wide` has no limit.
const MAX_WIDTH: usize = 100;
/// The characters between two columns.
const SEPARATOR: &str = "  ";

/// A table.
#[derive(Debug)]
pub(crate) struct TextTable {
    head: Vec<&'static str>,
    rows: Vec<Row>,
    /// The columns that may be shortened, each with its smallest width, in this order.
    shrinkable: Vec<(&'static str, usize)>,
}

#[derive(Debug)]
enum Row {
    Cells(Vec<String>),
    /// A line across all columns.
    Line(String),
}

impl TextTable {
    /// An empty table with these columns.
    pub(crate) fn new(head: &[&'static str]) -> Self {
        Self { head: head.to_vec(), rows: Vec::new(), shrinkable: Vec::new() }
    }

    /// Lets the cells of these columns be shortened, each with its smallest width, in this order.
    #[must_use]
    pub(crate) fn shrink(mut self, columns: &[(&'static str, usize)]) -> Self {
        columns.clone_into(&mut self.shrinkable);
        self
    }

    /// Adds a row. An empty cell is printed as `-`.
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        let text =
            |cell: String| if cell.is_empty() { "-".to_owned() } else { escape_untrusted(&cell) };
        self.rows.push(Row::Cells(cells.into_iter().map(text).collect()));
    }

    /// Adds a line across all columns.
    pub(crate) fn line(&mut self, text: &str) {
        self.rows.push(Row::Line(escape_untrusted(text)));
    }

    /// Whether the table has no row.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The table as text.
    pub(crate) fn text(&self, style: &Style) -> String {
        let widths = self.widths(if style.is_wide { usize::MAX } else { MAX_WIDTH });
        let mut text = line(self.head.iter().copied(), &widths);
        for row in &self.rows {
            match row {
                Row::Cells(cells) => {
                    text.push_str(&line(cells.iter().map(String::as_str), &widths));
                }
                Row::Line(across) => {
                    text.push_str(across);
                    text.push('\n');
                }
            }
        }
        text
    }

    fn widths(&self, limit: usize) -> Vec<usize> {
        let mut widths: Vec<usize> = self.head.iter().map(|title| title.len()).collect();
        for row in &self.rows {
            let Row::Cells(cells) = row else { continue };
            for (width, cell) in widths.iter_mut().zip(cells) {
                *width = (*width).max(cell.chars().count());
            }
        }
        for (title, smallest) in &self.shrinkable {
            let total = widths.iter().sum::<usize>() + SEPARATOR.len() * (widths.len() - 1);
            let Some(at) = self.head.iter().position(|other| other == title) else { continue };
            let smallest = (*smallest).max(title.len()).min(widths[at]);
            widths[at] = widths[at].saturating_sub(total.saturating_sub(limit)).max(smallest);
        }
        widths
    }
}

fn line<'a>(cells: impl Iterator<Item = &'a str>, widths: &[usize]) -> String {
    let padded: Vec<String> = cells
        .zip(widths)
        .map(|(cell, width)| format!("{:<width$}", shortened(cell, *width)))
        .collect();
    format!("{}\n", padded.join(SEPARATOR).trim_end())
}

/// The text, or its beginning and `…` if it has more than `width` characters.
fn shortened(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let kept: String = text.chars().take(width.saturating_sub(1)).collect();
    format!("{}…", kept.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> TextTable {
        let mut table = TextTable::new(&["ID", "ROLE", "REASON"]).shrink(&[("REASON", 12)]);
        table.row(vec!["a".to_owned(), "primary".to_owned(), String::new()]);
        table.line("-- a line\u{7} across");
        table.row(vec![
            "longer\u{1b}[2J\u{202e}".to_owned(),
            "backup".to_owned(),
            "why ".repeat(20),
        ]);
        table
    }

    #[test]
    fn columns_are_aligned_and_control_characters_are_escaped() {
        let text = table().text(&Style { is_wide: true, ..Style::of_tests() });
        insta::assert_snapshot!(text, @r"
        ID                       ROLE     REASON
        a                        primary  -
        -- a line\u{7} across
        longer\u{1b}[2J\u{202e}  backup   why why why why why why why why why why why why why why why why why why why why
        ");
    }

    #[test]
    fn a_table_fits_100_columns() {
        let text = table().text(&Style::of_tests());
        assert!(text.lines().all(|line| line.chars().count() <= MAX_WIDTH), "{text}");
        assert!(text.ends_with("…\n"), "{text}");
    }
}
