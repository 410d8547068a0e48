// SPDX-License-Identifier: Apache-2.0
//! Turns files into logical lines: without comments, with definitions replaced, conditional lines decided,
//! includes read, and every brace on a line of its own.
//!
//! keepalived reads its files twice: the first process copies all lines into one file, and the other
//! processes read that copy. Comments are therefore removed twice. An `include` that does not start a line
//! of a file (it comes from a definition or a condition, or follows a brace) is followed both times, so its
//! files are read twice.

use std::sync::Arc;

use super::definitions::{Definitions, LINE_BUFFER_BYTES, RANDOM_MARK, Replacement};
use super::keywords::V2_4_0;
use super::problem::{FilePosition, Message, Problem, Problems};
use super::repeat::{Iteration, Repeat};
use super::text::{BLANKS, hide_secret, split_at_brace, uncomment};
use super::vrrp::Program;

/// An opened file.
#[derive(Debug, Clone)]
pub struct Source {
    /// The number of the file in every [`FilePosition`].
    pub file: usize,
    /// The directory of the file, with symbolic links resolved.
    pub directory: Arc<str>,
    /// The content of the file, from `line` on.
    pub text: String,
    /// The number of the first line; 1 for a whole file.
    pub line: u32,
}

impl Source {
    /// A file without a directory, for text that includes no other files.
    pub fn alone(text: String) -> Self {
        Self { file: 0, directory: Arc::default(), text, line: 1 }
    }
}

/// The text of a configuration.
#[derive(Debug)]
pub enum ConfigurationText {
    /// The first file.
    Files(Source),
    /// The parts of keepalived's copy of all files, in order. keepalived reads the copy once.
    Copy(Vec<Source>),
}

impl From<Source> for ConfigurationText {
    fn from(first: Source) -> Self {
        Self::Files(first)
    }
}

impl From<Vec<Source>> for ConfigurationText {
    fn from(parts: Vec<Source>) -> Self {
        Self::Copy(parts)
    }
}

/// An `include` line.
#[derive(Debug, Clone, Copy)]
pub struct Include<'a> {
    /// The file names; wildcards and braces are possible.
    pub pattern: &'a str,
    /// The letter after `include` (one of `rmwba`), which selects what keepalived treats as an error.
    pub letter: Option<char>,
    /// The position of the line.
    pub position: FilePosition,
    /// The numbers of the nested files from the first one to the one with this line.
    pub parents: &'a [usize],
}

/// Opens files for the reader.
pub trait Files {
    /// Opens the files of an `include` line, in the order in which keepalived reads them.
    fn open(&mut self, include: Include<'_>, problems: &mut Problems) -> Vec<Source>;

    /// The value of a variable in the environment of keepalived; empty if it is not set. `None` if the environment is not
    /// known.
    fn variable(&mut self, name: &str) -> Option<String>;
}

/// Opens no files: every `include` is ignored, and the environment is not known.
impl Files for () {
    fn open(&mut self, _include: Include<'_>, _problems: &mut Problems) -> Vec<Source> {
        Vec::new()
    }

    fn variable(&mut self, _name: &str) -> Option<String> {
        None
    }
}

/// A line for the parser; never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) position: FilePosition,
    pub(super) text: String,
}

/// LIMIT: more lines than any real configuration has. A `~SEQ` may have any length, and a definition may refer
/// to itself. Every line from a file, a definition or a repetition counts, also if nothing of it remains.
const MAX_LINES: usize = 200_000;
/// LIMIT: the same for the text of all lines, in bytes.
const MAX_BYTES: usize = 16 << 20;

