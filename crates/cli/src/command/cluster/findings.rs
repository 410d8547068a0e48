// SPDX-License-Identifier: Apache-2.0
//! `vipwatch cluster findings`: lists the open findings of the cluster.

use vipwatch_api::{
    ClusterFindingItem, ClusterFindingList, ClusterSilenceItem, ClusterStatus, FindingScope,
    Severity,
};

use super::basis::{check_current, push_basis, push_warning};
use super::selection::SelectedGroups;
use super::source::ClusterReader;
use crate::args::{ClusterFindingsArgs, EtcdOptions};
use crate::failure::{CommandError, ExitStatus};
use crate::output::{self, Page, Style, count, push_line};

pub(super) fn run(options: &ClusterFindingsArgs, etcd: &EtcdOptions) -> Result<(), CommandError> {
    let reader = ClusterReader::open(&options.query, etcd)?;
    let mut list = reader.findings()?;
    if SelectedGroups::is_needed(&options.selection) {
        let groups = reader.groups()?.items;
        let selected = SelectedGroups::read(&options.selection, &groups, &reader)?;
        list.items.retain(|finding| selected.has_finding(finding));
    }
    output::show(&options.query.output, &list);
    check(&list, options.fail_on)?;
    check_current(&list.basis)?;
    check_reporter(&reader.status()?)
}

/// An error if no node looks for findings: an empty list does not mean that nothing is wrong.
fn check_reporter(status: &ClusterStatus) -> Result<(), CommandError> {
    if status.reporter.is_some() {
        return Ok(());
    }
    let message = "no node reports findings of the cluster: the list may be old";
    let hint =
        "a running node becomes the reporter by itself; `vipwatch cluster nodes` shows the nodes";
    Err(CommandError::new(ExitStatus::NotKnown, message).hint(hint))
}

/// An error if there are findings of the severity in `fail_on`, or more serious ones.
fn check(list: &ClusterFindingList, fail_on: Severity) -> Result<(), CommandError> {
    // The most serious severity is the smallest.
    let is_serious = |finding: &&ClusterFindingItem| finding.severity <= fail_on;
    match list.items.iter().filter(is_serious).count() {
        0 => Ok(()),
        number => Err(CommandError::new(ExitStatus::No, count(number, "finding"))),
    }
}

impl Page for ClusterFindingList {
    fn text(&self, style: &Style) -> String {
        let mut page = String::new();
        push_warning(&mut page, &self.basis, style);
        for severity in Severity::ALL {
            let mut findings =
                self.items.iter().filter(|item| item.severity == severity).peekable();
            if findings.peek().is_some() {
                push_line(&mut page, &format!("{}: {}", severity.word(), severity.meaning()));
                findings.for_each(|finding| push_finding(&mut page, finding, style));
                page.push('\n');
            }
        }
        let number = self.items.len();
        let findings =
            if number == 0 { "no findings".to_owned() } else { count(number, "finding") };
        push_line(&mut page, &findings);
        push_basis(&mut page, &self.basis);
        page
    }

    fn names(&self) -> Vec<String> {
        self.items.iter().map(|item| format!("{}/{}", subject(item), item.name)).collect()
    }
}

/// The group, or the nodes of a finding without a group.
pub(super) fn subject(finding: &ClusterFindingItem) -> String {
    finding.group.clone().unwrap_or_else(|| finding.nodes.join(","))
}

fn push_finding(page: &mut String, finding: &ClusterFindingItem, style: &Style) {
    let age = style.age(finding.opened);
    let confidence = match finding.confidence.as_str() {
        "certain" => String::new(),
        other => format!(", {other}"),
    };
    let scope = match finding.scope {
        FindingScope::Cluster => "",
        FindingScope::Local => ", known to this node only",
    };
    let subject = subject(finding);
    push_line(page, &format!("{subject}: {}, for {age}{confidence}{scope}", finding.name));
    push_line(page, &format!("  {}", finding.text));
    push_line(page, &format!("  hint: {}", finding.hint));
    if let Some(node) = &finding.part_of {
        push_line(page, &format!("  not delivered: a part of the finding of node {node}"));
    }
    if let Some(ClusterSilenceItem { until, created_by, reason, .. }) = &finding.silenced {
        let until = style.time(*until);
        push_line(page, &format!("  silenced until {until} by {created_by}: {reason}"));
    }
    if !style.is_wide {
        return;
    }
    for evidence in &finding.evidence {
        push_line(page, &format!("  evidence: {evidence}"));
    }
    let delivered = match finding.delivered.as_slice() {
        [] => "no target".to_owned(),
        targets => targets.join(", "),
    };
    let time = style.time(finding.opened);
    let (id, reporter) = (&finding.id, &finding.reporter);
    push_line(page, &format!("  {id}: opened {time} by {reporter}, delivered to {delivered}"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::cluster;

    #[test]
    fn findings_are_grouped_by_severity_with_hints() {
        insta::assert_snapshot!(cluster::findings().text(&Style::of_tests()));
    }

    #[test]
    fn the_wide_form_has_the_evidence_and_the_targets() {
        insta::assert_snapshot!(
            cluster::findings().text(&Style { is_wide: true, ..Style::of_tests() })
        );
    }

    #[test]
    fn fail_on_decides_which_findings_make_the_command_fail() {
        let mut list = cluster::findings();
        let message = |list: &ClusterFindingList, fail_on| {
            check(list, fail_on).err().map(|error| error.message)
        };
        assert_eq!(message(&list, Severity::Critical).as_deref(), Some("2 findings"));
        assert_eq!(message(&list, Severity::Warning).as_deref(), Some("3 findings"));
        list.items.clear();
        assert_eq!(message(&list, Severity::Info), None);
        assert!(list.text(&Style::of_tests()).starts_with("no findings\n"));
    }
}
