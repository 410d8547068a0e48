// SPDX-License-Identifier: Apache-2.0
//! Draws the screen of a terminal as SVG, which stays sharp at every size and is text for a version control system.

use std::fmt::Write as _;

use vt100::{Cell, Color, Screen};

/// The size of one cell, and of the font, in pixels.
const CELL_WIDTH: f64 = 8.4;
const CELL_HEIGHT: f64 = 18.0;
const FONT_SIZE: u32 = 14;
/// The space around the screen in pixels.
const MARGIN: f64 = 12.0;

const FOREGROUND: &str = "#d8dee9";
const BACKGROUND: &str = "#1b1f27";

/// The colours of a terminal: the eight normal and the eight bright ones.
const PALETTE: [&str; 16] = [
    "#3b4252", "#e06c75", "#98c379", "#e5c07b", "#61afef", "#c678dd", "#56b6c2", "#d8dee9",
    "#7b8494", "#ff7b86", "#b5e890", "#ffd68a", "#7cc4ff", "#dd8ff0", "#6fd3e0", "#ffffff",
];

/// How a run of cells looks.
#[derive(PartialEq)]
struct Look {
    foreground: &'static str,
    background: &'static str,
    is_bold: bool,
}

impl Look {
    fn of(cell: &Cell) -> Self {
        let foreground = color(cell.fgcolor(), FOREGROUND);
        let background = color(cell.bgcolor(), BACKGROUND);
        let is_bold = cell.bold();
        if cell.inverse() {
            return Self { foreground: background, background: foreground, is_bold };
        }
        Self { foreground, background, is_bold }
    }
}

fn color(color: Color, default: &'static str) -> &'static str {
    match color {
        Color::Default | Color::Rgb(..) => default,
        Color::Idx(index) => PALETTE.get(usize::from(index)).copied().unwrap_or(default),
    }
}

/// The screen as an SVG document.
pub fn picture(screen: &Screen) -> String {
    let (rows, columns) = screen.size();
    let width = f64::from(columns) * CELL_WIDTH + 2.0 * MARGIN;
    let height = f64::from(rows) * CELL_HEIGHT + 2.0 * MARGIN;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
         viewBox=\"0 0 {width:.0} {height:.0}\" font-family=\"DejaVu Sans Mono, Menlo, Consolas, monospace\" \
         font-size=\"{FONT_SIZE}\">\n\
         <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"{BACKGROUND}\"/>\n"
    );
    for row in 0..rows {
        push_row(&mut svg, screen, row, columns);
    }
    svg.push_str("</svg>\n");
    svg
}

/// Adds the runs of equal cells of one row.
fn push_row(svg: &mut String, screen: &Screen, row: u16, columns: u16) {
    let mut column = 0;
    while column < columns {
        let Some(look) = screen.cell(row, column).map(Look::of) else { return };
        let begin = column;
        let mut text = String::new();
        while let Some(cell) = screen.cell(row, column).filter(|cell| Look::of(cell) == look) {
            match cell.contents() {
                "" if cell.is_wide_continuation() => {}
                "" => text.push(' '),
                contents => text.push_str(contents),
            }
            column += 1;
        }
        push_run(svg, &text, &look, begin..column, row);
    }
}

fn push_run(svg: &mut String, text: &str, look: &Look, columns: std::ops::Range<u16>, row: u16) {
    let x = MARGIN + f64::from(columns.start) * CELL_WIDTH;
    let y = MARGIN + f64::from(row) * CELL_HEIGHT;
    let width = f64::from(columns.end - columns.start) * CELL_WIDTH;
    if look.background != BACKGROUND {
        let background = look.background;
        let _ = writeln!(
            svg,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{CELL_HEIGHT}\" fill=\"{background}\"/>"
        );
    }
    let trimmed = text.trim();
    if trimmed.is_empty() {
        return;
    }
    // Each space is one column.
    let spaces = |part: &str| u16::try_from(text.len() - part.len()).unwrap_or(0);
    let (before, after) = (spaces(text.trim_start()), spaces(text.trim_end()));
    let x = x + f64::from(before) * CELL_WIDTH;
    let width = f64::from(columns.end - columns.start - before - after) * CELL_WIDTH;
    let weight = if look.is_bold { " font-weight=\"bold\"" } else { "" };
    let (baseline, foreground) = (y + CELL_HEIGHT * 0.75, look.foreground);
    // The length keeps the columns aligned with every font.
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{baseline:.1}\" textLength=\"{width:.1}\" lengthAdjust=\"spacingAndGlyphs\" \
         fill=\"{foreground}\"{weight}>{}</text>",
        escape(trimmed)
    );
}

/// Escapes markup, and keeps spaces: a browser would show several of them as one.
fn escape(text: &str) -> String {
    let text = text.replace(' ', "\u{a0}");
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_has_its_colour_weight_and_place_and_markup_is_escaped() {
        let mut parser = vt100::Parser::new(2, 20, 0);
        parser.process(b"a \x1b[1;32m<ok>\x1b[0m\r\n\x1b[7mrow\x1b[0m");
        let svg = picture(parser.screen());
        assert!(svg.contains("fill=\"#98c379\" font-weight=\"bold\">&lt;ok&gt;</text>"), "{svg}");
        let inverse = format!("fill=\"{FOREGROUND}\"/>\n<text x=\"12.0\" y=\"43.5\"");
        assert!(svg.contains(&inverse), "{svg}");
        assert!(!svg.contains("<ok>"), "{svg}");
    }
}
