// SPDX-License-Identifier: Apache-2.0
//! The comments, log lines and errors that a sample may have.

use super::{SampleEntry, choose};
use crate::source::SourceFile;
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

/// The comments of a file. Consecutive lines with the same mark (`//`, `///` or `//!`) are one comment.
fn comments(file: &SourceFile) -> Vec<SampleEntry> {
    let mut entries: Vec<SampleEntry> = Vec::new();
    let mut last_mark = None;
    for (line, number) in file.text.lines().map(str::trim).zip(1..) {
        let mark = ["//!", "///", "//"].into_iter().find(|mark| line.starts_with(mark));
        let text = line[mark.map_or(0, str::len)..].trim();
        match entries.last_mut() {
            Some(entry) if mark.is_some() && mark == last_mark => {
                entry.text.extend(["\n", text]);
            }
            _ if mark.is_some() => entries.push(SampleEntry::new(file, number, text.to_owned())),
            _ => {}
        }
        last_mark = mark;
    }
    entries
}

/// The calls that log, each on one line.
fn log_lines(file: &SourceFile) -> Vec<SampleEntry> {
    let mut entries = calls(file, &LOG_CALLS);
    entries.retain(|entry| !entry.text.starts_with(".line(") || entry.text.contains("Level::"));
    entries
}

/// The attributes with the text of an error.
fn errors(file: &SourceFile) -> Vec<SampleEntry> {
    calls(file, &["#[error("])
}

/// The source of all calls that begin with one of `names` and have a text, outside of tests, with single spaces.
fn calls(file: &SourceFile, names: &[&str]) -> Vec<SampleEntry> {
    let code = file.without_tests();
    let mut entries = Vec::new();
    for name in names {
        for (at, _) in code.match_indices(name) {
            let is_in_word = name.ends_with("!(") && code[..at].ends_with(char::is_alphanumeric);
            let Some(end) = end_of_call(&code[at..]).filter(|_| !is_in_word) else { continue };
            let words: Vec<&str> = code[at..at + end].split_whitespace().collect();
            let number = code[..at].matches('\n').count() + 1;
            entries.push(SampleEntry::new(file, number, words.join(" ")));
        }
    }
    entries.retain(|entry| entry.text.contains('"'));
    entries
}

/// The length of a call up to its last bracket. Brackets in string literals do not count.
fn end_of_call(code: &str) -> Option<usize> {
    let mut depth = 0_i32;
    let mut is_text = false;
    let mut previous = ' ';
    for (at, character) in code.char_indices() {
        match character {
            '"' if previous != '\\' => is_text = !is_text,
            '(' | '[' if !is_text => depth += 1,
            ')' | ']' if !is_text => depth -= 1,
            _ => {}
        }
        if depth == 0 && matches!(character, ')' | ']') {
            return Some(at + 1);
        }
        previous = character;
    }
    None
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
        let text = "//! One\n//! two.\n\n/// Three.\nfn a() {}\n// four\n";
        let found = comments(&file(text));
        assert_eq!(texts(&found), ["One\ntwo.", "Three.", "four"]);
        assert_eq!(found.iter().map(|entry| entry.line).collect::<Vec<_>>(), [1, 4, 6]);
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
