// SPDX-License-Identifier: Apache-2.0
//! `vipwatch silence`: adds, lists and removes silences.

use serde::Serialize;
use vipwatch_api::client::Client;
use vipwatch_api::{SilenceItem, SilenceList, SilenceRequest};

use crate::args::{NodeOptions, SilenceAdd, SilenceArgs, SilenceCommand};
use crate::failure::CommandError;
use crate::output::{self, Page, Style, TextTable, escape_untrusted};
use crate::source::query_node;

pub(crate) fn run(options: &SilenceArgs) -> Result<(), CommandError> {
    match &options.command {
        Some(SilenceCommand::List { node }) => list(node),
        Some(SilenceCommand::Remove { number, node }) => remove(*number, node),
        Some(SilenceCommand::Add(options)) => add(options),
        None => add(&options.add),
    }
}

fn add(options: &SilenceAdd) -> Result<(), CommandError> {
    let (seconds, reason) = (options.span.unwrap_or_default().as_secs(), &options.reason);
    let silence = query_node(&options.node, |node| {
        // The node resolves the beginning of an id or an address, and reports an unknown or ambiguous one.
        let id = options.id.as_ref().map(|id| node.instance(id)).transpose()?;
        let id = id.map(|detail| detail.instance.id);
        node.create_silence(&SilenceRequest {
            id,
            seconds,
            reason: reason.clone().unwrap_or_default(),
        })
    })?;
    output::show(&options.node.output, &ChangedSilence { silence, change: "added" });
    Ok(())
}

fn list(options: &NodeOptions) -> Result<(), CommandError> {
    let silences = query_node(options, Client::silences)?;
    output::show(&options.output, &silences);
    Ok(())
}

fn remove(number: i64, options: &NodeOptions) -> Result<(), CommandError> {
    let silence = query_node(options, |node| node.end_silence(number))?;
    output::show(&options.output, &ChangedSilence { silence, change: "removed" });
    Ok(())
}

/// A silence that the command has added or removed.
#[derive(Debug, Serialize)]
struct ChangedSilence {
    #[serde(flatten)]
    silence: SilenceItem,
    #[serde(skip)]
    change: &'static str,
}

impl Page for ChangedSilence {
    fn text(&self, style: &Style) -> String {
        let Self { silence, change } = self;
        let (of, until) = (covered(silence), style.time(silence.until));
        escape_untrusted(&format!("{change} silence {}: {of} until {until}", silence.number)) + "\n"
    }

    fn names(&self) -> Vec<String> {
        vec![self.silence.number.to_string()]
    }
}

impl Page for SilenceList {
    fn text(&self, style: &Style) -> String {
        if self.items.is_empty() {
            return "no silence is in force\n".to_owned();
        }
        let mut table = TextTable::new(&["NUMBER", "ID", "UNTIL", "CREATED BY", "REASON"])
            .shrink(&[("REASON", 12)]);
        for silence in &self.items {
            table.row(vec![
                name(silence),
                covered(silence).to_owned(),
                style.time(silence.until),
                silence.created_by.clone(),
                silence.reason.clone(),
            ]);
        }
        table.text(style)
    }

    /// Those that `silence remove` takes.
    fn names(&self) -> Vec<String> {
        let own = self.items.iter().filter(|silence| silence.cluster_id.is_none());
        own.map(name).collect()
    }
}

/// The number, or the id of a silence of the cluster.
fn name(silence: &SilenceItem) -> String {
    silence.cluster_id.clone().unwrap_or_else(|| silence.number.to_string())
}

/// The instances that a silence covers.
fn covered(silence: &SilenceItem) -> &str {
    silence.id.as_deref().unwrap_or("all instances")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    #[test]
    fn the_list_has_numbers_times_and_reasons() {
        let text = samples::silences().text(&Style::of_tests());
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        insta::assert_snapshot!(text);
        let empty = SilenceList { items: Vec::new(), ..samples::silences() };
        assert_eq!(empty.text(&Style::of_tests()), "no silence is in force\n");
    }

    #[test]
    fn a_silence_of_the_cluster_has_the_id_that_removes_it() {
        let mut list = samples::silences();
        list.items[1].cluster_id = Some("cli.5f3a".to_owned());
        assert_eq!(list.names(), ["3"]);
        assert!(list.text(&Style::of_tests()).contains("\ncli.5f3a "));
    }

    #[test]
    fn a_new_silence_is_printed_with_its_number_and_end() {
        let silence = samples::silences().items.remove(0);
        let text = ChangedSilence { silence, change: "added" }.text(&Style::of_tests());
        assert_eq!(text, "added silence 3: VI_1 until 2026-11-16 18:00:00+01:00\n");
    }
}
