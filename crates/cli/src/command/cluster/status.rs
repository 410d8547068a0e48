// SPDX-License-Identifier: Apache-2.0
//! `vipwatch cluster status`: prints the state of each group.

use serde::Serialize;
use vipwatch_api::{
    ClusterGroupItem, ClusterGroupList, ClusterMemberItem, ClusterNeutron, ClusterNodeState,
    ClusterScope, ClusterSilenceItem, ClusterStatus, GroupState, RoleKind,
};

use super::basis::{check_current, push_basis, push_warning};
use super::selection::SelectedGroups;
use super::silence::covered;
use super::source::ClusterReader;
use crate::args::{ClusterStatusArgs, EtcdOptions, GroupSelection};
use crate::failure::{CommandError, ExitStatus};
use crate::output::{self, Page, Style, TextTable, count, push_line};

/// The maximum number of silences that are printed.
const MAX_SILENCES: usize = 10;

pub(super) fn run(options: &ClusterStatusArgs, etcd: &EtcdOptions) -> Result<(), CommandError> {
    let reader = ClusterReader::open(&options.query, etcd)?;
    let ClusterGroupList { basis, mut items, .. } = reader.groups()?;
    let selected = SelectedGroups::read(&options.selection, &items, &reader)?;
    items.retain(|group| selected.has(&group.id));
    // The basis of the groups also has sentences about claims that are not confirmed.
    let status = ClusterStatus { basis, ..reader.status()? };
    let document = ClusterStatusDocument { status, items };
    output::show(&options.query.output, &document);
    let Some(expected) = options.expect else { return Ok(()) };
    check_scope(&options.selection, &document, expected)?;
    check_expectation(&document.items, expected)?;
    check_current(&document.status.basis)
}

/// An error if the view lacks groups that the expectation is about: a favourable result would be one of this node's groups.
fn check_scope(
    selection: &GroupSelection,
    document: &ClusterStatusDocument,
    expected: GroupState,
) -> Result<(), CommandError> {
    let is_own = document.status.basis.scope == ClusterScope::Own;
    let failed = document.items.iter().any(|group| group.state != expected);
    if !is_own || failed || SelectedGroups::is_needed(selection) {
        return Ok(());
    }
    let message = "this node sees only the groups of its own instances";
    let hint = "--etcd reads all groups, view = \"full\" in [cluster] shows them to this node, and --node NAME asks for those of one node";
    Err(CommandError::new(ExitStatus::NotKnown, message).hint(hint))
}

/// `GET /v1/cluster` together with the selected groups.
#[derive(Debug, Serialize)]
struct ClusterStatusDocument {
    #[serde(flatten)]
    status: ClusterStatus,
    items: Vec<ClusterGroupItem>,
}

impl Page for ClusterStatusDocument {
    fn text(&self, style: &Style) -> String {
        let mut page = String::new();
        push_warning(&mut page, &self.status.basis, style);
        if self.items.is_empty() {
            push_line(
                &mut page,
                match self.status.groups.total {
                    0 => "there are no groups in this view",
                    _ => "no group matches the filter",
                },
            );
        } else if style.is_wide {
            page.push_str(&member_table(&self.items, style));
        } else {
            page.push_str(&group_table(&self.items, style));
        }
        if !self.items.is_empty() {
            push_line(&mut page, &group_counts(&self.items));
        }
        self.push_summary(&mut page, style);
        push_neutron(&mut page, self.status.neutron.as_ref(), style);
        push_basis(&mut page, &self.status.basis);
        page
    }

    fn names(&self) -> Vec<String> {
        self.items.iter().map(|group| group.id.clone()).collect()
    }
}

