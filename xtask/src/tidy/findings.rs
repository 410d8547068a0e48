// SPDX-License-Identifier: Apache-2.0
//! Each finding has a name in `FINDING_NAMES`, a row in the reference, and a test that produces it through the public
//! interface.
//!
//! The table of tests is `docs/operations/finding-tests.md`. A test counts if its code has the name of the finding.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::{SourceFile, text_of};

const NAMES: &str = "crates/core/src/audit/names.rs";
const REFERENCE: &str = "docs/reference/cli.md";
const TESTS: &str = "docs/operations/finding-tests.md";
/// Where the tests are that run a node and its command line.
const TEST_CODE: &str = "crates/cli/tests/netns/";

/// One message for each name that one of the lists lacks, and for each test that does not produce its finding.
pub(super) fn check(files: &[SourceFile], broken: &mut Vec<String>) {
    let text = |path: &str| text_of(files, path);
    let names = listed_names(text(NAMES));
    if names.len() < 40 {
        broken.push(format!("{NAMES}: tidy finds fewer than 40 names; adapt `tidy/findings.rs`"));
    }
    for file in files.iter().filter(|file| file.is_product()) {
        for name in produced_names(&file.text).difference(&names) {
            broken.push(format!("{}: add the finding {name} to {NAMES}", file.path));
        }
    }
    let documented: BTreeSet<&str> = rows(section(text(REFERENCE), "## Doctor"))
        .filter(|cells| matches!(cells.first(), Some(&("broken" | "wrong" | "odd"))))
        .filter_map(|cells| cells.get(1).copied())
        .flat_map(quoted)
        .collect();
    compare(REFERENCE, &names, &documented, broken);
    let tests: BTreeMap<&str, Vec<&str>> = rows(text(TESTS))
        .filter_map(|cells| Some((*quoted(cells.first()?).first()?, quoted(cells.get(1)?))))
        .collect();
    compare(TESTS, &names, &tests.keys().copied().collect(), broken);
    for (finding, tests) in &tests {
        for test in tests {
            if !is_produced_by(files, finding, test) {
                broken.push(format!(
                    "{TESTS}: no test {test} below {TEST_CODE} has the finding {finding}"
                ));
            }
        }
        if tests.is_empty() {
            broken.push(format!("{TESTS}: the finding {finding} has no test"));
        }
    }
}

/// The strings of the constant `FINDING_NAMES`.
fn listed_names(text: &str) -> BTreeSet<&str> {
    let list = text.split_once("FINDING_NAMES: &[&str] = &[").map_or("", |(_, list)| list);
    let list = list.split_once("];").map_or("", |(list, _)| list);
    list.split('"').skip(1).step_by(2).collect()
}

/// The strings before a severity, which are names of findings: `name: "x", severity: …` and `("x", Severity::Info, …)`.
/// Test code does not count.
fn produced_names(text: &str) -> BTreeSet<&str> {
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    let is_name =
        |name: &&str| !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c == '-');
    let mut parts = code.split('"').peekable();
    let mut names = BTreeSet::new();
    while let Some(part) = parts.next() {
        let Some(after) = parts.peek() else { break };
        let after = after.trim_start_matches(',').trim_start();
        let is_before_severity = ["severity:", "severity,", "Severity::", "Severity::"]
            .iter()
            .any(|start| after.starts_with(start));
        if is_before_severity && is_name(&part) {
            names.insert(part);
        }
    }
    names
}

/// The text from a heading to the next heading of the same level.
pub(super) fn section<'a>(text: &'a str, heading: &str) -> &'a str {
    let rest = text.split_once(&format!("\n{heading}\n")).map_or("", |(_, rest)| rest);
    rest.split("\n## ").next().unwrap_or_default()
}

/// The cells of each row of the tables.
pub(super) fn rows(text: &str) -> impl Iterator<Item = Vec<&str>> {
    let rows = text.lines().filter(|line| line.starts_with("| "));
    rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect())
}

