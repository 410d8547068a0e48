// SPDX-License-Identifier: Apache-2.0
//! The log lines about findings: one when a finding opens, one for each change, and one when it is over.

use std::collections::BTreeMap;

use vipwatch_api::{FindingItem, FindingState};

use crate::discovery::InstanceConfig;
use crate::log::{addresses, netns_name};

/// Maximum number of log lines for the findings of one name that open, change or close in one comparison. The others are
/// counted in one line: after a start, thousands of instances may have the same finding.
const MAX_LINES: usize = 10;

/// The log lines of one comparison.
#[derive(Debug, Default)]
pub(super) struct FindingLog {
    opened: CountByName,
    changed: CountByName,
    closed: CountByName,
}

/// The number of findings of each name.
#[derive(Debug, Default)]
struct CountByName(BTreeMap<String, usize>);

impl FindingLog {
    /// Writes the line about one change, unless there are too many of the same name. `instance` is `None` for a finding
    /// about the node, and for an instance that is no longer configured.
    pub(super) fn write(
        &mut self,
        finding: &FindingItem,
        state: FindingState,
        instance: Option<&InstanceConfig>,
    ) {
        let FindingItem { name, severity, text, .. } = finding;
        let (netns, address) = (instance.map(netns_name), instance.map(addresses));
        let (id, severity) = (finding.id.as_deref().unwrap_or("node"), severity.word());
        let count = match state {
            FindingState::Open => &mut self.opened,
            FindingState::Changed => &mut self.changed,
            FindingState::Closed => &mut self.closed,
        };
        if !count.allows(name) {
            return;
        }
        match state {
            FindingState::Open | FindingState::Changed => {
                let is_new = state == FindingState::Open;
                let message = if is_new { "audit finding" } else { "finding has changed" };
                tracing::warn!(
                    instance = id,
                    netns,
                    address,
                    finding = name,
                    severity,
                    detail = text,
                    "{message}"
                );
            }
            FindingState::Closed => {
                tracing::info!(instance = id, netns, address, finding = name, "finding is over");
            }
        }
    }

    /// Writes one line for each name with findings that have no line of their own, and begins anew.
    pub(super) fn finish(&mut self) {
        let Self { opened, changed, closed } = std::mem::take(self);
        for (finding, more) in opened.left_out() {
            tracing::warn!(finding, more, "audit findings of further instances");
        }
        for (finding, more) in changed.left_out() {
            tracing::warn!(finding, more, "findings of further instances have changed");
        }
        for (finding, more) in closed.left_out() {
            tracing::info!(finding, more, "findings of further instances are over");
        }
    }
}

impl CountByName {
    /// Counts one; whether it gets a log line of its own.
    fn allows(&mut self, name: &str) -> bool {
        let count = self.0.entry(name.to_owned()).or_default();
        *count += 1;
        *count <= MAX_LINES
    }

    /// The names with findings without a line of their own, and the number of these.
    fn left_out(&self) -> impl Iterator<Item = (&str, usize)> {
        let left = self.0.iter().filter(|(_, count)| **count > MAX_LINES);
        left.map(|(name, count)| (name.as_str(), count - MAX_LINES))
    }
}
