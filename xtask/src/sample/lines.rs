// SPDX-License-Identifier: Apache-2.0
//! The lines of product code that a sample may have.

use std::collections::HashMap;

use super::SampleEntry;
use crate::source::SourceFile;
use crate::source::lexer::code;

/// Minimum length of a line without its indentation, in characters.
const MIN_CHARS: usize = 40;

/// All lines of product code that say enough to be recognised. A line that occurs more than once is left out: it
/// belongs to no single module.
pub(super) fn candidates(files: &[SourceFile]) -> Vec<SampleEntry> {
    let mut entries = Vec::new();
    for file in files.iter().filter(|file| file.is_product()) {
        let code = code(&file.text);
        for ((line, code), number) in file.text.lines().zip(code.lines()).zip(1..) {
            if is_candidate(line.trim(), code) {
                let text = line.trim().to_owned();
                entries.push(SampleEntry { path: file.path.clone(), line: number, text });
            }
        }
    }
    let mut counts: HashMap<String, usize> = HashMap::new();
    for entry in &entries {
        *counts.entry(entry.text.clone()).or_default() += 1;
    }
    entries.retain(|entry| counts.get(&entry.text) == Some(&1));
    entries
}

/// `code` is the line without comments, literals and test modules.
fn is_candidate(line: &str, code: &str) -> bool {
    let code = code.trim();
    let is_use = ["use ", "pub use ", "pub(crate) use ", "pub(super) use "]
        .iter()
        .any(|start| code.starts_with(start));
    line.chars().count() >= MIN_CHARS && code.chars().any(char::is_alphanumeric) && !is_use
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(path: &str, text: &str) -> Vec<String> {
        let file = SourceFile { path: path.to_owned(), text: text.to_owned() };
        candidates(&[file]).into_iter().map(|entry| entry.text).collect()
    }

    #[test]
    fn only_lines_with_enough_code_are_candidates() {
        let text = "//! A comment that is long enough to be a candidate.\nuse std::collections::{BTreeMap, BTreeSet, HashMap};\n\n\
                    fn a() {}\n    let address: IpNet = parse_with_prefix(text)?; // yes\n    ))))))))))))))))))))))))))))))))))))))))))))))\n";
        assert_eq!(
            texts("crates/a/src/lib.rs", text),
            ["let address: IpNet = parse_with_prefix(text)?; // yes"]
        );
    }

    #[test]
    fn a_line_that_occurs_twice_is_left_out() {
        let text = "let address: IpNet = parse_with_prefix(text)?;\nlet address: IpNet = parse_with_prefix(text)?;\n";
        assert_eq!(texts("crates/a/src/lib.rs", text), [""; 0]);
    }

    #[test]
    fn test_code_is_left_out() {
        let text =
            "#[cfg(test)]\nmod tests {\n    let address: IpNet = parse_with_prefix(text)?;\n}\n";
        assert_eq!(texts("crates/a/src/lib.rs", text), [""; 0]);
        let text = "let address: IpNet = parse_with_prefix(text)?;\n";
        for path in ["crates/a/tests/b.rs", "crates/testkit/src/lib.rs", "crates/a/src/b/tests.rs"]
        {
            assert_eq!(texts(path, text), [""; 0], "{path}");
        }
    }
}
