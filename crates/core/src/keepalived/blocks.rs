//! Lines into statements, lists and blocks.

use super::keywords::{Keyword, KeywordKind};
use super::lines::Line;
use super::problem::{FilePosition, Problem};
use super::text::words;

/// The words of one line.
#[derive(Debug, Clone, Copy)]
pub(super) struct Statement<'a> {
    pub(super) place: FilePosition,
    /// Never none.
    pub(super) words: &'a [String],
}

impl<'a> Statement<'a> {
    /// The word after the first; empty if there is none.
    pub(super) fn argument(&self) -> &'a str {
        self.words.get(1).map_or("", String::as_str)
    }
}

/// What to do with a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    Yes,
    /// Its statements are left out.
    No,
}

/// Takes what a file says, in its order.
pub(super) trait Visitor {
    /// A block begins.
    fn begin(&mut self, statement: Statement<'_>) -> Wanted;
    /// A statement of the block that began last.
    fn statement(&mut self, statement: Statement<'_>);
    /// A line of the list `keyword`.
    fn entry(&mut self, keyword: &str, entry: Statement<'_>);
    /// A problem with the nesting.
    fn nesting(&mut self, problem: Problem);
    /// A statement lacks its value: keepalived ends here.
    fn refuse(&mut self, problem: Problem);
}

/// Visits what `lines` say, for the process that knows `keywords`.
pub(super) fn visit(lines: &[Line], keywords: &[Keyword], visitor: &mut dyn Visitor) {
    let mut walk = Walk { lines: lines.iter(), visitor, skipped: 0, depth: 0, has_ended: false };
    walk.block(keywords, None, false);
}

/// The next line opens the block that is to be skipped, if it is a `{`.
const PENDING: i32 = -1;

struct Walk<'a> {
    lines: std::slice::Iter<'a, Line>,
    visitor: &'a mut dyn Visitor,
    /// How many blocks that are skipped are open, or [`PENDING`].
    skipped: i32,
    depth: u32,
    has_ended: bool,
}

impl Walk<'_> {
    /// The words of the next line that has some.
    fn next(&mut self) -> Option<(FilePosition, Vec<String>)> {
        loop {
            let line = self.lines.next().filter(|_| !self.has_ended)?;
            let words = words(&line.text);
            if !words.is_empty() {
                return Some((line.place, words));
            }
        }
    }

    /// Reads statements up to the `}` of the block `head`; without one, to the end.
    fn block(&mut self, keywords: &[Keyword], head: Option<Statement<'_>>, mut needs_brace: bool) {
        let mut unknown = None;
        while let Some((place, words)) = self.next() {
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
                self.brace_is_missing(place, head);
            } else if first == "{" {
                self.brace_opens_nothing(place, head, unknown.take());
                continue;
            }
            if first == "}" && head.is_some() {
                return;
            }
            let statement = Statement { place, words: &words };
            match keywords.iter().find(|keyword| keyword.name == first) {
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
        if statement.words.len() < keyword.least {
            let text = format!("{} needs a value", keyword.name);
            self.visitor.refuse(Problem::refused(statement.place, text));
            self.has_ended = true;
            return;
        }
        match keyword.kind {
            KeywordKind::Line => self.visitor.statement(statement),
            KeywordKind::List => self.list(keyword.name, statement),
            KeywordKind::Skipped => {
                self.skipped = if statement.words.last().is_some_and(|word| word == "{") {
                    1
                } else {
                    PENDING
                };
            }
            KeywordKind::Block(keywords) => {
                // Only a brace in quotes is still on the line of its block.
                let (words, needs_brace) = match statement.words {
                    [words @ .., last] if last == "{" => (words, false),
                    words => (words, true),
                };
                let head = Statement { words, ..statement };
                if self.visitor.begin(head) == Wanted::No {
                    self.skipped = PENDING;
                }
                self.depth += 1;
                self.block(keywords, Some(head), needs_brace);
                self.depth -= 1;
            }
        }
    }

    /// Reads a list up to its `}`: every other line is an entry.
    fn list(&mut self, keyword: &str, head: Statement<'_>) {
        let mut needs_brace = true;
        // Only a brace in quotes is still on the line of its list.
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
        while let Some((place, mut words)) = self.next() {
            if std::mem::take(&mut needs_brace) {
                if words[0] == "{" {
                    words.remove(0);
                } else {
                    // keepalived takes this line for the first entry.
                    let text = format!("{keyword} needs a {{ before this line");
                    self.visitor.nesting(Problem::note(place, text));
                }
            }
            let is_last = words.last().is_some_and(|word| word == "}");
            if is_last {
                words.pop();
            }
            if !words.is_empty() {
                self.visitor.entry(keyword, Statement { place, words: &words });
            }
            if is_last {
                return;
            }
        }
    }

    fn brace_is_missing(&mut self, place: FilePosition, head: Option<Statement<'_>>) {
        let Some(head) = head else { return };
        let text = format!("{} needs a {{ before this line", head.words.join(" "));
        self.visitor.nesting(Problem::new(place, text));
    }

    /// Outside of all blocks it changes nothing.
    fn brace_opens_nothing(
        &mut self,
        place: FilePosition,
        head: Option<Statement<'_>>,
        word: Option<String>,
    ) {
        let Some(head) = head else { return };
        let head = head.words.join(" ");
        let text = match word {
            Some(word) => format!("keepalived does not know {word:?}: its }} ends {head}"),
            None => format!("a {{ that belongs to nothing: its }} ends {head}"),
        };
        self.visitor.nesting(Problem::new(place, text));
    }
}

/// Says once if braces do not match: which block is not closed, or which `}` closes none.
pub(super) fn check_braces(lines: &[Line], problems: &mut Vec<Problem>) {
    let mut open: Vec<&Line> = Vec::new();
    let mut before = None;
    for line in lines {
        match line.text.as_str() {
            "{" => open.push(before.unwrap_or(line)),
            "}" if open.pop().is_none() => {
                problems.push(Problem::new(line.place, "} without a { before it"));
                return;
            }
            _ => {}
        }
        before = Some(line);
    }
    if let Some(line) = open.first() {
        let text = format!("{} is not closed: the file ends inside it", line.text);
        problems.push(Problem::new(line.place, text));
    }
}