impl ClusterStatusDocument {
    fn push_summary(&self, page: &mut String, style: &Style) {
        let status = &self.status;
        let nodes = [
            (status.nodes.live, "live"),
            (status.nodes.lost, "lost"),
            (status.nodes.stopped, "stopped"),
        ];
        let reporter = status.reporter.as_deref().unwrap_or("none");
        let mark = match status.reporter_notifies {
            Some(false) => " (no hook or webhook for findings)",
            _ => "",
        };
        let nodes = counts(&nodes);
        let nodes = if nodes.is_empty() { "none".to_owned() } else { nodes };
        push_line(page, &format!("nodes: {nodes}; reporter: {reporter}{mark}"));
        if status.findings > 0 {
            let number = usize::try_from(status.findings).unwrap_or(usize::MAX);
            let findings = count(number, "finding");
            push_line(page, &format!("{findings} (`vipwatch cluster findings` explains them)"));
        }
        for silence in status.silences.iter().take(MAX_SILENCES) {
            let ClusterSilenceItem { created_by, reason, .. } = silence;
            let (of, until) = (covered(silence), style.time(silence.until));
            push_line(page, &format!("silenced: {of} until {until} by {created_by}: {reason}"));
        }
        if status.silences.len() > MAX_SILENCES {
            let more = count(status.silences.len() - MAX_SILENCES, "silence");
            push_line(page, &format!("{more} more (`vipwatch cluster silence list`)"));
        }
    }
}

/// Adds the comparison with Neutron, if it is configured.
fn push_neutron(page: &mut String, neutron: Option<&ClusterNeutron>, style: &Style) {
    let Some(neutron) = neutron else { return };
    let age = |time| format!("{} ({})", style.time(time), style.age(time));
    let line = match neutron {
        ClusterNeutron { is_asking: false, .. } => "only the reporter compares".to_owned(),
        ClusterNeutron { failing_since: Some(since), error, .. } => {
            let error = error.as_deref().unwrap_or("no answer");
            format!("not reachable since {}: {error}", age(*since))
        }
        ClusterNeutron { compared: Some(compared), routers, .. } => {
            let results = counts(&[
                (routers.different, "different"),
                (routers.unmatched, "unmatched"),
                (routers.not_compared, "not compared"),
                (routers.equal, "equal"),
            ]);
            let number = usize::try_from(routers.total()).unwrap_or(usize::MAX);
            let results = if results.is_empty() { String::new() } else { format!(": {results}") };
            format!("compared {} ago, {}{results}", style.age(*compared), count(number, "router"))
        }
        ClusterNeutron { compared: None, .. } => "not compared yet".to_owned(),
    };
    push_line(page, &format!("Neutron: {line}"));
}

/// One line for each group.
fn group_table(groups: &[ClusterGroupItem], style: &Style) -> String {
    let head = ["GROUP", "STATE", "PRIMARY", "BACKUP", "ADDRESSES", "DETAILS"];
    let shrinkable =
        [("DETAILS", 24), ("GROUP", 24), ("ADDRESSES", 15), ("BACKUP", 8), ("DETAILS", 8)];
    let mut table = TextTable::new(&head).shrink(&shrinkable);
    for group in groups {
        table.row(vec![
            group.id.clone(),
            group.state.word().to_owned(),
            group.primaries.join(","),
            backups(group),
            addresses(group),
            details(group),
        ]);
    }
    table.text(style)
}

/// The live nodes that are backup.
pub(in crate::command) fn backups(group: &ClusterGroupItem) -> String {
    let is_backup = |member: &&ClusterMemberItem| {
        member.role == RoleKind::Backup && member.node_state == ClusterNodeState::Live
    };
    let backups = group.members.iter().filter(is_backup).map(|member| member.node.as_str());
    backups.collect::<Vec<_>>().join(",")
}

/// The first address, and the number of the others.
pub(in crate::command) fn addresses(group: &ClusterGroupItem) -> String {
    let first = group.addresses.first().cloned().unwrap_or_default();
    match group.addresses.len() {
        0 | 1 => first,
        number => format!("{first} (+{})", number - 1),
    }
}

