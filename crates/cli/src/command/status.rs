// SPDX-License-Identifier: Apache-2.0
//! `vipwatch status`: prints the role of every instance.

use std::collections::BTreeSet;

use serde::Serialize;
use vipwatch_api::{
    AnswerSource, ConfigProblemItem, FindingKind, InstanceFilter, InstanceItem, NodeStatus,
    RoleKind, SeveritySummary, SilenceItem,
};

use crate::args::StatusArgs;
use crate::failure::{CommandError, ExitStatus};
use crate::output::{self, Page, Style, TextTable, push_line};
use crate::source::query;

pub(crate) fn run(options: &StatusArgs) -> Result<(), CommandError> {
    let filter = InstanceFilter {
        ids: options.ids.clone(),
        roles: options.role.clone(),
        netns: options.netns.iter().cloned().collect(),
        origins: options.origin.iter().cloned().collect(),
        ..InstanceFilter::default()
    };
    let document = query(
        &options.query,
        |node| {
            let instances = node.instances(&filter)?.items;
            Ok(StatusDocument { status: node.status()?, instances })
        },
        |kernel| {
            let instances = kernel.instances(&filter)?.items;
            Ok(StatusDocument { status: kernel.status(), instances })
        },
    )?;
    output::show(options.query.output(), &document);
    check_permission(&document)?;
    options.expect.map_or(Ok(()), |expected| check_expectation(&document.instances, expected))
}

/// `GET /v1/status` together with the selected instances.
#[derive(Debug, Serialize)]
struct StatusDocument {
    #[serde(flatten)]
    status: NodeStatus,
    instances: Vec<InstanceItem>,
}

impl Page for StatusDocument {
    fn text(&self, style: &Style) -> String {
        let mut instances: Vec<&InstanceItem> = self.instances.iter().collect();
        instances.sort_by_key(|instance| instance.role);
        let mut page = String::new();
        if instances.is_empty() {
            page.push_str(match self.status.roles.instances {
                0 => "there are no instances on this node\n",
                _ => "no instance matches the filter\n",
            });
        } else {
            page.push_str(&table(&instances, style));
            push_line(&mut page, &role_counts(&instances.iter().map(|instance| instance.role)));
        }
        if let Some(line) = finding_counts(&self.status.findings) {
            push_line(&mut page, &line);
        }
        for silence in &self.status.silences {
            push_line(&mut page, &silence_text(silence, style));
        }
        for finding in &self.status.health {
            push_line(&mut page, &format!("node: {}: {}", finding.name, finding.text));
        }
        for problem in &self.status.problems {
            push_line(&mut page, &problem_text(problem));
        }
        page
    }

    fn names(&self) -> Vec<String> {
        self.instances.iter().map(|instance| instance.id.clone()).collect()
    }
}

fn table(instances: &[&InstanceItem], style: &Style) -> String {
    let has_netns_column = is_in_several_netns(instances.iter().map(|instance| InstancePlace {
        origin: &instance.origin,
        netns: instance.netns.as_deref(),
    }));
    let mut table = if style.is_wide {
        TextTable::new(&[
            "ID",
            "ROLE",
            "SINCE",
            "CAUSE",
            "ORIGIN",
            "NETNS",
            "INTERFACE",
            "VRID",
            "PRIORITY",
            "ADDRESSES",
            "DETAILS",
        ])
    } else {
        let netns = has_netns_column.then_some("NETNS");
        let head = ["ID", "ROLE", "AGE"].into_iter().chain(netns).chain(["ADDRESSES", "DETAILS"]);
        TextTable::new(&head.collect::<Vec<_>>()).shrink(&[
            ("DETAILS", 30),
            ("ADDRESSES", 18),
            ("NETNS", 15),
            ("DETAILS", 12),
        ])
    };
    for instance in instances {
        table.row(if style.is_wide {
            wide_row(instance, style)
        } else {
            row(instance, has_netns_column, style)
        });
    }
    table.text(style)
}

