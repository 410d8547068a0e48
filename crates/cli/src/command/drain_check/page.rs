// SPDX-License-Identifier: Apache-2.0
//! The answer for people.

use vipwatch_api::{DrainCheckDocument, DrainInstance, DrainPeer, DrainReason};

use super::verdict_text;
use crate::output::{Page, Style, TextTable, push_line};

/// Maximum number of reasons of one list that are printed; `-o wide` has no limit.
const MAX_REASONS: usize = 10;

impl Page for DrainCheckDocument {
    fn text(&self, style: &Style) -> String {
        let mut page = String::new();
        push_line(&mut page, &format!("{}: {}", self.node, verdict_text(self.verdict)));
        if !self.instances.is_empty() {
            page.push('\n');
            page.push_str(&instance_table(&self.instances, style));
        }
        push_reasons(&mut page, "not safe:", &self.blocking, style);
        push_reasons(&mut page, "not certain:", &self.uncertain, style);
        push_reasons(&mut page, "while this node is down:", &self.notes, style);
        push_reasons(&mut page, "this node cannot know:", &self.not_known, style);
        page
    }

    fn names(&self) -> Vec<String> {
        let held = self.instances.iter().filter(|instance| instance.holds_addresses);
        held.map(|instance| instance.id.clone()).collect()
    }
}

fn instance_table(instances: &[DrainInstance], style: &Style) -> String {
    let head = ["ID", "ROLE", "AGE", "LAST FAILOVER", "LAST PEER ADVERT", "FINDINGS"];
    let shrinkable = [("FINDINGS", 20), ("ID", 20), ("LAST FAILOVER", 20), ("ID", 12)];
    let mut table = TextTable::new(&head).shrink(&shrinkable);
    for instance in instances {
        table.row(vec![
            instance.id.clone(),
            instance.role.word().to_owned(),
            instance.since.map(|since| style.age(since)).unwrap_or_default(),
            failover_text(instance, style),
            instance.peer.as_ref().map(|peer| peer_text(peer, style)).unwrap_or_default(),
            instance.findings.join(", "),
        ]);
    }
    table.text(style)
}

/// For example `3h ago: preempted-peer`; `-o wide` has the time and the roles.
fn failover_text(instance: &DrainInstance, style: &Style) -> String {
    let Some(failover) = &instance.last_failover else { return String::new() };
    let cause = failover.cause.cause.as_deref().unwrap_or("cause not known");
    if style.is_wide {
        let time = style.time(failover.at);
        return format!("{time}: {} → {} ({cause})", failover.from.word(), failover.to);
    }
    format!("{} ago: {cause}", style.age(failover.at))
}

fn peer_text(peer: &DrainPeer, style: &Style) -> String {
    if peer.advertising {
        return format!("{} now", peer.source);
    }
    format!("{} {} ago", peer.source, style.age(peer.at))
}

/// Adds a list of reasons with a heading; nothing for an empty list.
fn push_reasons(page: &mut String, heading: &str, reasons: &[DrainReason], style: &Style) {
    if reasons.is_empty() {
        return;
    }
    page.push('\n');
    push_line(page, heading);
    let limit = if style.is_wide { usize::MAX } else { MAX_REASONS };
    for reason in reasons.iter().take(limit) {
        let subject = match (&reason.id, &reason.target) {
            (Some(id), _) => format!("{id}: "),
            (None, Some(target)) => format!("target {target}: "),
            (None, None) => String::new(),
        };
        push_line(page, &format!("  {subject}{}", reason.text));
    }
    if reasons.len() > limit {
        push_line(page, &format!("  and {} more (`-o wide` prints all)", reasons.len() - limit));
    }
}
