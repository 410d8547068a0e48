// SPDX-License-Identifier: Apache-2.0
//! The lines of product code that a sample may have.

use std::collections::HashMap;

use super::SampleEntry;
use crate::source::SourceFile;

/// Minimum length of a line without its indentation, in characters.
const MIN_CHARS: usize = 40;

/// All lines of product code that say enough to be recognised. A line that occurs more than once is left out: it
/// belongs to no single module.
pub(super) fn candidates(files: &[SourceFile]) -> Vec<SampleEntry> {
    let mut entries = Vec::new();
    let mut counts: HashMap<&str, usize> = HashMap::new();
    for file in files.iter().filter(|file| file.is_product()) {
        for (line, number) in file.without_tests().lines().map(str::trim).zip(1..) {
            if is_candidate(line) {
                *counts.entry(line).or_default() += 1;
                entries.push(SampleEntry::new(file, number, line.to_owned()));
            }
        }
    }
    entries.retain(|entry| counts[&*entry.text] == 1);
    entries
}

fn is_candidate(line: &str) -> bool {
    let is_use = line.contains("use ") && line.ends_with([';', '{', ',']);
    // A line of a long string literal rarely ends like this.
    let is_code = line.ends_with(['{', '}', '(', ')', '[', ']', ';', ',', '=', '|', '?', '>']);
    line.chars().count() >= MIN_CHARS
        && line.contains(char::is_alphanumeric)
        && is_code
        && !line.starts_with("//")
        && !is_use
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
                    fn a() {}\n    let address: IpNet = parse_with_prefix(text)?;\n    ))))))))))))))))))))))))))))))))))))))))))))))\n";
        assert_eq!(
            texts("crates/a/src/lib.rs", text),
            ["let address: IpNet = parse_with_prefix(text)?;"]
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
            "\n#[cfg(test)]\nmod tests {\n    let address: IpNet = parse_with_prefix(text)?;\n}\n";
        assert_eq!(texts("crates/a/src/lib.rs", text), [""; 0]);
        let text = "let address: IpNet = parse_with_prefix(text)?;\n";
        for path in ["crates/a/tests/b.rs", "crates/testkit/src/lib.rs", "crates/a/src/b/tests.rs"]
        {
            assert_eq!(texts(path, text), [""; 0], "{path}");
        }
    }
}
