// SPDX-License-Identifier: Apache-2.0
//! A terminal's screen as a picture.

use std::fmt::Write as _;

use anstyle_svg::{Term, WIN10_CONSOLE};
use vt100::{Cell, Color, Screen};

/// The screen as an SVG document.
pub fn picture(screen: &Screen) -> String {
    Term::new().palette(WIN10_CONSOLE).render_svg(&text(screen))
}

/// The screen as text with the codes for colours. [`Screen::contents_formatted`] moves the cursor too, which a picture cannot.
fn text(screen: &Screen) -> String {
    let (rows, columns) = screen.size();
    let mut text = String::new();
    for row in 0..rows {
        let mut last = String::new();
        for cell in (0..columns).filter_map(|column| screen.cell(row, column)) {
            let look = look(cell);
            if look != last {
                text.push_str(&look);
                last = look;
            }
            match cell.contents() {
                "" if cell.is_wide_continuation() => {}
                "" => text.push(' '),
                // LIMIT: anstyle-svg 1.1 draws the background of `>` four columns wide.
                ">" if cell.inverse() => text.push('›'),
                contents => text.push_str(contents),
            }
        }
        text.push_str("\x1b[0m\n");
    }
    text
}

/// The code for the colours and the weight of a cell.
fn look(cell: &Cell) -> String {
    let mut code = "\x1b[0".to_owned();
    for (has, number) in [(cell.bold(), ";1"), (cell.inverse(), ";7")] {
        code.push_str(if has { number } else { "" });
    }
    for (color, number) in [(cell.fgcolor(), 38), (cell.bgcolor(), 48)] {
        if let Color::Idx(index) = color {
            // The bright colours: they are easy to read on black.
            let index = if (1..7).contains(&index) { index + 8 } else { index };
            let _ = write!(code, ";{number};5;{index}");
        }
    }
    code.push('m');
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_screen_keeps_its_colours_weights_and_columns() {
        let mut parser = vt100::Parser::new(2, 8, 0);
        parser.process(b"a \x1b[1;32m<ok>\x1b[0m\r\n\x1b[7mrow\x1b[0m");
        let expected = "\x1b[0ma \x1b[0;1;38;5;10m<ok>\x1b[0m  \x1b[0m\n\
                        \x1b[0;7mrow\x1b[0m     \x1b[0m\n";
        assert_eq!(text(parser.screen()), expected);
        assert!(picture(parser.screen()).contains("&lt;ok&gt;"));
    }
}
