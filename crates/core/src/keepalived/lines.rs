//! Files into lines, as keepalived's own reader hands them on: without comments, with definitions
//! replaced, conditional lines decided, includes followed, and every brace on a line of its own.
//!
//! keepalived reads its files twice: its first process copies all lines into one file, the others
//! read that copy. Comments are therefore removed twice, and an `include` that is not written at the
//! beginning of a line is followed by both, which reads its files twice.

use super::definitions::{Definitions, LINE_BYTES, Replaced};
use super::problem::{FilePosition, Problem};
use super::repeat::{Iteration, Repeat};
use super::text::{BLANKS, split_at_brace, uncomment};

/// A file that was opened.
#[derive(Debug, Clone)]
pub struct Source {
    /// Its number in every [`FilePosition`].
    pub file: usize,
    /// The directory it is in, without symbolic links.
    pub directory: String,
    /// Its text.
    pub text: String,
}

impl Source {
    /// A file without a directory, which includes no others.
    pub fn alone(text: String) -> Self {
        Self { file: 0, directory: String::new(), text }
    }
}

/// An `include` line.
#[derive(Debug, Clone, Copy)]
pub struct Include<'a> {
    /// The names of the files, which may have wildcards and braces.
    pub pattern: &'a str,
    /// The letter behind `include`, which says what is an error.
    pub letter: Option<char>,
    /// Where it is written.
    pub place: FilePosition,
    /// The numbers of the files that led here; the last is the one that it is written in.
    pub above: &'a [usize],
}

/// Opens files for the reader.
pub trait Files {
    /// The files that `include` names, in the order in which they are read.
    fn open(&mut self, include: Include<'_>, problems: &mut Vec<Problem>) -> Vec<Source>;
}

/// No files besides the first one.
impl Files for () {
    fn open(&mut self, _include: Include<'_>, _problems: &mut Vec<Problem>) -> Vec<Source> {
        Vec::new()
    }
}

/// A line for the parser; never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) place: FilePosition,
    pub(super) text: String,
}

/// More than any real configuration has: a `~SEQ` may count for ever, and a definition may use itself. Every line counts
/// that is taken from a file, a definition or a repetition, whether anything is left of it or not.
const MAX_LINES: usize = 200_000;
const MAX_BYTES: usize = 16 << 20;

/// Reads `first` and what it includes.
pub(super) fn read(
    first: Source,
    files: &mut dyn Files,
    config_id: &str,
    problems: &mut Vec<Problem>,
) -> Vec<Line> {
    let mut reader = Reader {
        files,
        problems,
        open: vec![Open { waiting: Vec::new(), current: Current::of(first) }],
        place: FilePosition { file: 0, line: 0 },
        definitions: Definitions::new(config_id),
        config_id,
        residue: None,
        repeats: Vec::new(),
        further: Vec::new(),
        repeats_outside: 0,
        taken_lines: 0,
        taken_bytes: 0,
    };
    let mut lines = Vec::new();
    while let Some(line) = reader.next() {
        lines.push(line);
    }
    if reader.is_too_long() {
        let text = format!(
            "the configuration has more than {MAX_LINES} lines or {} MiB with its repetitions and \
             definitions: the rest is not read",
            MAX_BYTES >> 20
        );
        reader.problems.push(Problem::new(reader.place, text));
    }
    lines
}

/// What one `include` opened.
struct Open {
    /// The files that are still to be read; the next is the last.
    waiting: Vec<Source>,
    current: Current,
}

struct Current {
    source: Source,
    /// How much of the text was read, in bytes.
    at: usize,
    line: u32,
}

/// The rest of a definition of several lines that is being read.
struct Further {
    text: String,
    /// How many repeats there were around the line that used the definition before this one.
    repeats_outside: usize,
}

/// Where a line comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    File,
    Elsewhere,
}

struct Reader<'a> {
    files: &'a mut dyn Files,
    problems: &'a mut Vec<Problem>,
    open: Vec<Open>,
    place: FilePosition,
    definitions: Definitions,
    config_id: &'a str,
    /// What follows a brace on the same line.
    residue: Option<String>,
    /// Innermost last.
    repeats: Vec<Repeat>,
    /// Innermost last.
    further: Vec<Further>,
    /// Repeats that continue only after the definition of several lines that is being read.
    repeats_outside: usize,
    /// Compared with [`MAX_LINES`].
    taken_lines: usize,
    /// Compared with [`MAX_BYTES`].
    taken_bytes: usize,
}

