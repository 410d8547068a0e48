// SPDX-License-Identifier: Apache-2.0
//! `vipwatch targets`: prints the targets of notifications, with pending and failed deliveries.

use serde::Serialize;
use vipwatch_api::{SilenceItem, TargetItem, TargetList};

use super::status::silence_text;
use crate::args::TargetsArgs;
use crate::failure::CommandError;
use crate::output::{self, Page, Style, TextTable, push_line};
use crate::source::query_node;

pub(crate) fn run(options: &TargetsArgs) -> Result<(), CommandError> {
    let document = query_node(&options.node, |node| {
        Ok(TargetsDocument { targets: node.targets()?, silences: node.silences()?.items })
    })?;
    output::show(&options.node.output, &document);
    Ok(())
}

/// `GET /v1/targets` together with the silences in force.
#[derive(Debug, Serialize)]
struct TargetsDocument {
    #[serde(flatten)]
    targets: TargetList,
    silences: Vec<SilenceItem>,
}

impl Page for TargetsDocument {
    fn text(&self, style: &Style) -> String {
        let mut page = if self.targets.items.is_empty() {
            "no target is configured\n".to_owned()
        } else {
            target_table(&self.targets.items, style)
        };
        for silence in &self.silences {
            push_line(&mut page, &silence_text(silence, style));
        }
        page
    }

    fn names(&self) -> Vec<String> {
        self.targets.items.iter().map(|target| target.name.clone()).collect()
    }
}

/// The targets, and below them the deliveries that fail.
pub(super) fn target_table(targets: &[TargetItem], style: &Style) -> String {
    let mut table = if style.is_wide {
        TextTable::new(&[
            "NAME",
            "KIND",
            "SOURCE",
            "PENDING",
            "OLDEST",
            "DELIVERED",
            "FAILURES",
            "GIVEN UP",
            "SUPERSEDED",
            "FILTERED",
            "DROPPED",
        ])
    } else {
        let head =
            ["NAME", "KIND", "SOURCE", "PENDING", "OLDEST", "DELIVERED", "FAILURES", "GIVEN UP"];
        TextTable::new(&head).shrink(&[("NAME", 12)])
    };
    for target in targets {
        let oldest = target.oldest_pending.map(|oldest| style.age(oldest)).unwrap_or_default();
        let mut row = vec![
            target.name.clone(),
            target.kind.word().to_owned(),
            target.source.clone(),
            target.pending.to_string(),
            oldest,
            target.delivered.to_string(),
            target.failures.to_string(),
            target.given_up.to_string(),
        ];
        if style.is_wide {
            row.extend(
                [target.superseded, target.filtered, target.dropped]
                    .map(|number| number.to_string()),
            );
        }
        table.row(row);
    }
    let mut page = table.text(style);
    for target in targets {
        for failing in &target.failing {
            let text = format!("{} to {}: {}", failing.id, target.name, failing.error);
            push_line(&mut page, &format!("failed delivery: {text}"));
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    fn document() -> TargetsDocument {
        TargetsDocument { targets: samples::targets(), silences: samples::silences().items }
    }

    #[test]
    fn the_table_shows_pending_and_failed_deliveries_and_silences() {
        let text = document().text(&Style::of_tests());
        insta::assert_snapshot!(text);
    }

    #[test]
    fn the_wide_table_has_all_counters() {
        insta::assert_snapshot!(document().text(&Style { is_wide: true, ..Style::of_tests() }));
    }
}
