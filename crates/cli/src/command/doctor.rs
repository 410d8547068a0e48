// SPDX-License-Identifier: Apache-2.0
//! `vipwatch doctor` and `vipwatch findings`: print everything that is wrong, each with a hint.

mod groups;

use std::collections::BTreeSet;

use vipwatch_api::{
    AnswerSource, ContainerKeepalived, FindingItem, FindingList, InstanceFilter, InstanceList,
    Severity,
};

use self::groups::push_groups;
use crate::args::{DoctorArgs, FindingSelection, FindingsArgs, OutputOptions};
use crate::failure::{CommandError, ExitStatus, note};
use crate::output::{self, Page, Style, count, push_line, severity_counts};
use crate::source::{query, query_node};
use vipwatch_node::view::NodeExpectation;

/// Audits all instances now. Without `--direct`, it is an error that no node runs: the kernel answers, but no transition
/// is recorded or delivered.
pub(crate) fn run(options: &DoctorArgs) -> Result<(), CommandError> {
    let selection = &options.selection;
    let is_direct = options.query.is_direct();
    let expectation = if is_direct { NodeExpectation::None } else { NodeExpectation::Runs };
    let answer = query(
        &options.query,
        |node| select(node.audit()?, selection, |filter| node.instances(filter)),
        |kernel| select(kernel.audit(expectation), selection, |filter| kernel.instances(filter)),
    )?;
    selection.check_match(&answer)?;
    output::show(options.query.output(), &answer);
    if options.query.output().verbose {
        print_containers(options.query.output(), &answer.containers);
    }
    if answer.source == AnswerSource::Kernel && !is_direct {
        let error = CommandError::new(ExitStatus::NotReachable, "no vipwatch node runs here");
        return Err(error.hint("start it (`systemctl start vipwatch-node`); with --direct, the exit code tells only whether there are findings"));
    }
    check(&answer, options.fail_on)
}

/// Prints the keepaliveds in containers to standard error. They are no findings: the kernel proves that each runs, and the
/// instances of their files are followed only on request.
fn print_containers(output: &OutputOptions, containers: &[ContainerKeepalived]) {
    for ContainerKeepalived { pid, netns } in containers {
        let netns = netns.as_deref().map_or_else(
            || "the node's own network namespace".to_owned(),
            |name| format!("network namespace {name}"),
        );
        let text = format!(
            "keepalived in a container: pid {pid}, {netns}; its instances are followed only with find.containers = true"
        );
        note(output, &text);
    }
}

/// Prints the findings that the node knows.
pub(crate) fn findings(options: &FindingsArgs) -> Result<(), CommandError> {
    let answer = query_node(&options.node, |node| {
        select(node.findings()?, &options.selection, |filter| node.instances(filter))
    })?;
    options.selection.check_match(&answer)?;
    output::show(&options.node.output, &answer);
    check(&answer, options.fail_on)
}

impl FindingSelection {
    /// An error if ids were given and none of them is an instance: a mistyped id must not look like a healthy instance.
    fn check_match(&self, answer: &FindingList) -> Result<(), CommandError> {
        if !self.has_ids() || answer.instances > 0 {
            return Ok(());
        }
        let error = CommandError::new(ExitStatus::NotFound, "no instance matches");
        Err(error.hint("`vipwatch status` lists the instances of this node"))
    }
}

/// Leaves out the findings that the options do not select.
fn select<E>(
    mut list: FindingList,
    selection: &FindingSelection,
    instances: impl FnOnce(&InstanceFilter) -> Result<InstanceList, E>,
) -> Result<FindingList, E> {
    let Some(filter) = selection.filter() else { return Ok(list) };
    let selected = instances(&filter)?.items;
    let ids: BTreeSet<&str> = selected.iter().map(|instance| instance.id.as_str()).collect();
    list.items.retain(|item| item.id.as_deref().is_some_and(|id| ids.contains(id)));
    list.instances = ids.len() as u64;
    Ok(list)
}

/// An error if there are findings of the severity in `fail_on`, or more serious ones.
fn check(answer: &FindingList, fail_on: Severity) -> Result<(), CommandError> {
    // The most serious severity is the smallest.
    let is_serious = |finding: &&FindingItem| finding.severity <= fail_on;
    match answer.items.iter().filter(is_serious).count() {
        0 => Ok(()),
        number => Err(CommandError::new(ExitStatus::No, count(number, "finding"))),
    }
}

impl Page for FindingList {
    fn text(&self, style: &Style) -> String {
        let instances = count(usize::try_from(self.instances).unwrap_or(usize::MAX), "instance");
        let mut page = String::new();
        for severity in Severity::ALL {
            let findings: Vec<_> =
                self.items.iter().filter(|item| item.severity == severity).collect();
            if !findings.is_empty() {
                push_line(&mut page, &format!("{}: {}", severity.word(), severity.meaning()));
                push_groups(&mut page, &findings, style);
                page.push('\n');
            }
        }
        match self.items.len() {
            0 => push_line(&mut page, &format!("no findings, {instances}")),
            number => {
                let severities = severity_counts(&self.items);
                let findings = count(number, "finding");
                push_line(&mut page, &format!("{findings} ({severities}), {instances}"));
            }
        }
        if self.too_young > 0 {
            let number = usize::try_from(self.too_young).unwrap_or(usize::MAX);
            let findings = count(number, "new finding");
            push_line(&mut page, &format!("{findings} left out: a failover may still be going on"));
        }
        page
    }