/// Whether instances are in several namespaces. Neutron's routers do not count: the name of their namespace has their id.
pub(super) fn is_in_several_netns<'a>(places: impl Iterator<Item = InstancePlace<'a>>) -> bool {
    let ordinary = places.filter(|place| place.origin != "neutron");
    ordinary.map(|place| place.netns).collect::<BTreeSet<_>>().len() > 1
}

/// The place of an instance.
pub(super) struct InstancePlace<'a> {
    pub(super) origin: &'a str,
    /// `None` for the node's own namespace.
    pub(super) netns: Option<&'a str>,
}

fn row(instance: &InstanceItem, has_netns_column: bool, style: &Style) -> Vec<String> {
    let first = instance.addresses.first().map(|address| address.cidr.clone());
    let more = match instance.addresses.len() {
        0 | 1 => String::new(),
        count => format!(" (+{})", count - 1),
    };
    let mut cells = vec![
        instance.id.clone(),
        instance.role.word().to_owned(),
        instance.since.map(|since| style.age(since)).unwrap_or_default(),
    ];
    cells.extend(has_netns_column.then(|| instance.netns.clone().unwrap_or_default()));
    cells.extend([format!("{}{more}", first.unwrap_or_default()), details(instance)]);
    cells
}

fn wide_row(instance: &InstanceItem, style: &Style) -> Vec<String> {
    let number = |number: Option<u8>| number.map(|number| number.to_string()).unwrap_or_default();
    let addresses = instance.addresses.iter().map(|address| address.cidr.as_str());
    vec![
        instance.id.clone(),
        instance.role.word().to_owned(),
        instance.since.map(|since| style.time(since)).unwrap_or_default(),
        instance.cause.word_or(&instance.trigger).to_owned(),
        instance.origin.clone(),
        instance.netns.clone().unwrap_or_default(),
        instance.interface.clone(),
        number(instance.vrid),
        number(instance.priority),
        addresses.collect::<Vec<_>>().join(","),
        details(instance),
    ]
}

/// The reason of the role, findings, a silence and failed deliveries.
pub(super) fn details(instance: &InstanceItem) -> String {
    let failures = instance
        .failures
        .iter()
        .map(|failure| format!("failed delivery to {} {}", failure.stage, failure.target));
    let silenced = instance.silenced_until.map(|_| "silenced".to_owned());
    // The reason of the role says the same as these.
    let is_other = |name: &&String| {
        use FindingKind::{KernelNotRead, LinkFault, NamespaceMissing, PartlyHeld};
        let kind = FindingKind::from_name(name);
        !matches!(kind, Some(LinkFault | NamespaceMissing | PartlyHeld | KernelNotRead))
    };
    let findings = instance.findings.iter().filter(is_other).cloned();
    let all = instance.reason.clone().into_iter().chain(findings).chain(silenced).chain(failures);
    all.collect::<Vec<_>>().join("; ")
}

/// The number of instances with each role, without zeros: `1 fault, 3 primary, 2 backup`.
pub(super) fn role_counts(instances: &(impl Iterator<Item = RoleKind> + Clone)) -> String {
    use RoleKind::{Backup, Fault, Partial, Primary, Unknown};
    let roles = [Primary, Backup, Partial, Fault, Unknown];
    let count = |role| instances.clone().filter(|other| *other == role).count();
    let counts = roles.map(|role| (count(role), role.word()));
    let counts = counts.iter().filter(|(count, _)| *count > 0);
    counts.map(|(count, word)| format!("{count} {word}")).collect::<Vec<_>>().join(", ")
}

/// The number of findings about instances, and the command that shows them; `None` if there are none.
fn finding_counts(findings: &SeveritySummary) -> Option<String> {
    let SeveritySummary { critical, warning, info } = *findings;
    let counts = [(critical, "critical"), (warning, "warning"), (info, "info")];
    let counts = counts.iter().filter(|(count, _)| *count > 0);
    let counts: Vec<String> = counts.map(|(count, word)| format!("{count} {word}")).collect();
    let is_empty = counts.is_empty();
    (!is_empty)
        .then(|| format!("findings: {} (`vipwatch doctor` explains them)", counts.join(", ")))
}