/// Reads a text and the files that it includes; returns the lines, and whether variables of the environment are in them.
pub(super) fn read(
    text: ConfigurationText,
    files: &mut dyn Files,
    Program { config_id, version }: Program<'_>,
    problems: &mut Problems,
) -> (Vec<Line>, bool) {
    let is_copy = matches!(text, ConfigurationText::Copy(_));
    let mut waiting = match text {
        ConfigurationText::Files(first) => vec![first],
        ConfigurationText::Copy(parts) => parts.into_iter().rev().collect(),
    };
    let first = waiting.pop().map(OpenFile::new);
    let mut reader = Reader {
        files,
        problems,
        includes: first.map(|current| OpenInclude { waiting, current }).into_iter().collect(),
        is_copy,
        position: FilePosition { file: 0, line: 0 },
        definitions: Definitions::new(config_id),
        config_id,
        has_variables: version >= V2_4_0,
        uses_environment: false,
        residue: None,
        repeats: Vec::new(),
        multilines: Vec::new(),
        paused_repeats: 0,
        line_count: 0,
        byte_count: 0,
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
        reader.problems.push_end(Problem::new(reader.position, Message::plain(text)));
    }
    (lines, reader.uses_environment)
}

/// The files of one `include`.
struct OpenInclude {
    /// The files that follow the current one, in reverse order.
    waiting: Vec<Source>,
    current: OpenFile,
}

struct OpenFile {
    source: Source,
    /// Offset of the next line, in bytes.
    offset: usize,
    /// Number of the current line; 1 is the first.
    line: u32,
}

/// The remaining lines of a multi-line definition.
struct Multiline {
    text: String,
    /// The value of [`Reader::paused_repeats`] before this definition.
    paused_repeats: usize,
}

/// Where a line comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LineOrigin {
    File,
    /// A definition, a repetition, or the rest of a line after a brace.
    Generated,
}

struct Reader<'a> {
    files: &'a mut dyn Files,
    problems: &'a mut Problems,
    /// The nested includes; the innermost is the last.
    includes: Vec<OpenInclude>,
    /// Whether the text is keepalived's copy, which has the files of every `include` already.
    is_copy: bool,
    /// The position of the current line.
    position: FilePosition,
    definitions: Definitions,
    config_id: &'a str,
    /// Whether keepalived replaces `${_ENV NAME}`.
    has_variables: bool,
    /// Whether one was replaced.
    uses_environment: bool,
    /// The text after a brace on the same line.
    residue: Option<String>,
    /// The nested repetitions; the innermost is the last.
    repeats: Vec<Repeat>,
    /// The nested multi-line definitions; the innermost is the last.
    multilines: Vec<Multiline>,
    /// Number of outer repetitions that continue only after the innermost multi-line definition.
    paused_repeats: usize,
    /// Number of lines so far; see [`MAX_LINES`].
    line_count: usize,
    /// Length of all lines so far; see [`MAX_BYTES`].
    byte_count: usize,
}

