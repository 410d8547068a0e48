// SPDX-License-Identifier: Apache-2.0
//! The comments, log lines and errors that a sample may have.

use super::{SampleEntry, choose};
use crate::source::SourceFile;
use crate::source::lexer::{PieceKind, code, group_length, line_number, pieces};
use vipwatch_testkit::Random;

/// What begins a log line: the macros of `tracing`, and the drop-in's own log.
const LOG_CALLS: [&str; 6] = ["error!(", "warn!(", "info!(", "debug!(", "trace!(", ".line("];

/// `count` texts in random order: half of them comments, a quarter log lines, a quarter errors.
pub(super) fn sample(files: &[SourceFile], count: usize, random: &mut Random) -> Vec<SampleEntry> {
    let rust = || files.iter().filter(|file| file.is_rust());
    let comments: Vec<_> = rust().flat_map(comments).collect();
    let product = || files.iter().filter(|file| file.is_product());
    let logs: Vec<_> = product().flat_map(log_lines).collect();
    let errors: Vec<_> = product().flat_map(errors).collect();
    let quarter = count / 4;
    let mut chosen = choose(comments, count - 2 * quarter, random);
    chosen.extend(choose(logs, quarter, random));
    chosen.extend(choose(errors, quarter, random));
    choose(chosen, count, random)
}

/// The comments of a file. Consecutive lines with the same mark (`//`, `///` or `//!`) and nothing before it are one
/// comment.
fn comments(file: &SourceFile) -> Vec<SampleEntry> {
    let mut entries: Vec<SampleEntry> = Vec::new();
    let mut last_mark = "";
    let mut next_line = 0;
    for piece in pieces(&file.text).iter().filter(|piece| piece.kind == PieceKind::Comment) {
        let line = line_number(&file.text, piece.start);
        let mark = ["//!", "///", "//"].into_iter().find(|mark| piece.text.starts_with(mark));
        let mark = mark.unwrap_or_default();
        let start_of_line = file.text[..piece.start].rsplit('\n').next().unwrap_or_default();
        let is_alone = start_of_line.trim().is_empty();
        let text = piece.text[mark.len()..].trim_end();
        match entries.last_mut() {
            Some(entry) if is_alone && mark == last_mark && line == next_line => {
                entry.text.push('\n');
                entry.text.push_str(text.strip_prefix(' ').unwrap_or(text));
            }
            _ => {
                let text = text.trim().to_owned();
                entries.push(SampleEntry { path: file.path.clone(), line, text });
            }
        }
        last_mark = if is_alone { mark } else { "" };
        next_line = line + piece.text.matches('\n').count() + 1;
    }
    entries
}

/// The calls that log, each on one line.
fn log_lines(file: &SourceFile) -> Vec<SampleEntry> {
    // Without a string literal, the call has no text that a reader could understand.
    let is_log = |text: &str| {
        text.contains('"') && (!text.starts_with(".line(") || text.contains("Level::"))
    };
    calls(file, &LOG_CALLS).into_iter().filter(|entry| is_log(&entry.text)).collect()
}

/// The attributes with the text of an error.
fn errors(file: &SourceFile) -> Vec<SampleEntry> {
    let has_text = |entry: &SampleEntry| entry.text.contains('"');
    let attribute =
        |entry: SampleEntry| SampleEntry { text: format!("#[{}]", entry.text), ..entry };
    calls(file, &["error("]).into_iter().filter(has_text).map(attribute).collect()
}

/// The source of all calls that begin with one of `names`, outside of tests, with single spaces.
fn calls(file: &SourceFile, names: &[&str]) -> Vec<SampleEntry> {
    let code = code(&file.text);
    let mut entries = Vec::new();
    for name in names {
        for (at, _) in code.match_indices(name) {
            // `#[error(` is an attribute; `.line(` follows an expression.
            let before = &code[..at];
            let is_call = match *name {
                "error(" => before.ends_with("#["),
                ".line(" => true,
                _ => !before.ends_with(|c: char| c.is_alphanumeric() || c == '_'),
            };
            let open = at + name.len() - 1;
            let Some(length) = group_length(&code[open..]).filter(|_| is_call) else { continue };
            let words: Vec<&str> = file.text[at..open + length].split_whitespace().collect();
            let line = line_number(&code, at);
            entries.push(SampleEntry { path: file.path.clone(), line, text: words.join(" ") });
        }
    }
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> SourceFile {
        SourceFile { path: "crates/a/src/lib.rs".to_owned(), text: text.to_owned() }
    }

    fn texts(entries: &[SampleEntry]) -> Vec<&str> {
        entries.iter().map(|entry| entry.text.as_str()).collect()
    }

    #[test]
    fn consecutive_comment_lines_are_one_comment() {
        let text = "//! One\n//! two.\n\n/// Three.\nfn a() {} // four\n// five\n";
        let found = comments(&file(text));
        assert_eq!(texts(&found), ["One\ntwo.", "Three.", "four", "five"]);
        assert_eq!(found.iter().map(|entry| entry.line).collect::<Vec<_>>(), [1, 4, 5, 6]);
    }

    #[test]
    fn log_lines_are_the_whole_call() {
        let text = "fn a() {\n    warn!(\n        instance = %id,\n        \"failed (again)\"\n    );\n    \
                    log.line(Level::Info, format_args!(\"b\"));\n    screen.line(c);\n}\n";
        assert_eq!(
            texts(&log_lines(&file(text))),
            [
                "warn!( instance = %id, \"failed (again)\" )",
                ".line(Level::Info, format_args!(\"b\"))"
            ]
        );
    }

    #[test]
    fn errors_are_attributes_with_a_text() {
        let text = "enum E {\n    #[error(\"cannot open {0}\")]\n    A(u8),\n    #[error(transparent)]\n    B,\n}\n";
        assert_eq!(texts(&errors(&file(text))), ["#[error(\"cannot open {0}\")]"]);
    }

    #[test]
    fn the_sample_has_all_kinds() {
        let text = "// One.\n\n// Two.\nenum E {\n    #[error(\"three\")]\n    A,\n}\nfn a() {\n    info!(\"four\");\n}\n";
        let found = sample(&[file(text)], 4, &mut Random::new(1));
        let mut found = texts(&found);
        found.sort_unstable();
        assert_eq!(found, ["#[error(\"three\")]", "One.", "Two.", "info!(\"four\")"]);
    }
}
