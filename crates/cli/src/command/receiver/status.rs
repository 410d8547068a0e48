// SPDX-License-Identifier: Apache-2.0
//! `vipwatch receiver status`: prints the reports, the settled states and the deliveries.

use std::fmt::Write;

use vipwatch_api::client::{Client, ClientError};
use vipwatch_api::{ReportItem, ReportList, TargetItem};
use vipwatch_linux::clock;
use vipwatch_node::Config;
use vipwatch_node::config::SOCKET;

use super::super::targets::target_table;
use crate::args::{RECEIVER_SOCKET, ReceiverStatusArgs};
use crate::failure::CommandError;
use crate::output::{self, Page, Style, TextTable, escape_untrusted};

pub(super) fn run(options: &ReceiverStatusArgs) -> Result<(), CommandError> {
    let answer = read(options)?;
    if options.metrics {
        output::print(&metrics(&answer, clock::unix_millis_now()));
    } else {
        output::show(&options.node.output, &answer);
    }
    Ok(())
}

/// Queries the receiver process, or the node if no receiver process is listening.
fn read(options: &ReceiverStatusArgs) -> Result<ReportList, CommandError> {
    let of_receiver = |error: ClientError| CommandError::of_receiver(&error);
    if let Some(socket) = &options.status_socket {
        return Client::new(socket).reports().map_err(of_receiver);
    }
    match Client::new(RECEIVER_SOCKET).reports() {
        Err(ClientError::NotListening(_)) => {}
        answer => return answer.map_err(of_receiver),
    }
    // If the file cannot be read, the default socket is used.
    let configured = Config::load_lenient(options.node.source.config.as_deref());
    let configured = configured.map(|(config, _)| config.socket);
    let default = || configured.unwrap_or_else(|_| SOCKET.into());
    let socket = options.node.source.socket.clone().unwrap_or_else(default);
    Client::new(socket).reports().map_err(|error| match error {
        ClientError::NotListening(_) => of_receiver(error),
        error => error.into(),
    })
}

impl Page for ReportList {
    fn text(&self, style: &Style) -> String {
        let mut page = if self.items.is_empty() {
            "no monitor has reported yet\n".to_owned()
        } else {
            let mut table =
                TextTable::new(&["ID", "REPORTED", "AGE", "SETTLED", "STATE", "REPORTS"]);
            self.items.iter().for_each(|item| table.row(row(item, style)));
            table.text(style)
        };
        let mut line = |text: &str| {
            page.push_str(&escape_untrusted(text));
            page.push('\n');
        };
        for problem in &self.problems {
            line(&format!("problem: {}: {}", problem.name, problem.text));
        }
        line(&format!(
            "{} accepted, {} coalesced, {} pending, {} refused because the journal could not be written",
            self.accepted, self.coalesced, self.pending, self.unavailable
        ));
        for (reason, number) in &self.rejected {
            line(&format!("rejected: {reason} {number}"));
        }
        if !self.targets.is_empty() {
            page.push('\n');
            page.push_str(&target_table(&self.targets, style));
        }
        page
    }

    fn names(&self) -> Vec<String> {
        self.items.iter().map(|item| item.id.clone()).collect()
    }
}

fn row(item: &ReportItem, style: &Style) -> Vec<String> {
    let held = if item.held { " (held back)" } else { "" };
    vec![
        item.id.clone(),
        format!("{}{held}", item.reported),
        style.age(item.at),
        item.settled.clone().unwrap_or_default(),
        item.state.clone().unwrap_or_default(),
        item.reports.to_string(),
    ]
}

/// The answer as metrics in the text format of Prometheus. `now` is in milliseconds since the Unix epoch.
fn metrics(answer: &ReportList, now: i64) -> String {
    let mut text = String::new();
    let mut add = |name: &str, kind: &str, samples: Vec<(String, u64)>| {
        let _ = writeln!(text, "# TYPE vipwatch_receiver_{name} {kind}");
        for (labels, value) in samples {
            let _ = writeln!(text, "vipwatch_receiver_{name}{labels} {value}");
        }
    };
    let one = |value: u64| vec![(String::new(), value)];
    let with = |state: &str| {
        let items = answer.items.iter();
        items.filter(|item| item.state.as_deref() == Some(state)).count() as u64
    };
    let states = ["active", "standby", "unknown"];
    add("routers", "gauge", states.map(|state| (label("state", state), with(state))).to_vec());
    add("held", "gauge", one(answer.items.iter().filter(|item| item.held).count() as u64));
    let age = |item: &ReportItem| {
        let seconds = (now - item.at.as_millisecond()).max(0) / 1000;
        (label("id", &item.id), seconds.unsigned_abs())
    };
    add("report_age_seconds", "gauge", answer.items.iter().map(age).collect());
    add("reports_total", "counter", one(answer.accepted));
    add("coalesced_total", "counter", one(answer.coalesced));
    add("unavailable_total", "counter", one(answer.unavailable));
    add("pending", "gauge", one(answer.pending));
    add("connections", "gauge", one(answer.connections));
    let problems = answer.problems.iter().map(|problem| (label("name", &problem.name), 1));
    add("problem", "gauge", problems.collect());
    let rejected = answer.rejected.iter();
    let rejected = rejected.map(|(reason, number)| (label("reason", reason), *number));
    add("rejected_total", "counter", rejected.collect());
    let of_targets = |value: fn(&TargetItem) -> u64| {
        let targets = answer.targets.iter();
        targets.map(|target| (label("target", &target.name), value(target))).collect()
    };
    add("target_pending", "gauge", of_targets(|target| target.pending));
    add("deliveries_total", "counter", of_targets(|target| target.delivered));
    add("delivery_failures_total", "counter", of_targets(|target| target.failures));
    text
}

/// `{NAME="VALUE"}`, with the characters escaped that could end the value.
fn label(name: &str, value: &str) -> String {
    let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("{{{name}=\"{value}\"}}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    #[test]
    fn the_table_shows_reports_counters_and_targets() {
        insta::assert_snapshot!(samples::reports().text(&Style::of_tests()));
    }

    #[test]
    fn every_number_is_a_metric_and_label_values_are_escaped() {
        let now = Style::of_tests().now.as_millisecond();
        let text = metrics(&samples::reports(), now);
        insta::assert_snapshot!(text);
        assert_eq!(label("target", "hook /a \"b\\\n"), r#"{target="hook /a \"b\\\n"}"#);
    }
}
