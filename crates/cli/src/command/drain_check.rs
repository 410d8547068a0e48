// SPDX-License-Identifier: Apache-2.0
//! `vipwatch drain-check`: prints whether anything is still on this node, or whether it could be taken down.
//!
//! The rules are [`vipwatch_api::drain_check`]. This module reads the facts from the node, waits with `--wait`, and
//! prints the answer.

mod facts;
mod page;
mod wait;

use vipwatch_api::{DrainCheckDocument, DrainQuestion, DrainReason, DrainVerdict, drain_check};

use self::facts::{AuditMode, read_facts};
use crate::args::DrainCheckArgs;
use crate::failure::{CommandError, ExitStatus};
use crate::output;
use crate::source::query_node;

pub(crate) fn run(options: &DrainCheckArgs) -> Result<(), CommandError> {
    let question = if options.is_if { DrainQuestion::If } else { DrainQuestion::Now };
    let check = match options.wait {
        None => {
            let facts = query_node(&options.node, |node| read_facts(node, AuditMode::Now))?;
            drain_check(question, facts)
        }
        Some(limit) => wait::until_drained(&options.node, limit)?,
    };
    output::show(&options.node.output, &check);
    result(&check)
}

/// The exit code and the message on standard error.
pub(in crate::command) fn result(check: &DrainCheckDocument) -> Result<(), CommandError> {
    let (code, reasons) = match check.verdict {
        DrainVerdict::Drained | DrainVerdict::Ready => return Ok(()),
        DrainVerdict::NotDrained | DrainVerdict::NotSafe => (ExitStatus::No, &check.blocking),
        DrainVerdict::Unknown => (ExitStatus::NotKnown, &check.uncertain),
    };
    let text = format!("{}: {}", verdict_text(check), summary(reasons));
    Err(CommandError::new(code, text))
}

fn verdict_text(check: &DrainCheckDocument) -> &'static str {
    match (check.verdict, check.question) {
        (DrainVerdict::Drained, _) => "drained",
        (DrainVerdict::Ready, _) => "ready: other nodes would take over",
        (DrainVerdict::NotDrained, _) => "not drained",
        (DrainVerdict::NotSafe, _) => "not safe to take this node down",
        (DrainVerdict::Unknown, DrainQuestion::Now) => "cannot know whether this node is drained",
        (DrainVerdict::Unknown, DrainQuestion::If) => {
            "cannot know whether it is safe to take this node down"
        }
    }
}

/// The number of reasons with each name, in one line: `2 primary-here, 1 delivery-pending`.
fn summary(reasons: &[DrainReason]) -> String {
    let mut counts: Vec<(&str, usize)> = Vec::new();
    for reason in reasons {
        match counts.iter_mut().find(|(name, _)| *name == reason.name) {
            Some((_, count)) => *count += 1,
            None => counts.push((&reason.name, 1)),
        }
    }
    let texts = counts.iter().map(|(name, count)| match *name {
        "findings-too-young" | "failover-young" => "a failover may still be going on".to_owned(),
        _ => format!("{count} {name}"),
    });
    texts.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