    fn names(&self) -> Vec<String> {
        let name = |item: &FindingItem| match &item.id {
            Some(id) => format!("{id}/{}", item.name),
            None => item.name.clone(),
        };
        self.items.iter().map(name).collect()
    }
}

/// Adds a finding of one instance in three lines: name, text and hint.
pub(super) fn push_finding(page: &mut String, finding: &FindingItem, style: &Style) {
    let id = finding.id.as_deref().unwrap_or("node");
    let age = finding.since.map(|since| format!(", for {}", style.age(since))).unwrap_or_default();
    let until = finding.silenced_until.map(|until| style.time(until));
    let silenced = until.map(|until| format!(", silenced until {until}")).unwrap_or_default();
    push_line(page, &format!("{id}: {}{age}{silenced}", finding.name));
    push_line(page, &format!("  {}", finding.text));
    push_line(page, &format!("  hint: {}", finding.hint));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    #[test]
    fn findings_are_grouped_by_severity_with_hints() {
        insta::assert_snapshot!(samples::findings().text(&Style::of_tests()));
    }

    #[test]
    fn an_id_that_matches_no_instance_is_an_error() {
        let mut list = samples::findings();
        list.instances = 0;
        let named = FindingSelection::of_ids(&["wbe"]);
        assert_eq!(named.check_match(&list).unwrap_err().code, ExitStatus::NotFound);
        assert!(
            FindingSelection::of_ids(&[]).check_match(&list).is_ok(),
            "a node without instances"
        );
        list.instances = 1;
        assert!(named.check_match(&list).is_ok());
    }

    /// 75 instances with a keepalived that has ended, two with other texts, and one that is silenced.
    fn many_findings() -> FindingList {
        let mut list = samples::findings();
        let sample = list.items[0].clone();
        let gone = |number: u32| FindingItem {
            id: Some(format!("r-{number}")),
            name: "keepalived-gone".to_owned(),
            text: "keepalived (pid 812, /etc/keepalived/keepalived.conf) ended at 14:55:00"
                .to_owned(),
            hint: "this node cannot take over: start keepalived".to_owned(),
            ..sample.clone()
        };
        let no_carrier = |id: &str, link: &str, minutes: i64| FindingItem {
            id: Some(id.to_owned()),
            text: format!("{link} has no carrier"),
            since: sample.since.map(|at| at - jiff::SignedDuration::from_mins(minutes)),
            ..sample.clone()
        };
        let texts = ["eth1", "eth2", "eth3", "eth4"];
        list.items.splice(1..1, texts.map(|link| no_carrier(&format!("on-{link}"), link, 60)));
        list.items.extend((0..75).map(gone));
        list.items.push(FindingItem { silenced_until: sample.since, ..gone(75) });
        list
    }

    #[test]
    fn instances_with_the_same_finding_are_one_entry_with_a_few_ids() {
        insta::assert_snapshot!(many_findings().text(&Style::of_tests()));
    }

    #[test]
    fn the_wide_form_has_every_id_and_every_text() {
        let text = many_findings().text(&Style { is_wide: true, ..Style::of_tests() });
        for id in (0..76).map(|number| format!("r-{number}")) {
            let words = text.split([' ', ',', ':']);
            assert_eq!(words.filter(|word| *word == id).count(), 1, "{id}: {text}");
        }
        assert!(text.contains("on-eth4: eth4 has no carrier") && !text.contains("more"), "{text}");
    }

    #[test]
    fn one_finding_is_singular_and_none_is_a_sentence() {
        let mut list = samples::findings();
        list.items.truncate(1);
        list.too_young = 0;
        assert!(list.text(&Style::of_tests()).ends_with("\n1 finding (1 critical), 4 instances\n"));
        list.items.clear();
        assert_eq!(list.text(&Style::of_tests()), "no findings, 4 instances\n");
    }

    #[test]
    fn fail_on_decides_which_findings_make_the_command_fail() {
        let mut list = samples::findings();
        let code =
            |list: &FindingList, fail_on| check(list, fail_on).err().map(|error| error.message);
        assert_eq!(code(&list, Severity::Critical).as_deref(), Some("1 finding"));
        assert_eq!(code(&list, Severity::Warning).as_deref(), Some("2 findings"));
        assert_eq!(code(&list, Severity::Info).as_deref(), Some("3 findings"));
        list.items.retain(|item| item.severity == Severity::Info);
        assert_eq!(code(&list, Severity::Warning), None);
    }
}