/// The words between backticks.
pub(super) fn quoted(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

pub(super) fn compare(
    path: &str,
    names: &BTreeSet<&str>,
    listed: &BTreeSet<&str>,
    broken: &mut Vec<String>,
) {
    for name in names.difference(listed) {
        broken.push(format!("{path}: the finding {name} is missing"));
    }
    for name in listed.difference(names) {
        broken.push(format!("{path}: no finding has the name {name}"));
    }
}

/// Whether the test with this name exists, and its code has the name of the finding.
fn is_produced_by(files: &[SourceFile], finding: &str, test: &str) -> bool {
    let head = format!("\nfn {test}() {{\n");
    let test_files = files.iter().filter(|file| file.path.starts_with(TEST_CODE));
    let mut bodies = test_files.filter_map(|file| file.text.split_once(&head)).map(|(_, rest)| {
        // The end of a function is a brace at the beginning of a line.
        rest.split_once("\n}").map_or(rest, |(body, _)| body)
    });
    let is_word_part = |c: char| c.is_ascii_alphanumeric() || c == '-';
    bodies.any(|body| body.split(|c| !is_word_part(c)).any(|word| word == finding))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> SourceFile {
        SourceFile { path: path.to_owned(), text: text.to_owned() }
    }

    /// The messages about a repository with 40 other findings that are complete, and these files.
    fn messages(reference: &str, tests: &str, code: &str, product: &str) -> Vec<String> {
        let others: Vec<String> =
            ('a'..='z').chain('A'..='Z').map(|c| format!("x-{}", u32::from(c))).collect();
        let list = |each: &dyn Fn(&String) -> String| others.iter().map(each).collect::<String>();
        let names = list(&|name| format!("    \"{name}\",\n"));
        let files = [
            file(
                NAMES,
                &format!("pub const FINDING_NAMES: &[&str] = &[\n    \"new\",\n{names}];\n"),
            ),
            file(
                REFERENCE,
                &format!(
                    "# CLI\n## Doctor\n{reference}{}| 0 | `no` | code |\n## Other\n| odd | `no` |\n",
                    list(&|name| format!("| odd | `{name}` | text |\n"))
                ),
            ),
            file(TESTS, &format!("{tests}{}", list(&|name| format!("| `{name}` | `other` |\n")))),
            file(
                "crates/cli/tests/netns/a.rs",
                &format!("\nfn other() {{\n {} \n}}\n{code}", others.join(" ")),
            ),
            file("crates/core/src/audit.rs", product),
        ];
        let mut broken = Vec::new();
        check(&files, &mut broken);
        broken
    }

    #[test]
    fn a_finding_with_a_row_and_a_test_is_complete() {
        let code = "\nfn one() {\n    wait_for(\"new\");\n}\n";
        let product = "Finding { name: \"new\", severity: Severity::Info }";
        let broken = messages("| odd | `new` | text |\n", "| `new` | `one` |\n", code, product);
        assert_eq!(broken, [""; 0]);
    }

    #[test]
    fn a_missing_row_a_missing_test_and_an_unlisted_name_are_found() {
        let product = "let f = (\"newer\", Severity::Info, text);";
        let code = "\nfn one() {\n    wait_for(\"new-er\");\n}\n";
        assert_eq!(
            messages("", "| `new` | `one` |\n", code, product),
            [
                "crates/core/src/audit.rs: add the finding newer to crates/core/src/audit/names.rs",
                "docs/reference/cli.md: the finding new is missing",
                "docs/operations/finding-tests.md: no test one below crates/cli/tests/netns/ has the finding new",
            ]
        );
        assert_eq!(
            messages("| odd | `new`, `old` | text |\n", "", "", ""),
            [
                "docs/reference/cli.md: no finding has the name old",
                "docs/operations/finding-tests.md: the finding new is missing",
            ]
        );
    }
}
