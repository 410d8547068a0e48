// SPDX-License-Identifier: Apache-2.0
//! Shows the progress: a bar on a terminal, one line for each router otherwise. Everything goes to standard error; with
//! `--json` only the document goes to standard output.

use std::io::{IsTerminal, Write};

use vipwatch_core::escape_untrusted;

use crate::document::ReplacementRow;

/// The width of the bar, in characters.
const WIDTH: usize = 30;

/// The progress of one run.
#[derive(Debug)]
pub(crate) struct Progress {
    is_terminal: bool,
    done: usize,
    total: usize,
}

impl Progress {
    pub(crate) fn new(total: usize) -> Self {
        Self { is_terminal: std::io::stderr().is_terminal(), done: 0, total }
    }

    /// Adds routers that were not known at the beginning.
    pub(crate) fn grow(&mut self, count: usize) {
        self.total += count;
    }

    /// Shows that the work on a router begins.
    pub(crate) fn begin(&self, router: &str) {
        if self.is_terminal {
            self.write(&format!(
                "\r\x1b[K{} {}/{} {}",
                bar(self.done, self.total),
                self.done,
                self.total,
                escape_untrusted(router)
            ));
        }
    }

    /// Shows the result for a router; the message of a failure only with `has_message`, if it is not the last one.
    pub(crate) fn end(&mut self, row: &ReplacementRow, has_message: bool) {
        self.done += 1;
        let clear = if self.is_terminal { "\r\x1b[K" } else { "" };
        let message = row
            .message
            .as_deref()
            .filter(|_| has_message)
            .map(|message| format!(": {}", escape_untrusted(message)));
        self.write(&format!(
            "{clear}[{}/{}] {}{}\n",
            self.done,
            self.total,
            escape_untrusted(&row.line()),
            message.unwrap_or_default()
        ));
    }

    /// Removes the bar before another text.
    pub(crate) fn clear(&self) {
        if self.is_terminal {
            self.write("\r\x1b[K");
        }
    }

    #[expect(clippy::unused_self, reason = "the progress has one output")]
    fn write(&self, text: &str) {
        // A closed standard error does not stop the replacements.
        let mut stderr = std::io::stderr();
        let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
    }
}

fn bar(done: usize, total: usize) -> String {
    let filled = (WIDTH * done).checked_div(total).unwrap_or(WIDTH).min(WIDTH);
    format!("[{}{}]", "#".repeat(filled), "-".repeat(WIDTH - filled))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_is_empty_at_the_beginning_and_full_at_the_end() {
        assert_eq!(bar(0, 7), format!("[{}]", "-".repeat(WIDTH)));
        assert_eq!(bar(7, 7), format!("[{}]", "#".repeat(WIDTH)));
        assert_eq!(bar(0, 0), format!("[{}]", "#".repeat(WIDTH)));
    }
}
