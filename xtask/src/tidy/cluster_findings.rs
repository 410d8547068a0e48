// SPDX-License-Identifier: Apache-2.0
//! Each finding of the cluster has a row with its severity in the reference, a row in the runbook, and a test of the
//! evaluator that opens and closes it.

use std::collections::{BTreeMap, BTreeSet};

use super::findings::{compare, quoted, rows, section};
use crate::source::{SourceFile, text_of};

const NAMES: &str = "crates/cluster/src/findings/kind.rs";
const REFERENCE: &str = "docs/reference/cluster.md";
const RUNBOOK: &str = "docs/operations/runbook.md";
/// The tests of the evaluator: they write `-NAME` for a closed finding, without the start that all names have.
const TESTS: &str = "crates/cluster/src/findings/tests/";
/// The start of all names.
const START: &str = "cluster-";

/// One message for each name that a list lacks or that does not exist, and for each other severity.
pub(super) fn check(files: &[SourceFile], broken: &mut Vec<String>) {
    let text = |path: &str| text_of(files, path);
    let names = listed(text(NAMES));
    if names.len() < 5 {
        broken.push(format!(
            "{NAMES}: tidy finds fewer than 5 names; adapt `tidy/cluster_findings.rs`"
        ));
    }
    let documented = documented(section(text(REFERENCE), "## Findings"));
    let listed: [BTreeSet<&str>; 2] =
        [&names, &documented].map(|map| map.keys().copied().collect());
    compare(REFERENCE, &listed[0], &listed[1], broken);
    for (name, severity) in &names {
        if documented.get(name).is_some_and(|other| other != severity) {
            broken.push(format!("{REFERENCE}: the severity of {name} is {severity}"));
        }
        if !text(RUNBOOK).contains(&format!("| `{name}` |")) {
            broken.push(format!("{RUNBOOK}: the finding {name} is missing"));
        }
        let closed = format!("\"-{}\"", name.trim_start_matches(START));
        let mut tests = files.iter().filter(|file| file.path.starts_with(TESTS));
        if !tests.any(|file| file.text.contains(&closed)) {
            broken.push(format!("{TESTS}: no test closes the finding {name}"));
        }
    }
}

/// The names of the enum with their severities: `Variant = "cluster-x", Broken,`.
fn listed(text: &str) -> BTreeMap<&str, String> {
    let pairs = text.lines().filter_map(|line| {
        let (name, rest) = line.split_once(" = \"")?.1.split_once("\", ")?;
        let severity = rest.strip_suffix(',')?.to_lowercase();
        name.starts_with(START).then_some((name, severity))
    });
    pairs.collect()
}

/// The names of the table with their severities.
fn documented(text: &str) -> BTreeMap<&str, String> {
    let pairs = rows(text).filter_map(|cells| {
        let name = *quoted(cells.first()?).first()?;
        name.starts_with(START).then_some((name, (*cells.get(1)?).to_owned()))
    });
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OTHERS: [&str; 5] = ["cluster-a", "cluster-b", "cluster-c", "cluster-d", "cluster-e"];

    /// The messages about a repository with five complete findings, and these lines.
    fn messages(name: &str, row: &str, runbook: &str, test: &str) -> Vec<String> {
        let list = |each: &dyn Fn(&str) -> String| OTHERS.map(each).concat();
        let file = |path: &str, text: String| SourceFile { path: path.to_owned(), text };
        let files = [
            file(NAMES, list(&|it| format!("    X = \"{it}\", Broken,\n")) + name),
            file(
                REFERENCE,
                format!("\n## Findings\n{}{row}", list(&|it| format!("| `{it}` | broken | c |\n"))),
            ),
            file(RUNBOOK, list(&|it| format!("| `{it}` | do |\n")) + runbook),
            file(
                "crates/cluster/src/findings/tests/a.rs",
                list(&|it| format!("\"-{}\"", it.trim_start_matches(START))) + test,
            ),
        ];
        let mut broken = Vec::new();
        check(&files, &mut broken);
        broken
    }

    #[test]
    fn a_finding_with_its_rows_and_its_test_is_complete() {
        let name = "    New = \"cluster-new\", Wrong,\n";
        let (row, runbook) = ("| `cluster-new` | wrong | c |\n", "| `cluster-new` | do |\n");
        assert_eq!(messages(name, row, runbook, "[\"-new\"]"), [""; 0]);
        assert_eq!(messages("", "", "", ""), [""; 0]);
    }

    #[test]
    fn missing_rows_a_missing_test_and_another_severity_are_found() {
        let name = "    New = \"cluster-new\", Wrong,\n";
        let missing = [
            "docs/reference/cluster.md: the finding cluster-new is missing",
            "docs/operations/runbook.md: the finding cluster-new is missing",
            "crates/cluster/src/findings/tests/: no test closes the finding cluster-new",
        ];
        assert_eq!(messages(name, "", "", ""), missing);
        let (row, runbook) = ("| `cluster-new` | broken | c |\n", "| `cluster-new` | do |\n");
        assert_eq!(
            messages(name, row, runbook, "[\"-new\"]"),
            ["docs/reference/cluster.md: the severity of cluster-new is wrong"]
        );
        assert_eq!(
            messages("", row, "", ""),
            ["docs/reference/cluster.md: no finding has the name cluster-new"]
        );
    }
}
