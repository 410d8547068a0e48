// SPDX-License-Identifier: Apache-2.0
//! Tests that the documents, the alert rules and the tests have the findings of the table, with their severities.

use std::collections::{BTreeMap, BTreeSet};

use vipwatch_api::{FindingKind, RoleKind, Severity};

use super::{files_below, read, root};

/// The text from a heading to the next heading of the same level.
fn section<'a>(text: &'a str, heading: &str) -> &'a str {
    let rest = text.split_once(&format!("\n{heading}\n")).map_or("", |(_, rest)| rest);
    rest.split("\n## ").next().unwrap_or_default()
}

/// The cells of each row of the tables.
fn rows(text: &str) -> impl Iterator<Item = Vec<&str>> {
    let rows = text.lines().filter(|line| line.starts_with("| "));
    rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect())
}

/// The words between backticks.
fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// The names of the findings of nodes, or of those about several nodes, each with its severities.
fn table(is_of_cluster: bool) -> BTreeSet<(&'static str, Severity)> {
    let kinds = FindingKind::ALL.iter().filter(|kind| kind.is_of_cluster() == is_of_cluster);
    let severities = |kind: &FindingKind| {
        let (name, milder) = (kind.name(), kind.milder());
        [Some(kind.severity()), milder].into_iter().flatten().map(move |severity| (name, severity))
    };
    kinds.flat_map(severities).collect()
}

#[test]
fn the_reference_has_each_finding_with_its_severities() {
    let text = read("docs/reference/cli.md");
    let rows_of_nodes = rows(section(&text, "## Doctor")).filter_map(|cells| {
        let severity = Severity::from_word(cells.first()?)?;
        Some(quoted(cells.get(1)?).map(move |name| (name, severity)))
    });
    assert_eq!(rows_of_nodes.flatten().collect::<BTreeSet<_>>(), table(false));
    let text = read("docs/reference/cluster.md");
    let rows_of_cluster = rows(section(&text, "## Findings")).filter_map(|cells| {
        Some((quoted(cells.first()?).next()?, Severity::from_word(cells.get(1)?)?))
    });
    assert_eq!(rows_of_cluster.collect::<BTreeSet<_>>(), table(true));
}

#[test]
fn the_runbook_has_each_critical_finding_and_each_one_of_the_cluster() {
    let runbook = read("docs/operations/runbook.md");
    let index = runbook.split("\n## ").next().unwrap_or_default();
    let named: BTreeSet<&str> =
        rows(index).filter_map(|cells| cells.get(1).copied()).flat_map(quoted).collect();
    let is_name =
        |word: &&&str| word.split('-').all(|part| part.chars().all(|c| c.is_ascii_lowercase()));
    for word in named.iter().filter(|word| word.contains('-') && !word.ends_with('-')) {
        assert!(!is_name(&word) || FindingKind::from_name(word).is_some(), "{word} is no finding");
    }
    for kind in FindingKind::ALL {
        let name = kind.name();
        if kind.is_of_cluster() {
            assert!(runbook.contains(&format!("\n| `{name}` |")), "{name} has no row");
        } else if kind.severity() == Severity::Critical {
            assert!(named.contains(name), "{name} is not in the index");
        }
    }
}

#[test]
fn the_alert_rules_and_the_dashboard_of_grafana_select_findings_that_exist() {
    let mut selectors = 0;
    for file in [
        "examples/prometheus/alerts.yml",
        "examples/prometheus/alerts_test.yml",
        "examples/grafana/vipwatch.json",
    ] {
        let text = read(file).replace("\\\"", "\"");
        for selector in text.split("findings{").skip(1).filter_map(|rest| rest.split('}').next()) {
            let values = |label: &str| {
                let value = selector.split_once(&format!("{label}=")).map_or("", |(_, rest)| rest);
                value.split('"').nth(1).map(str::to_owned)
            };
            let severity = values("severity");
            selectors += usize::from(severity.is_some());
            assert!(severity.is_none_or(|word| Severity::from_word(&word).is_some()), "{selector}");
            assert!(
                values("name").is_none_or(|name| FindingKind::from_name(&name).is_some()),
                "{selector}"
            );
        }
    }
    assert!(selectors > 4, "only {selectors} selectors");
}

#[test]
fn the_dashboard_has_each_severity_and_each_role_in_their_order() {
    let list = |file: &str, name: &str| -> Vec<String> {
        let text = read(file);
        let (_, rest) = text.split_once(&format!("\nexport const {name} = [")).expect("the list");
        let (items, _) = rest.split_once(']').expect("its end");
        items.split(',').map(|item| item.trim().trim_matches('\'').to_owned()).collect()
    };
    let attention = "crates/web/dashboard/attention.js";
    assert_eq!(list(attention, "SEVERITIES"), Severity::ALL.map(Severity::word));
    for severity in Severity::ALL {
        let line = format!("\n    {}: '{}',\n", severity.word(), severity.meaning());
        assert!(read(attention).contains(&line), "no meaning of {}", severity.word());
    }
    let roles = "crates/web/dashboard/roles.js";
    assert_eq!(list(roles, "ROLES"), RoleKind::ALL.map(RoleKind::word));
}

#[test]
fn the_dashboard_compares_names_of_findings_that_exist() {
    let mut names = 0;
    for file in files_below(&root().join("crates/web/dashboard"), "js") {
        let text = std::fs::read_to_string(file).expect("the file can be read");
        for rest in
            [".name === '", ".name !== '"].into_iter().flat_map(|head| text.split(head).skip(1))
        {
            let name = rest.split('\'').next().unwrap_or_default();
            assert!(FindingKind::from_name(name).is_some(), "{name}");
            names += 1;
        }
    }
    assert!(names > 1, "only {names} names");
}

#[test]
fn each_finding_has_a_test_that_produces_it_through_the_public_interface() {
    let code = |directory: &str| -> Vec<String> {
        let files = files_below(&root().join(directory), "rs").into_iter();
        files.map(|file| std::fs::read_to_string(file).expect("the file can be read")).collect()
    };
    let text = read("docs/operations/finding-tests.md");
    let listed: BTreeMap<&str, Vec<&str>> = rows(&text)
        .filter_map(|cells| Some((quoted(cells.first()?).next()?, quoted(cells.get(1)?).collect())))
        .collect();
    let kinds = FindingKind::ALL.iter().filter(|kind| !kind.is_of_cluster());
    let names: Vec<&str> = kinds.map(|kind| kind.name()).collect();
    assert_eq!(listed.keys().copied().collect::<Vec<_>>(), names);
    let tests = code("crates/cli/tests/netns");
    let is_word_part = |c: char| c.is_ascii_alphanumeric() || c == '-';
    for (finding, listed) in listed {
        assert!(!listed.is_empty(), "{finding} has no test");
        for test in listed {
            let head = format!("\nfn {test}() {{\n");
            let body = tests.iter().find_map(|file| file.split_once(&head)?.1.split("\n}").next());
            let body = body.unwrap_or_else(|| panic!("there is no test {test}"));
            let mut words = body.split(|c| !is_word_part(c));
            assert!(words.any(|word| word == finding), "{test} does not have {finding}");
        }
    }
    let tests = code("crates/cluster/src/findings/tests");
    for kind in FindingKind::ALL.iter().filter(|kind| kind.is_of_cluster()) {
        let closed = format!("\"-{}\"", kind.name().trim_start_matches("cluster-"));
        assert!(tests.iter().any(|file| file.contains(&closed)), "no test closes {}", kind.name());
    }
}