/// A silence in one line.
pub(super) fn silence_text(silence: &SilenceItem, style: &Style) -> String {
    let of = silence.id.as_deref().unwrap_or("all instances");
    format!("silenced: {of} until {}: {}", style.time(silence.until), silence.reason)
}

/// A problem in a file of keepalived in one line.
pub(super) fn problem_text(problem: &ConfigProblemItem) -> String {
    let line = problem.line.map(|line| format!(":{line}")).unwrap_or_default();
    format!("problem: {}{line}: {}", problem.file, problem.text)
}

/// An error if the kernel was read without permission to enter a namespace.
fn check_permission(document: &StatusDocument) -> Result<(), CommandError> {
    let is_unknown = |instance: &InstanceItem| instance.role == RoleKind::Unknown;
    let is_root = rustix::process::geteuid().is_root();
    if document.status.source == AnswerSource::Node
        || is_root
        || !document.instances.iter().any(is_unknown)
    {
        return Ok(());
    }
    let message = "some namespaces could not be entered";
    Err(CommandError::new(ExitStatus::NotPermitted, message).hint("run it as root"))
}

/// An error if a role differs from `--expect`.
fn check_expectation(instances: &[InstanceItem], expected: RoleKind) -> Result<(), CommandError> {
    let others = instances.iter().filter(|instance| instance.role != expected).count();
    let message = match (instances.len(), others) {
        (0, _) => "there is no instance to compare with --expect".to_owned(),
        (_, 0) => return Ok(()),
        (all, others) => format!("{others} of {all} are not {}", expected.word()),
    };
    Err(CommandError::new(ExitStatus::No, message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    fn document() -> StatusDocument {
        StatusDocument { status: samples::node_status(), instances: samples::instances() }
    }

    #[test]
    fn the_table_has_faults_first_and_a_summary_and_fits_100_columns() {
        let text = document().text(&Style::of_tests());
        assert!(text.lines().take(6).all(|line| line.chars().count() <= 100), "{text}");
        insta::assert_snapshot!(text);
    }

    #[test]
    fn instances_in_several_namespaces_have_a_column_for_them() {
        let mut document = document();
        let head = |document: &StatusDocument| {
            let text = document.text(&Style::of_tests());
            text.lines().next().unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
        };
        for instance in &mut document.instances {
            (instance.origin, instance.netns) = ("keepalived".to_owned(), Some("blue".to_owned()));
        }
        assert_eq!(head(&document), "ID ROLE AGE ADDRESSES DETAILS");
        document.instances[0].netns = None;
        assert_eq!(head(&document), "ID ROLE AGE NETNS ADDRESSES DETAILS");
        // Each of Neutron's routers has a namespace of its own.
        document.instances[0].origin = "neutron".to_owned();
        assert_eq!(head(&document), "ID ROLE AGE ADDRESSES DETAILS");
    }

    #[test]
    fn the_wide_table_has_all_addresses_and_times_with_their_zone() {
        insta::assert_snapshot!(document().text(&Style { is_wide: true, ..Style::of_tests() }));
    }

    #[test]
    fn json_yaml_and_names_have_the_same_instances() {
        let document = document();
        insta::assert_snapshot!("json", output::json_line(&document));
        insta::assert_snapshot!("yaml", output::yaml(&document));
        assert_eq!(document.names().len(), document.instances.len());
    }

    #[test]
    fn an_empty_answer_says_whether_the_filter_or_the_node_has_nothing() {
        let mut document = document();
        document.instances.clear();
        assert!(document.text(&Style::of_tests()).starts_with("no instance matches the filter\n"));
        document.status.roles = vipwatch_api::RoleSummary::default();
        assert!(document.text(&Style::of_tests()).starts_with("there are no instances"));
    }

    #[test]
    fn an_expectation_counts_the_instances_that_differ() {
        let error = check_expectation(&samples::instances(), RoleKind::Primary).unwrap_err();
        assert_eq!(
            (error.code, error.message.as_str()),
            (ExitStatus::No, "3 of 4 are not primary")
        );
        assert!(check_expectation(&[], RoleKind::Primary).is_err());
    }
}