impl Reader<'_> {
    fn is_too_long(&self) -> bool {
        self.taken_lines > MAX_LINES || self.taken_bytes > MAX_BYTES
    }

    /// Counts a line; `None` when there were too many.
    fn count(&mut self, line: String) -> Option<String> {
        self.taken_lines += 1;
        self.taken_bytes = self.taken_bytes.saturating_add(line.len());
        (!self.is_too_long()).then_some(line)
    }

    fn next(&mut self) -> Option<Line> {
        // The definition of several lines that is being made.
        let mut defining: Option<String> = None;
        loop {
            let (raw, origin) = self.raw(&mut defining)?;
            if let Some(name) = defining.take() {
                if self.definitions.extend(&name, &raw) {
                    defining = Some(name);
                }
                continue;
            }
            let is_plain = origin == Origin::File && include_of(&raw).is_some();
            let Some(text) = self.resolve(raw, &mut defining) else { continue };
            if let Some((letter, pattern)) = include_of(&text) {
                self.include(letter, pattern, if is_plain { 1 } else { 2 });
                continue;
            }
            let (first, rest) = split_at_brace(&text);
            self.residue = rest.map(str::to_owned);
            if !first.is_empty() {
                // With its definitions it may be much longer than it was.
                self.taken_bytes = self.taken_bytes.saturating_add(first.len());
                return Some(Line { place: self.place, text: first.to_owned() });
            }
        }
    }

    /// The next line as it is written, from wherever one is left. An empty line ends the definition
    /// that is being made.
    fn raw(&mut self, defining: &mut Option<String>) -> Option<(String, Origin)> {
        if let Some(residue) = self.residue.take() {
            return Some((self.count(residue)?, Origin::Elsewhere));
        }
        match self.raw_of_definitions() {
            Some(text) => Some((self.count(text)?, Origin::Elsewhere)),
            None => self.raw_of_files(defining),
        }
    }

    /// The next line of a repetition or of a definition of several lines.
    fn raw_of_definitions(&mut self) -> Option<String> {
        if self.repeats.len() > self.repeats_outside
            && let Some(repeat) = self.repeats.last_mut()
        {
            let Iteration { values, text, is_last } = repeat.next();
            if is_last {
                self.repeats.pop();
            }
            for (name, value) in values {
                self.definitions.set(&name, value);
            }
            return Some(text);
        }
        let further = self.further.last_mut()?;
        if let Some((line, rest)) = further.text.split_once('\n') {
            let (line, rest) = (line.to_owned(), rest.to_owned());
            further.text = rest;
            return Some(line);
        }
        let Further { text, repeats_outside } = self.further.pop()?;
        self.repeats_outside = repeats_outside;
        Some(text)
    }

    fn raw_of_files(&mut self, defining: &mut Option<String>) -> Option<(String, Origin)> {
        loop {
            let line = self.line()?;
            if !line.is_empty() {
                return Some((line, Origin::File));
            }
            if let Some(name) = defining.take() {
                self.definitions.end(&name);
            }
        }
    }

    /// The next line of the files, without its comment.
    fn line(&mut self) -> Option<String> {
        loop {
            let open = self.open.last_mut()?;
            let Some(line) = open.current.line() else {
                match open.waiting.pop() {
                    Some(source) => open.current = Current::of(source),
                    None => drop(self.open.pop()),
                }
                continue;
            };
            self.place = FilePosition { file: open.current.source.file, line: open.current.line };
            let line = self.count(line)?;
            let first = uncomment(&line);
            if first.has_open_quote {
                self.problems.push(Problem::note(self.place, "a quote is not closed on its line"));
            }
            // The copy marks the beginning and the end of a file with these two.
            if first.text.starts_with(['#', '!']) {
                return Some(String::new());
            }
            return Some(uncomment(&first.text).text);
        }
    }

    /// Decides a conditional line and replaces definitions; `None` if nothing is left to be parsed.
    fn resolve(&mut self, mut text: String, defining: &mut Option<String>) -> Option<String> {
        // Text that is replaced again and again grows until it is too long, but for a definition that
        // refers to itself.
        let mut bytes = text.len();
        for _ in 0..LINE_BYTES {
            if text.starts_with('@') {
                text = self.condition(&text, &mut bytes)?;
            }
            if let Some((name, has_lines)) = self.definitions.define(&text) {
                *defining = has_lines.then_some(name);
                return None;
            }
            if text.starts_with("~SEQ") || text.starts_with("~LST") {
                self.repeat(&text);
                return None;
            }
            if text.starts_with('~') || !self.replace(&mut text) {
                break;
            }
            text = uncomment(&text).text;
            if !text.starts_with('@') && !text.contains('$') {
                break;
            }
        }
        (!text.is_empty()).then_some(text)
    }

    /// What follows `@id` or `@^id`, if it counts here. keepalived moves it to the beginning of the line,
    /// and moves as many `bytes` as the line had before its definitions were replaced: of a line that
    /// became longer, the rest stays where it was.
    fn condition(&self, text: &str, bytes: &mut usize) -> Option<String> {
        let (is_reversed, rest) = match text.strip_prefix("@^") {
            Some(rest) => (true, rest),
            None => (false, text.get(1..)?),
        };
        let (id, rest) = rest.split_at(rest.find(BLANKS)?);
        if (id == self.config_id) == is_reversed {
            return None;
        }
        let rest = rest.trim_start_matches(BLANKS);
        *bytes = bytes.saturating_sub(text.len() - rest.len());
        let moved = *bytes + 1;
        match (rest.get(..moved), text.get(moved..)) {
            (Some(moved), Some(stayed)) => Some(format!("{moved}{stayed}")),
            _ => Some(rest.to_owned()),
        }
    }

    fn repeat(&mut self, text: &str) {
        // 64 bytes of keepalived's hold the numbers of a sequence.
        let expand = |numbers: &str| {
            let mut numbers = numbers.to_owned();
            let mut has_lines = false;
            self.definitions.replace(&mut numbers, 63, "", |_| has_lines = true);
            (!has_lines).then_some(numbers)
        };
        if let Some(repeat) = Repeat::parse(text, expand) {
            self.repeats.push(repeat);
        } else {
            let text = format!("{text:?} is not a valid {}", &text[..4]);
            self.problems.push(Problem::new(self.place, text));
        }
    }

    /// Whether anything was replaced in `text`.
    fn replace(&mut self, text: &mut String) -> bool {
        let directory =
            self.open.last().map_or(String::new(), |open| open.current.source.directory.clone());
        let (further, outside) = (&mut self.further, &mut self.repeats_outside);
        let repeats = self.repeats.len();
        let taken_bytes = &mut self.taken_bytes;
        let lines = |more: String| {
            *taken_bytes = taken_bytes.saturating_add(more.len());
            further.push(Further { text: more, repeats_outside: *outside });
            *outside = repeats;
        };
        let replaced = self.definitions.replace(text, LINE_BYTES, &directory, lines);
        let problem = match replaced {
            Replaced::Something => return true,
            Replaced::Nothing => return false,
            Replaced::TooLong => "with its definitions the line is too long for keepalived",
            Replaced::Endless => "a definition in this line refers to itself",
        };
        self.problems.push(Problem::new(self.place, problem));
        false
    }

    fn include(&mut self, letter: Option<char>, pattern: &str, times: usize) {
        let above: Vec<usize> = self.open.iter().map(|open| open.current.source.file).collect();
        let include = Include { pattern, letter, place: self.place, above: &above };
        let opened = self.files.open(include, self.problems);
        let bytes: usize = opened.iter().map(|source| source.text.len()).sum();
        self.taken_bytes = self.taken_bytes.saturating_add(bytes.saturating_mul(times));
        if self.is_too_long() {
            return;
        }
        let mut sources: Vec<Source> = Vec::with_capacity(opened.len() * times);
        for _ in 0..times {
            sources.extend(opened.iter().rev().cloned());
        }
        if let Some(source) = sources.pop() {
            self.open.push(Open { waiting: sources, current: Current::of(source) });
        }
    }
}

impl Current {
    fn of(source: Source) -> Self {
        Self { source, at: 0, line: 0 }
    }

    /// The next line, or as much of it as keepalived's buffer holds.
    fn line(&mut self) -> Option<String> {
        let rest = &self.source.text[self.at..];
        if rest.is_empty() {
            return None;
        }
        let end = rest.find('\n').map_or(rest.len(), |end| end + 1);
        let end = rest.floor_char_boundary(end.min(LINE_BYTES - 1));
        let line = &rest[..end];
        if !self.source.text[..self.at].ends_with(|c| c != '\n') {
            self.line += 1;
        }
        self.at += end;
        Some(line.trim_end_matches(['\n', '\r']).to_owned())
    }
}

/// The letter and the pattern of an `include` line.
fn include_of(text: &str) -> Option<(Option<char>, &str)> {
    let rest = text.strip_prefix("include")?;
    let letter = rest.chars().next().filter(|letter| "rmwba".contains(*letter));
    let rest = &rest[letter.map_or(0, char::len_utf8)..];
    let pattern = rest.strip_prefix(|c: char| c.is_ascii_whitespace())?;
    Some((letter, pattern.trim_start_matches(BLANKS)))
}