impl Reader<'_> {
    fn is_too_long(&self) -> bool {
        self.line_count > MAX_LINES || self.byte_count > MAX_BYTES
    }

    /// Counts a line; `None` if a limit is exceeded.
    fn count(&mut self, line: String) -> Option<String> {
        self.line_count += 1;
        self.byte_count = self.byte_count.saturating_add(line.len());
        (!self.is_too_long()).then_some(line)
    }

    fn next(&mut self) -> Option<Line> {
        // The name of the multi-line definition that is being read.
        let mut defining: Option<String> = None;
        loop {
            let (raw, origin) = self.raw_line(&mut defining)?;
            if let Some(name) = defining.take() {
                if self.definitions.extend(&name, &raw) {
                    defining = Some(name);
                }
                continue;
            }
            let is_literal = origin == LineOrigin::File && include_of(&raw).is_some();
            let is_once = is_literal || self.is_copy;
            let Some(mut text) = self.resolve(raw, &mut defining) else { continue };
            if let Some((letter, pattern)) = include_of(&text) {
                self.include(letter, pattern, if is_once { 1 } else { 2 });
                continue;
            }
            // Nothing below this point sees a secret.
            hide_secret(&mut text);
            let (first, rest) = split_at_brace(&text);
            self.residue = rest.map(str::to_owned);
            if !first.is_empty() {
                // The definitions may have made the line much longer.
                self.byte_count = self.byte_count.saturating_add(first.len());
                return Some(Line { position: self.position, text: first.to_owned() });
            }
        }
    }

    /// The next line before definitions are replaced: the rest of the current line, a generated line, or a
    /// line of a file. An empty line of a file ends the definition `defining`.
    fn raw_line(&mut self, defining: &mut Option<String>) -> Option<(String, LineOrigin)> {
        if let Some(residue) = self.residue.take() {
            return Some((self.count(residue)?, LineOrigin::Generated));
        }
        match self.generated_line() {
            Some(text) => Some((self.count(text)?, LineOrigin::Generated)),
            None => self.file_line(defining),
        }
    }

    /// The next line of a repetition or of a multi-line definition.
    fn generated_line(&mut self) -> Option<String> {
        if self.repeats.len() > self.paused_repeats
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
        let multiline = self.multilines.last_mut()?;
        if let Some((line, rest)) = multiline.text.split_once('\n') {
            let line = line.to_owned();
            multiline.text = rest.to_owned();
            return Some(line);
        }
        let Multiline { text, paused_repeats } = self.multilines.pop()?;
        self.paused_repeats = paused_repeats;
        Some(text)
    }

    fn file_line(&mut self, defining: &mut Option<String>) -> Option<(String, LineOrigin)> {
        loop {
            let line = self.uncommented_line()?;
            if !line.is_empty() {
                return Some((line, LineOrigin::File));
            }
            if let Some(name) = defining.take() {
                self.definitions.end(&name);
            }
        }
    }

    /// The next line of the files, without its comment.
    fn uncommented_line(&mut self) -> Option<String> {
        loop {
            let include = self.includes.last_mut()?;
            let Some(line) = include.current.next_line() else {
                match include.waiting.pop() {
                    Some(source) => include.current = OpenFile::new(source),
                    None => drop(self.includes.pop()),
                }
                continue;
            };
            let OpenFile { source, line: number, .. } = &include.current;
            self.position = FilePosition { file: source.file, line: *number };
            let line = self.count(line)?;
            let first = uncomment(&line);
            if first.has_open_quote {
                self.problems
                    .push(Problem::note(self.position, "a quote is not closed on its line"));
            }
            // In the copy, lines with these characters mark the start and the end of a file.
            if first.text.starts_with(['#', '!']) {
                return Some(String::new());
            }
            return Some(uncomment(&first.text).text);
        }
    }

    /// Decides a conditional line and replaces definitions; `None` if no text remains for the parser.
    fn resolve(&mut self, mut text: String, defining: &mut Option<String>) -> Option<String> {
        // LIMIT: repeated replacements make a line too long and end, except with a definition that refers to
        // itself without growing.
        let mut bytes = text.len();
        for _ in 0..LINE_BUFFER_BYTES {
            if text.starts_with('@') {
                text = self.condition(&text, &mut bytes)?;
            }
            if let Some((name, is_multiline)) = self.definitions.define(&text) {
                *defining = is_multiline.then_some(name);
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

    /// The text after `@id` or `@^id`; `None` if the condition is false. keepalived moves the text to the start
    /// of the line, but moves only as many `bytes` as the line had before its definitions were replaced. If
    /// the line became longer, the rest of it stays in place.
    fn condition(&self, text: &str, bytes: &mut usize) -> Option<String> {
        let (is_negated, rest) = match text.strip_prefix("@^") {
            Some(rest) => (true, rest),
            None => (false, text.get(1..)?),
        };
        let (id, rest) = rest.split_at(rest.find(BLANKS)?);
        if (id == self.config_id) == is_negated {
            return None;
        }
        let rest = rest.trim_start_matches(BLANKS);
        *bytes = bytes.saturating_sub(text.len() - rest.len());
        let moved = *bytes + 1;
        match (rest.get(..moved), text.get(moved..)) {
            (Some(moved), Some(kept)) => Some(format!("{moved}{kept}")),
            _ => Some(rest.to_owned()),
        }
    }

    fn repeat(&mut self, text: &str) {
        // keepalived's buffer for the numbers of a sequence has 64 bytes.
        let expand = |numbers: &str| {
            let mut numbers = numbers.to_owned();
            let mut is_multiline = false;
            self.definitions.replace(&mut numbers, 63, "", |_| is_multiline = true);
            (!is_multiline).then_some(numbers)
        };
        if let Some(repeat) = Repeat::parse(text, expand) {
            self.repeats.push(repeat);
        } else {
            // The rest of the line may be a password.
            let quoted = text.find(')').map_or(&text[..4], |end| &text[..=end]);
            let message = Message::quoting(
                "a sequence or list to repeat is not valid",
                format!("{quoted:?} is not a valid {}", &text[..4]),
            );
            self.problems.push(Problem::new(self.position, message));
        }
    }

    /// Replaces each `${_ENV NAME}` in `text`; returns whether there is one.
    fn replace_variables(&mut self, text: &mut String) -> bool {
        const START: &str = "${_ENV ";
        let (mut from, mut is_replaced) = (0, false);
        while !self.is_too_long()
            && let Some(at) = text[from..].find(START).map(|at| from + at)
            && let Some(end) = text[at..].find('}').map(|end| at + end)
        {
            let value = self.files.variable(text[at + START.len()..end].trim_matches(BLANKS));
            // A line has one line, and a limit.
            let is_usable = |value: &String| {
                value.len() + text.len() < LINE_BUFFER_BYTES && !value.contains(['\n', RANDOM_MARK])
            };
            let value = value.filter(is_usable).unwrap_or_else(|| RANDOM_MARK.to_string());
            text.replace_range(at..=end, &value);
            // LIMIT: a variable may contain itself.
            self.line_count += 1;
            (from, is_replaced) = (at + value.len(), true);
        }
        self.uses_environment |= is_replaced;
        is_replaced
    }

    /// Replaces the definitions in `text`; returns whether the text changed.
    fn replace(&mut self, text: &mut String) -> bool {
        if self.has_variables && self.replace_variables(text) {
            return true;
        }
        let directory = self
            .includes
            .last()
            .map_or_else(Arc::default, |open| Arc::clone(&open.current.source.directory));
        let (multilines, paused) = (&mut self.multilines, &mut self.paused_repeats);
        let repeats = self.repeats.len();
        let byte_count = &mut self.byte_count;
        let lines = |more: String| {
            *byte_count = byte_count.saturating_add(more.len());
            multilines.push(Multiline { text: more, paused_repeats: *paused });
            *paused = repeats;
        };
        let replaced = self.definitions.replace(text, LINE_BUFFER_BYTES, &directory, lines);
        let problem = match replaced {
            Replacement::Replaced => return true,
            Replacement::Unchanged => return false,
            Replacement::TooLong => "with its definitions, the line is too long for keepalived",
            Replacement::Recursive => "a definition in this line refers to itself",
        };
        self.problems.push(Problem::new(self.position, problem));
        false
    }

    fn include(&mut self, letter: Option<char>, pattern: &str, times: usize) {
        let parents: Vec<usize> =
            self.includes.iter().map(|open| open.current.source.file).collect();
        let include = Include { pattern, letter, position: self.position, parents: &parents };
        let opened = self.files.open(include, self.problems);
        let bytes: usize = opened.iter().map(|source| source.text.len()).sum();
        self.byte_count = self.byte_count.saturating_add(bytes.saturating_mul(times));
        if self.is_too_long() {
            return;
        }
        let mut sources: Vec<Source> = Vec::with_capacity(opened.len() * times);
        for _ in 0..times {
            sources.extend(opened.iter().rev().cloned());
        }
        if let Some(source) = sources.pop() {
            self.includes.push(OpenInclude { waiting: sources, current: OpenFile::new(source) });
        }
    }
}

impl OpenFile {
    fn new(source: Source) -> Self {
        Self { line: source.line - 1, source, offset: 0 }
    }

    /// The next line, or the part of it that fits into keepalived's buffer.
    fn next_line(&mut self) -> Option<String> {
        let rest = &self.source.text[self.offset..];
        if rest.is_empty() {
            return None;
        }
        let end = rest.find('\n').map_or(rest.len(), |end| end + 1);
        let end = rest.floor_char_boundary(end.min(LINE_BUFFER_BYTES - 1));
        let line = &rest[..end];
        if !self.source.text[..self.offset].ends_with(|c| c != '\n') {
            self.line += 1;
        }
        self.offset += end;
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
