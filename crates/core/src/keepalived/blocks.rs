// SPDX-License-Identifier: Apache-2.0
//! Turns lines into statements, lists and blocks, and calls a [`Visitor`] for each.

use super::keywords::{Keyword, KeywordKind, VRRP_PROCESS};
use super::lines::Line;
use super::problem::{FilePosition, Message, Problem, Problems};
use super::text::words;
use super::version::Version;

/// The words of one line.
#[derive(Debug, Clone, Copy)]
pub(super) struct Statement<'a> {
    pub(super) position: FilePosition,
    /// At least one word.
    pub(super) words: &'a [String],
}

impl<'a> Statement<'a> {
    /// The second word; empty if there is none.
    pub(super) fn argument(&self) -> &'a str {
        self.words.get(1).map_or("", String::as_str)
    }
}

/// Whether the visitor gets the statements of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BlockAction {
    Visit,
    Skip,
}

/// Gets the statements of a file, in the order of the file.
pub(super) trait Visitor {
    /// A block begins.
    fn begin(&mut self, statement: Statement<'_>) -> BlockAction;
    /// A statement outside of blocks, or of the block that began last.
    fn statement(&mut self, statement: Statement<'_>);
    /// A line of the list `keyword`.
    fn entry(&mut self, keyword: &str, entry: Statement<'_>);
    /// An unknown keyword with a block inside another block: whether the block is skipped, or its `}` ends the block
    /// around it.
    fn unknown_block(&mut self, note: Problem) -> BlockAction;
    /// The braces do not nest as they are written.
    fn nesting(&mut self, problem: Problem);
    /// A statement has no value: keepalived stops here and does not start.
    fn refuse(&mut self, problem: Problem);
}

/// Reads `lines` as the process of this keepalived that knows `keywords` reads them.
pub(super) fn visit(
    lines: &[Line],
    keywords: &[Keyword],
    version: Version,
    visitor: &mut dyn Visitor,
) {
    let lines = lines.iter();
    let mut reader =
        BlockReader { lines, version, visitor, skipped: 0, depth: 0, has_ended: false };
    reader.block(keywords, None, false);
}

/// Value of [`BlockReader::skipped`] after the head of a skipped block: a `{` on the next line opens it.
const PENDING: i32 = -1;

struct BlockReader<'a> {
    lines: std::slice::Iter<'a, Line>,
    version: Version,
    visitor: &'a mut dyn Visitor,
    /// Number of open braces inside a skipped block, or [`PENDING`]; 0 outside.
    skipped: i32,
    /// Number of open blocks that are visited.
    depth: u32,
    /// keepalived stops at a statement without a value.
    has_ended: bool,
}

impl BlockReader<'_> {
    /// The words of the next line that is not empty.
    fn next(&mut self) -> Option<(FilePosition, Vec<String>)> {
        loop {
            let line = self.lines.next().filter(|_| !self.has_ended)?;
            let words = words(&line.text);
            if !words.is_empty() {
                return Some((line.position, words));
            }
        }
    }

    /// Reads statements up to the `}` of the block `head`, or to the end of the file if `head` is `None`.
    fn block(&mut self, keywords: &[Keyword], head: Option<Statement<'_>>, mut needs_brace: bool) {
        let mut unknown = None;
        while let Some((position, words)) = self.next() {
            let first = words[0].as_str();
            if self.skipped == PENDING {
                self.skipped = i32::from(first == "{");
                if self.skipped == 1 {
                    needs_brace = false;
                    continue;
                }
            }
            if self.skipped > 0 {
                self.skip(&words);
                if self.skipped == 0 && self.depth > 0 {
                    return;
                }
                continue;
            }
            if std::mem::take(&mut needs_brace) {
                if first == "{" {
                    continue;
                }
                self.report_missing_brace(position, head);
            } else if first == "{" {
                self.unknown_block(position, head, unknown.take());
                continue;
            }
            if first == "}" && head.is_some() {
                return;
            }
            let statement = Statement { position, words: &words };
            let is_known = |keyword: &&Keyword| keyword.since <= self.version && keyword.has(first);
            match keywords.iter().find(is_known) {
                Some(keyword) => {
                    unknown = None;
                    self.keyword(keyword, statement);
                }
                None => unknown = Some(first.to_owned()),
            }
        }
    }

    fn skip(&mut self, words: &[String]) {
        for word in words {
            match word.as_str() {
                "{" => self.skipped += 1,
                "}" => self.skipped -= 1,
                _ => {}
            }
            if self.skipped == 0 {
                return;
            }
        }
    }

    fn keyword(&mut self, keyword: &Keyword, statement: Statement<'_>) {
        if statement.words.len() < keyword.min_words {
            let message = Message::plain(format!("{} needs a value", statement.words[0]));
            self.visitor.refuse(Problem::refused(statement.position, message));
            self.has_ended = true;
            return;
        }
        match keyword.kind {
            KeywordKind::Line => self.visitor.statement(statement),
            KeywordKind::List => self.list(statement),
            KeywordKind::Skipped => {
                self.skipped = if statement.words.last().is_some_and(|word| word == "{") {
                    1
                } else {
                    PENDING
                };
            }
            KeywordKind::Block(keywords) => {
                // The line reader puts every brace on its own line, except a brace in quotes.
                let (words, needs_brace) = match statement.words {
                    [words @ .., last] if last == "{" => (words, false),
                    words => (words, true),
                };
                let head = Statement { words, ..statement };
                if self.visitor.begin(head) == BlockAction::Skip {
                    self.skipped = PENDING;
                }
                self.depth += 1;
                self.block(keywords, Some(head), needs_brace);
                self.depth -= 1;
            }
        }
    }

    /// Reads a list up to its `}`: every other line is an entry.
    fn list(&mut self, head: Statement<'_>) {
        let keyword = head.words[0].as_str();
        let mut needs_brace = true;
        // The line reader puts every brace on its own line, except a brace in quotes.
        if let [_, brace, entry @ ..] = head.words
            && brace == "{"
        {
            needs_brace = false;
            let (entry, is_last) = match entry {
                [entry @ .., last] if last == "}" => (entry, true),
                entry => (entry, false),
            };
            if !entry.is_empty() {
                self.visitor.entry(keyword, Statement { words: entry, ..head });
            }
            if is_last {
                return;
            }
        }
        while let Some((position, mut words)) = self.next() {
            if std::mem::take(&mut needs_brace) {
                if words[0] == "{" {
                    words.remove(0);
                } else {
                    // keepalived treats this line as the first entry.
                    let message = Message::plain(format!("{keyword} needs a {{ before this line"));
                    self.visitor.nesting(Problem::note(position, message));
                }
            }
            let is_last = words.last().is_some_and(|word| word == "}");
            if is_last {
                words.pop();
            }
            if !words.is_empty() {
                self.visitor.entry(keyword, Statement { position, words: &words });
            }
            if is_last {
                return;
            }
        }
    }

    fn report_missing_brace(&mut self, position: FilePosition, head: Option<Statement<'_>>) {
        let Some(head) = head else { return };
        let message = Message::quoting(
            "expected a { before this line",
            format!("{} needs a {{ before this line", head.words.join(" ")),
        );
        self.visitor.nesting(Problem::new(position, message));
    }

    /// A `{` after `word`, which is not a keyword, or without any word. Outside of all blocks it has no effect.
    fn unknown_block(
        &mut self,
        position: FilePosition,
        head: Option<Statement<'_>>,
        word: Option<String>,
    ) {
        let Some(head) = head else { return };
        let head = head.words.join(" ");
        let word = match word {
            Some(word) if VRRP_PROCESS.iter().all(|known| !known.has(&word)) => word,
            outer => {
                let message = match outer {
                    Some(word) => Message::quoting(
                        "expected a } before this block: its } ends the block around it",
                        format!("expected a }} before {word}: its }} ends {head}"),
                    ),
                    None => Message::quoting(
                        "a { without a keyword: its } ends the block around it",
                        format!("a {{ without a keyword: its }} ends {head}"),
                    ),
                };
                return self.visitor.nesting(Problem::new(position, message));
            }
        };
        let message = Message::quoting(
            format!(
                "expected a block that keepalived {0} knows: it is skipped here, but keepalived {0} may not load what follows it",
                self.version
            ),
            format!(
                "keepalived {0} does not know the block {word:?} in {head}: it is skipped here, but keepalived {0} may not load what follows it, such as addresses",
                self.version
            ),
        );
        if self.visitor.unknown_block(Problem::note(position, message)) == BlockAction::Skip {
            self.skipped = 1;
            while self.skipped > 0
                && let Some((_, words)) = self.next()
            {
                self.skip(&words);
            }
            self.skipped = 0;
        }
    }
}

/// Adds one problem if braces do not match: the outermost block that is not closed, or the first `}` without a `{`.
pub(super) fn check_braces(lines: &[Line], problems: &mut Problems) {
    let mut open: Vec<&Line> = Vec::new();
    let mut before = None;
    for line in lines {
        match line.text.as_str() {
            "{" => open.push(before.unwrap_or(line)),
            "}" if open.pop().is_none() => {
                problems.push(Problem::new(line.position, "} without a { before it"));
                return;
            }
            _ => {}
        }
        before = Some(line);
    }
    if let Some(line) = open.first() {
        let message = Message::quoting(
            "this block is not closed: the file ends inside it",
            format!("{} is not closed: the file ends inside it", line.text),
        );
        problems.push(Problem::new(line.position, message));
    }
}
