// SPDX-License-Identifier: Apache-2.0
//! `vipwatch show ID`: prints everything about one instance.

mod adverts;

use vipwatch_api::{InstanceDetail, InstanceItem, KeepalivedItem, ReportItem};

use self::adverts::add_adverts;
use super::doctor::push_finding;
use super::history::timeline_table;
use crate::args::ShowArgs;
use crate::failure::CommandError;
use crate::output::{self, Page, Style, latencies, push_line};
use crate::source::query;

/// The width of the names at the beginning of the lines.
const NAME_WIDTH: usize = 15;

pub(crate) fn run(options: &ShowArgs) -> Result<(), CommandError> {
    let id = &options.id;
    let answer = query(&options.query, |node| node.instance(id), |kernel| kernel.instance(id))?;
    output::show(options.query.output(), &answer);
    Ok(())
}

impl Page for InstanceDetail {
    fn text(&self, style: &Style) -> String {
        let mut page = role_lines(&self.instance, style);
        page.push_str(&detail_lines(self, style));
        if !self.findings.is_empty() {
            page.push('\n');
            for finding in &self.findings {
                push_finding(&mut page, finding, style);
            }
        }
        page.push('\n');
        match &self.history_error {
            Some(error) => push_line(&mut page, &format!("history: {error}")),
            None if self.timeline.is_empty() => page.push_str("no transition is recorded\n"),
            None => {
                let mut table = timeline_table(style);
                self.timeline.iter().for_each(|item| table.transition(item, style));
                page.push_str(&table.text(style));
            }
        }
        page
    }

    fn names(&self) -> Vec<String> {
        vec![self.instance.id.clone()]
    }
}

/// Lines that begin with a name.
#[derive(Default)]
struct NamedLines(String);

impl NamedLines {
    /// Adds a line; nothing for an empty text.
    fn add(&mut self, name: &str, text: &str) {
        if !text.is_empty() {
            push_line(&mut self.0, &format!("{name:<NAME_WIDTH$} {text}"));
        }
    }
}

/// The id, the role, its age and its cause.
pub(super) fn role_lines(instance: &InstanceItem, style: &Style) -> String {
    let mut lines = NamedLines::default();
    lines.add("id", &instance.id);
    let reason = instance.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
    lines.add("role", &format!("{}{reason}", instance.role.word()));
    if let Some(since) = instance.since {
        lines.add("since", &format!("{} ({})", style.time(since), style.age(since)));
    }
    lines.add("cause", instance.cause.text_or(&instance.trigger));
    if let Some(until) = instance.silenced_until {
        lines.add("silenced", &format!("until {}", style.time(until)));
    }
    lines.0
}

/// The configuration, the addresses, the processes, the deliveries and the adverts of an instance.
pub(super) fn detail_lines(detail: &InstanceDetail, style: &Style) -> String {
    let mut lines = NamedLines::default();
    add_configuration(&mut lines, &detail.instance);
    if let Some(keepalived) = &detail.keepalived {
        lines.add("keepalived", &keepalived_text(keepalived, style));
    }
    add_deliveries(&mut lines, &detail.instance, style);
    if let Some(adverts) = &detail.adverts {
        add_adverts(&mut lines, &detail.instance, adverts, style);
    }
    lines.0
}

fn add_configuration(lines: &mut NamedLines, instance: &InstanceItem) {
    lines.add("group", &instance.group);
    lines.add("origin", &format!("{}, {}:{}", instance.origin, instance.file, instance.line));
    lines.add("namespace", instance.netns.as_deref().unwrap_or("the node's own"));
    let number = |name: &str, number: Option<u8>| number.map(|number| format!("{name} {number}"));
    let interface = format!("interface {}", instance.interface);
    let vrrp =
        [number("vrid", instance.vrid), number("priority", instance.priority), Some(interface)];
    lines.add("vrrp", &vrrp.into_iter().flatten().collect::<Vec<_>>().join(", "));
    for address in &instance.addresses {
        let kind = if address.floating { "floating" } else { "address" };
        let state = match (&address.state, address.held) {
            (Some(state), _) => state.as_str(),
            (None, Some(true)) => "held",
            (None, Some(false)) => "not held",
            (None, None) => "unknown",
        };
        lines.add(kind, &format!("{} on {}: {state}", address.cidr, address.link));
    }
}

/// For example `runs (pid 812, VRRP 815, since 2026-11-16 13:00:00+01:00)`.
fn keepalived_text(keepalived: &KeepalivedItem, style: &Style) -> String {
    let pid = keepalived.pid.map(|pid| format!("pid {pid}"));
    let vrrp = keepalived.vrrp_pid.map(|pid| format!("VRRP {pid}"));
    let since = keepalived.started.map(|started| format!("since {}", style.time(started)));
    let details: Vec<String> = [pid, vrrp, since].into_iter().flatten().collect();
    match details.as_slice() {
        [] => keepalived.state.clone(),
        details => format!("{} ({})", keepalived.state, details.join(", ")),
    }
}

fn add_deliveries(lines: &mut NamedLines, instance: &InstanceItem, style: &Style) {
    lines.add("notifies", &instance.stages.join(", "));
    lines.add("delivered in", &latencies(&instance.latencies));
    for failure in &instance.failures {
        let text = format!("{} {}: {}", failure.stage, failure.target, failure.error);
        lines.add("failed delivery", &text);
    }
    if let Some(agent) = &instance.agent {
        let known = agent.acknowledged.as_deref().unwrap_or("nothing");
        let failing = agent.failing.as_ref().map(|error| format!("; last attempt: {error}"));
        lines.add("agent", &format!("has acknowledged {known}{}", failing.unwrap_or_default()));
    }
    if let Some(report) = &instance.report {
        lines.add("reported", &report_text(report, style));
    }
}

/// The last report of a monitor in one line.
fn report_text(report: &ReportItem, style: &Style) -> String {
    let settled = report.settled.as_deref().unwrap_or("nothing yet");
    let time = style.time(report.at);
    format!("{} at {time} ({} ago), settled: {settled}", report.reported, style.age(report.at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    #[test]
    fn a_page_has_addresses_deliveries_findings_and_transitions() {
        insta::assert_snapshot!(samples::instance_detail().text(&Style::of_tests()));
    }

    #[test]
    fn an_instance_without_history_says_why() {
        let mut detail = samples::instance_detail();
        detail.timeline.clear();
        assert!(detail.text(&Style::of_tests()).ends_with("\nno transition is recorded\n"));
        detail.history_error = Some("the disk is full".to_owned());
        assert!(detail.text(&Style::of_tests()).ends_with("\nhistory: the disk is full\n"));
    }
}