/// The findings of the group, and the members that are neither a live primary nor a live backup.
pub(in crate::command) fn details(group: &ClusterGroupItem) -> String {
    let members =
        group.members.iter().filter_map(|member| match (member.node_state, member.role) {
            (ClusterNodeState::Live, RoleKind::Primary | RoleKind::Backup) => None,
            (ClusterNodeState::Live, role) => Some(format!("{} {}", member.node, role.word())),
            (state, role) => {
                Some(format!("{} {} (was {})", member.node, state.word(), role.word()))
            }
        });
    group.findings.iter().cloned().chain(members).collect::<Vec<_>>().join("; ")
}

/// One line for each member of each group.
fn member_table(groups: &[ClusterGroupItem], style: &Style) -> String {
    let mut table = TextTable::new(&[
        "GROUP",
        "STATE",
        "NODE",
        "NODE STATE",
        "INSTANCE",
        "ROLE",
        "SINCE",
        "CAUSE",
        "PRIORITY",
        "NETNS",
        "INTERFACE",
        "ADDRESSES",
        "DETAILS",
    ]);
    for group in groups {
        for member in &group.members {
            table.row(member_row(group, member, style));
        }
    }
    table.text(style)
}

fn member_row(group: &ClusterGroupItem, member: &ClusterMemberItem, style: &Style) -> Vec<String> {
    let findings = group.findings.iter().chain(&member.findings).cloned();
    let details = member.reason.iter().cloned().chain(findings).collect::<Vec<_>>().join("; ");
    vec![
        group.id.clone(),
        group.state.word().to_owned(),
        member.node.clone(),
        member.node_state.word().to_owned(),
        member.instance.clone(),
        member.role.word().to_owned(),
        member.since.map(|since| style.time(since)).unwrap_or_default(),
        member.cause.clone().unwrap_or_default(),
        member.priority.map(|priority| priority.to_string()).unwrap_or_default(),
        member.netns.clone().unwrap_or_default(),
        member.interface.clone(),
        group.addresses.join(","),
        details,
    ]
}

/// The number of groups in each state, without zeros: `3 groups: 1 two-primaries, 2 one-primary`.
pub(in crate::command) fn group_counts(groups: &[ClusterGroupItem]) -> String {
    let number = |state| groups.iter().filter(|group| group.state == state).count() as u64;
    let states = GroupState::ALL.map(|state| (number(state), state.word()));
    format!("{}: {}", count(groups.len(), "group"), counts(&states))
}

/// Numbers with words, without zeros.
fn counts(numbers: &[(u64, &str)]) -> String {
    let numbers = numbers.iter().filter(|(number, _)| *number > 0);
    numbers.map(|(number, word)| format!("{number} {word}")).collect::<Vec<_>>().join(", ")
}

