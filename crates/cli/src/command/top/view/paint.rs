// SPDX-License-Identifier: Apache-2.0
//! Colours, lines with several styles, and how they are put on the screen.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style as CellStyle};
use ratatui::text::Span;
use vipwatch_api::{RoleKind, Severity};

use super::super::screen::ScreenState;
use crate::output::Style;

/// How things look. Without colours the letters and words say the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::command::top) struct Theme {
    pub(in crate::command::top) has_colors: bool,
}

impl Theme {
    fn color(self, color: Color) -> CellStyle {
        if self.has_colors { CellStyle::new().fg(color) } else { CellStyle::new() }
    }

    #[expect(clippy::unused_self, reason = "it is used as the other styles")]
    pub(super) fn normal(self) -> CellStyle {
        CellStyle::new()
    }

    #[expect(clippy::unused_self, reason = "it is used as the other styles")]
    pub(super) fn strong(self) -> CellStyle {
        CellStyle::new().add_modifier(Modifier::BOLD)
    }

    pub(super) fn quiet(self) -> CellStyle {
        self.color(Color::DarkGray)
    }

    pub(super) fn good(self) -> CellStyle {
        self.color(Color::Green)
    }

    pub(super) fn alarm(self) -> CellStyle {
        self.color(Color::Red).add_modifier(Modifier::BOLD)
    }

    /// The selected row.
    #[expect(clippy::unused_self, reason = "it is used as the other styles")]
    pub(super) fn selected(self) -> CellStyle {
        CellStyle::new().add_modifier(Modifier::REVERSED)
    }

    pub(super) fn role(self, role: RoleKind) -> CellStyle {
        match role {
            RoleKind::Primary => self.color(Color::Green),
            RoleKind::Backup => self.color(Color::Blue),
            RoleKind::Partial => self.color(Color::Yellow).add_modifier(Modifier::BOLD),
            RoleKind::Fault => self.alarm(),
            RoleKind::Unknown => self.color(Color::Magenta).add_modifier(Modifier::BOLD),
        }
    }

    pub(super) fn severity(self, severity: Severity) -> CellStyle {
        match severity {
            Severity::Critical => self.alarm(),
            Severity::Warning => self.color(Color::Yellow),
            Severity::Info => self.normal(),
        }
    }
}

/// The letter of a role, which stands for it in the timeline.
pub(super) fn role_letter(role: RoleKind) -> char {
    match role {
        RoleKind::Primary => 'P',
        RoleKind::Backup => 'b',
        RoleKind::Partial => '~',
        RoleKind::Fault => '!',
        RoleKind::Unknown => '?',
    }
}

/// A line of parts with a style each.
#[derive(Debug, Clone, Default)]
pub(super) struct StyledLine(Vec<Span<'static>>);

impl StyledLine {
    pub(super) fn plain(text: &str) -> Self {
        Self(vec![Span::raw(text.to_owned())])
    }

    /// The line with another style.
    #[must_use]
    pub(super) fn styled(mut self, style: CellStyle) -> Self {
        for part in &mut self.0 {
            part.style = style;
        }
        self
    }

    pub(super) fn add(&mut self, text: &str, style: CellStyle) {
        self.0.push(Span::styled(text.to_owned(), style));
    }

    /// The number of columns.
    pub(super) fn width(&self) -> usize {
        self.0.iter().map(Span::width).sum()
    }
}

/// A part of the screen, and how things look there.
pub(super) struct Canvas<'c> {
    pub(super) clock: &'c Style,
    pub(super) theme: Theme,
    pub(super) area: Rect,
    pub(super) buffer: &'c mut Buffer,
}

impl Canvas<'_> {
    /// A part of this part.
    pub(super) fn part(&mut self, area: Rect) -> Canvas<'_> {
        Canvas { area, buffer: self.buffer, ..*self }
    }

    /// Puts a line into the first row of `area`. A line that is too long ends with `…`.
    pub(super) fn put(&mut self, area: Rect, line: &StyledLine) {
        let is_too_long = line.width() > usize::from(area.width);
        let width = area.width.saturating_sub(u16::from(is_too_long));
        let (mut x, end) = (area.x, area.x.saturating_add(width));
        for part in &line.0 {
            let left = usize::from(end.saturating_sub(x));
            (x, _) = self.buffer.set_stringn(x, area.y, &part.content, left, part.style);
        }
        if is_too_long && area.width > 0 {
            self.buffer.set_stringn(x, area.y, "…", 1, CellStyle::new());
        }
    }
}

/// The text in lines of at most `width` columns. All but the first begin with `indent` spaces.
pub(super) fn wrapped(text: &str, width: usize, indent: usize) -> Vec<String> {
    let indent = indent.min(width / 2);
    let mut lines = Vec::new();
    let mut line = String::new();
    let mut used = 0;
    for word in text.split_inclusive(' ') {
        let size = Span::raw(word.trim_end()).width();
        let is_first_word = line.trim().is_empty();
        if used + size > width && !is_first_word {
            lines.push(std::mem::replace(&mut line, " ".repeat(indent)));
            used = indent;
        }
        for c in word.chars() {
            let size = Span::raw(c.to_string()).width();
            if used + size > width && c != ' ' {
                lines.push(std::mem::replace(&mut line, " ".repeat(indent)));
                used = indent;
            }
            line.push(c);
            used += size;
        }
    }
    lines.push(line);
    lines.iter().map(|line| line.trim_end().to_owned()).collect()
}

/// Draws the visible lines of a page that can be scrolled.
pub(super) fn draw_page(screen: &mut ScreenState, lines: &[StyledLine], canvas: &mut Canvas<'_>) {
    let area = canvas.area;
    let height = usize::from(area.height);
    screen.page = height;
    screen.scroll = screen.scroll.min(lines.len().saturating_sub(height));
    let visible = lines.iter().skip(screen.scroll).take(height);
    for (line, y) in visible.zip(area.y..) {
        canvas.put(Rect { y, height: 1, ..area }, line);
    }
}
