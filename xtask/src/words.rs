// SPDX-License-Identifier: Apache-2.0
//! Reports words that CONTRIBUTING.md asks to avoid, in comments, messages and documents.

mod list;

use self::list::{ALLOWED, Allowance, COMMENTS_ONLY, EXCLUDED, METAPHORS};
use crate::TaskResult;
use crate::source::lexer::{PieceKind, line_number, pieces};
use crate::source::{SourceFile, tracked_files};

/// Maximum number of warnings that `cargo xtask check` prints.
pub const MAX_LINES: usize = 20;

/// The kind of a line of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TextKind {
    Comment,
    Message,
    Document,
}

/// A line of a comment, a message or a document.
struct TextLine {
    kind: TextKind,
    /// Counted from 1.
    number: usize,
    text: String,
}

/// An excluded word and its place.
#[derive(Debug, PartialEq, Eq)]
struct WordWarning {
    path: String,
    line: usize,
    word: &'static str,
}

/// Prints up to `max_lines` warnings and their number. It never fails because of a word.
pub fn report(max_lines: usize) -> TaskResult {
    let warnings: Vec<WordWarning> = tracked_files()?.iter().flat_map(file_warnings).collect();
    for WordWarning { path, line, word } in warnings.iter().take(max_lines) {
        println!("warning: {path}:{line}: excluded word \"{word}\"");
    }
    let left = warnings.len().saturating_sub(max_lines);
    if left > 0 {
        println!("… and {left} more: `cargo xtask check --words` prints all");
    }
    println!("{} excluded words; CONTRIBUTING.md explains what to write instead", warnings.len());
    Ok(())
}

/// The warnings of one file, in the order of its lines.
fn file_warnings(file: &SourceFile) -> Vec<WordWarning> {
    let mut warnings = Vec::new();
    for TextLine { kind, number: line, text } in lines(file) {
        for word in excluded_words(kind, &text) {
            if !is_allowed(&file.path, word) {
                warnings.push(WordWarning { path: file.path.clone(), line, word });
            }
        }
    }
    warnings
}

/// The lines that are checked.
fn lines(file: &SourceFile) -> Vec<TextLine> {
    let line = |kind: TextKind, number: usize, text: &str| TextLine {
        kind,
        number,
        text: text.to_owned(),
    };
    if file.is_document() {
        let numbered = file.text.lines().zip(1..);
        return numbered.map(|(text, at)| line(TextKind::Document, at, text)).collect();
    }
    if ["toml", "py", "service"].iter().any(|extension| file.has_extension(extension)) {
        let numbered = file.text.lines().zip(1..);
        let comment = |(text, at): (&str, usize)| {
            let comment = text.split_once("# ").or_else(|| text.split_once("; "))?.1;
            Some(line(TextKind::Comment, at, comment))
        };
        return numbered.filter_map(comment).collect();
    }
    if !file.is_rust() && !file.has_extension("c") {
        return Vec::new();
    }
    let mut lines = Vec::new();
    for piece in pieces(&file.text) {
        // A literal without a space is a name or a key, and not a message.
        let kind = match piece.kind {
            PieceKind::Comment => TextKind::Comment,
            PieceKind::Literal if piece.text.contains(' ') => TextKind::Message,
            PieceKind::Literal => continue,
        };
        let first = line_number(&file.text, piece.start);
        let numbered = piece.text.lines().zip(first..);
        lines.extend(numbered.map(|(text, at)| line(kind, at, text)));
    }
    lines
}

/// The excluded words of a line, each once.
fn excluded_words(kind: TextKind, line: &str) -> Vec<&'static str> {
    let line = line.to_lowercase();
    let comments_only = if kind == TextKind::Comment { COMMENTS_ONLY } else { &[] };
    let metaphors = if kind == TextKind::Message { &[] } else { METAPHORS };
    let words = EXCLUDED.iter().chain(comments_only).chain(metaphors);
    words.copied().filter(|word| has_word(&line, word)).collect()
}

/// Whether `line` has `word` as a whole word; the word may have several parts.
fn has_word(line: &str, word: &str) -> bool {
    let is_part = |character: char| character.is_alphanumeric() || character == '_';
    line.match_indices(word).any(|(at, _)| {
        !line[..at].ends_with(is_part) && !line[at + word.len()..].starts_with(is_part)
    })
}

fn is_allowed(path: &str, word: &str) -> bool {
    let allows = |allowance: &Allowance| match allowance {
        Allowance::All => true,
        Allowance::Word(allowed) => *allowed == word,
    };
    ALLOWED.iter().any(|(prefix, allowance)| path.starts_with(prefix) && allows(allowance))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warnings(path: &str, text: &str) -> Vec<(usize, &'static str)> {
        let file = SourceFile { path: path.to_owned(), text: text.to_owned() };
        file_warnings(&file).into_iter().map(|warning| (warning.line, warning.word)).collect()
    }

    #[test]
    fn persons_are_found_in_comments_messages_and_documents() {
        let source = "//! Nobody reads it.\nfn he() {\n    panic!(\"somebody is told\");\n}\n";
        assert_eq!(
            warnings("crates/a/src/lib.rs", source),
            [(1, "nobody"), (3, "somebody"), (3, "is told")]
        );
        assert_eq!(warnings("docs/a.md", "First.\n\nWhoever it is.\n"), [(3, "whoever")]);
        assert_eq!(warnings("Cargo.toml", "# For him.\nname = \"he\"\n"), [(1, "him")]);
    }

    #[test]
    fn metaphors_are_found_in_comments_and_documents_only() {
        let source = "/* A\n   clerk. */\nlet spine = \"the spine\";\n";
        assert_eq!(warnings("crates/a/src/lib.rs", source), [(2, "clerk")]);
        assert_eq!(warnings("docs/a.md", "The `Spine` runs."), [(1, "spine")]);
    }

    #[test]
    fn only_whole_words_count() {
        assert_eq!(warnings("docs/a.md", "the theme is this; warehouse; a_desk_b"), []);
        assert_eq!(warnings("crates/a/src/lib.rs", "let user = \"nobody\";"), []);
    }

    #[test]
    fn the_allow_list_is_by_file_and_word() {
        assert_eq!(warnings("CONTRIBUTING.md", "nobody, spine"), []);
        assert_eq!(warnings("CHANGELOG.md", "nobody, spine"), []);
    }
}