/// An error if a state differs from `--expect`.
fn check_expectation(
    groups: &[ClusterGroupItem],
    expected: GroupState,
) -> Result<(), CommandError> {
    let others = groups.iter().filter(|group| group.state != expected).count();
    let message = match (groups.len(), others) {
        (0, _) => "there is no group to compare with --expect".to_owned(),
        (_, 0) => return Ok(()),
        (all, others) => format!("{others} of {all} are not {}", expected.word()),
    };
    Err(CommandError::new(ExitStatus::No, message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::cluster;

    fn document() -> ClusterStatusDocument {
        ClusterStatusDocument { status: cluster::status(), items: cluster::groups().items }
    }

    #[test]
    fn the_table_has_one_line_for_each_group_and_fits_100_columns() {
        let text = document().text(&Style::of_tests());
        let groups = document().items.len();
        assert!(text.lines().take(groups + 1).all(|line| line.chars().count() <= 100), "{text}");
        insta::assert_snapshot!(text);
    }

    #[test]
    fn the_wide_table_has_one_line_for_each_member() {
        insta::assert_snapshot!(document().text(&Style { is_wide: true, ..Style::of_tests() }));
    }

    #[test]
    fn json_yaml_and_names_have_the_same_groups() {
        let document = document();
        insta::assert_snapshot!("cluster_json", output::json_line(&document));
        insta::assert_snapshot!("cluster_yaml", output::yaml(&document));
        assert_eq!(document.names().len(), document.items.len());
    }

    #[test]
    fn the_groups_of_one_node_do_not_prove_that_all_groups_have_one_primary() {
        let mut document = document();
        document.items.retain(|group| group.state == GroupState::OnePrimary);
        let check = |selection: &GroupSelection, document: &ClusterStatusDocument| {
            check_scope(selection, document, GroupState::OnePrimary).err().map(|it| it.code)
        };
        let (all, one) = (
            GroupSelection::default(),
            GroupSelection { names: vec!["VI_1".to_owned()], ..GroupSelection::default() },
        );
        document.status.basis.scope = ClusterScope::Own;
        assert_eq!(check(&all, &document), Some(ExitStatus::NotKnown));
        assert_eq!(check(&one, &document), None);
        document.status.basis.scope = ClusterScope::Full;
        assert_eq!(check(&all, &document), None);
    }

    #[test]
    fn a_stale_view_begins_with_a_warning() {
        let mut document = document();
        document.status.basis = cluster::stale_basis();
        let text = document.text(&Style::of_tests());
        insta::assert_snapshot!(text.lines().next().unwrap(), @"stale since 2026-11-16 15:55:00+01:00 (5m): the roles below are those of that time: cannot connect to https://10.0.0.1:2379: connection refused");
    }

    #[test]
    fn one_line_says_how_the_comparison_with_neutron_goes() {
        let line = |change: fn(&mut ClusterNeutron)| {
            let mut document = document();
            change(document.status.neutron.insert(cluster::neutron()));
            let text = document.text(&Style::of_tests());
            text.lines().find(|line| line.starts_with("Neutron")).unwrap().to_owned()
        };
        insta::assert_snapshot!(line(|_| {}), @"Neutron: compared 12s ago, 10 routers: 1 different, 2 not compared, 7 equal");
        insta::assert_snapshot!(line(|neutron| neutron.is_asking = false), @"Neutron: only the reporter compares");
        insta::assert_snapshot!(line(|neutron| neutron.compared = None), @"Neutron: not compared yet");
        let failing = line(|neutron| {
            neutron.failing_since = neutron.compared;
            neutron.error = Some("Keystone rejects the login with status 401".to_owned());
        });
        insta::assert_snapshot!(failing, @"Neutron: not reachable since 2026-11-16 15:59:48+01:00 (12s): Keystone rejects the login with status 401");
        assert!(!document().text(&Style::of_tests()).contains("Neutron"), "not configured");
    }

    #[test]
    fn each_silence_is_one_line_with_what_it_covers_its_creator_and_its_end() {
        let mut document = document();
        let silence = |number: usize| ClusterSilenceItem {
            id: format!("net-1.{number}"),
            node: Some("net-1".to_owned()),
            group: None,
            until: vipwatch_api::Timestamp::UNIX_EPOCH,
            created_by: "root".to_owned(),
            reason: "kernel update".to_owned(),
        };
        document.status.silences = (0..12).map(silence).collect();
        let text = document.text(&Style::of_tests());
        let line = "silenced: node net-1 until 1970-01-01 01:00:00+01:00 by root: kernel update\n";
        assert_eq!(text.matches(line).count(), MAX_SILENCES, "{text}");
        assert!(text.contains("\n2 silences more (`"), "{text}");
    }

    #[test]
    fn an_expectation_counts_the_groups_that_differ() {
        let groups = cluster::groups().items;
        let error = check_expectation(&groups, GroupState::OnePrimary).unwrap_err();
        assert_eq!(error.message, "4 of 5 are not one-primary");
        assert!(check_expectation(&groups[4..], GroupState::OnePrimary).is_ok());
        let error = check_expectation(&[], GroupState::OnePrimary).unwrap_err();
        assert_eq!((error.code, error.message.contains("no group")), (ExitStatus::No, true));
    }

    #[test]
    fn a_stale_view_cannot_meet_an_expectation() {
        let error = check_current(&cluster::stale_basis()).unwrap_err();
        assert_eq!(error.code, ExitStatus::NotKnown);
        assert!(check_current(&cluster::basis()).is_ok());
    }
}
