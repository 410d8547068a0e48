// SPDX-License-Identifier: Apache-2.0
//! The answer for people.

use vipwatch_api::{DrainCheckDocument, DrainInstance, DrainPeer, DrainQuestion, DrainReason};

use super::verdict_text;
use crate::output::{Page, Style, TextTable, push_line};

/// Maximum number of reasons of one list that are printed; `-o wide` has no limit.
const MAX_REASONS: usize = 10;

impl Page for DrainCheckDocument {
    fn text(&self, style: &Style) -> String {
        let mut page = String::new();
        push_line(&mut page, &format!("{}: {}", self.node, verdict_text(self)));
        if !self.instances.is_empty() {
            page.push('\n');
            page.push_str(&instance_table(self, style));
        }
        let heading = match self.question {
            DrainQuestion::Now => "not drained:",
            DrainQuestion::If => "not safe:",
        };
        push_reasons(&mut page, heading, &self.blocking, style);
        push_reasons(&mut page, "not certain:", &self.uncertain, style);
        push_reasons(&mut page, "notes:", &self.notes, style);
        push_reasons(&mut page, "this node cannot know:", &self.not_known, style);
        page
    }

    fn names(&self) -> Vec<String> {
        let held = self.instances.iter().filter(|instance| instance.holds_addresses);
        held.map(|instance| instance.id.clone()).collect()
    }
}

fn instance_table(check: &DrainCheckDocument, style: &Style) -> String {
    // The successor is the answer to the second question, and the last failover a hint for the first.
    let (third, fourth) = match check.question {
        DrainQuestion::Now => ("LAST FAILOVER", "LAST PEER ADVERT"),
        DrainQuestion::If => ("TAKES OVER", ""),
    };
    let head = ["ID", "ROLE", "AGE", third, fourth, "FINDINGS"];
    let shrinkable = [("FINDINGS", 20), ("ID", 20), (third, 20), ("ID", 12)];
    let head: Vec<&str> = head.into_iter().filter(|name| !name.is_empty()).collect();
    let mut table = TextTable::new(&head).shrink(&shrinkable);
    for instance in &check.instances {
        let mut row = vec![
            instance.id.clone(),
            instance.role.word().to_owned(),
            instance.since.map(|since| style.age(since)).unwrap_or_default(),
        ];
        match check.question {
            DrainQuestion::Now => row.extend([
                failover_text(instance, style),
                instance.peer.as_ref().map(|peer| peer_text(peer, style)).unwrap_or_default(),
            ]),
            DrainQuestion::If => row.push(instance.successors.join(" or ")),
        }
        row.push(instance.findings.join(", "));
        table.row(row);
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
