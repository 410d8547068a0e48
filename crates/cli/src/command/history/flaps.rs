// SPDX-License-Identifier: Apache-2.0
//! `vipwatch history --flaps`: the number of transitions of each instance.

use std::collections::BTreeMap;

use serde::Serialize;
use vipwatch_api::{RoleKind, TimelineItem, Timestamp};

use crate::output::{Page, Style, TextTable};

/// The transitions of each instance in a part of the history.
#[derive(Debug, Serialize)]
pub(super) struct FlapList {
    schema: &'static str,
    node: String,
    /// The instances, the one with the most transitions first.
    items: Vec<FlapItem>,
}

/// The transitions of one instance.
#[derive(Debug, Serialize)]
struct FlapItem {
    id: String,
    /// The number of transitions.
    transitions: u64,
    /// The number of transitions to `primary`.
    primary: u64,
    /// The time of the first transition.
    first: Timestamp,
    /// The time of the last transition.
    last: Timestamp,
}

/// Counts the transitions of each instance.
#[derive(Debug, Default)]
pub(super) struct FlapCounter(BTreeMap<String, FlapItem>);

impl FlapCounter {
    /// Counts an entry of the history.
    pub(super) fn add(&mut self, item: &TimelineItem) {
        let TimelineItem::Transition(item) = item else { return };
        let flaps = self.0.entry(item.id.clone()).or_insert_with(|| FlapItem {
            id: item.id.clone(),
            transitions: 0,
            primary: 0,
            first: item.at,
            last: item.at,
        });
        flaps.transitions += 1;
        flaps.primary += u64::from(item.to == RoleKind::Primary.word());
        flaps.last = item.at;
    }

    /// The counts of all instances.
    pub(super) fn list(self, node: String) -> FlapList {
        let mut items: Vec<FlapItem> = self.0.into_values().collect();
        items.sort_by_key(|item| std::cmp::Reverse(item.transitions));
        FlapList { schema: "vipwatch.flaps/1", node, items }
    }
}

impl Page for FlapList {
    fn text(&self, style: &Style) -> String {
        let mut table = TextTable::new(&["ID", "TRANSITIONS", "TO PRIMARY", "FIRST", "LAST"]);
        for item in &self.items {
            table.row(vec![
                item.id.clone(),
                item.transitions.to_string(),
                item.primary.to_string(),
                style.time(item.first),
                style.time(item.last),
            ]);
        }
        if table.is_empty() { "no transition is recorded\n".to_owned() } else { table.text(style) }
    }

    fn names(&self) -> Vec<String> {
        self.items.iter().map(|item| item.id.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    #[test]
    fn the_instance_with_the_most_transitions_is_first() {
        let mut flaps = FlapCounter::default();
        samples::history().items.iter().for_each(|item| flaps.add(item));
        insta::assert_snapshot!(flaps.list("node-1".to_owned()).text(&Style::of_tests()));
    }
}
