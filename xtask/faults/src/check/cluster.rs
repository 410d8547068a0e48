// SPDX-License-Identifier: Apache-2.0
//! The rules of the cluster: from the facts follow the states that can stand in etcd, and from these states the findings,
//! views and deliveries that are right.

mod answers;
mod conditions;
mod deliveries;
mod facts;
mod findings;
mod flapping;
mod groups;
mod local;
mod published;
mod reach;
mod views;

use std::path::Path;

use self::answers::RecordedAnswers;
use self::facts::RecordedFacts;
use self::published::{PublishTimes, Published};
use super::recording::RecordedRun;
use super::verdict::{RunVerdict, Strictness};
use crate::LabResult;

/// Judges the findings of the cluster, the documents of the nodes, and the notifications.
pub fn judge(
    directory: &Path,
    run: RecordedRun,
    strictness: Strictness,
    verdict: &mut RunVerdict,
) -> LabResult {
    let facts = RecordedFacts::of(run)?;
    let answers = RecordedAnswers::read(directory, &facts)?;
    let exact = Published { facts: &facts, times: PublishTimes::EXACT };
    // On a machine of unknown speed, more states are possible; the required findings are the same.
    let published = Published { facts: &facts, times: PublishTimes::of(strictness) };
    findings::judge(&exact, &published, &answers.findings, strictness, verdict);
    views::judge(&published, &answers, strictness, verdict);
    deliveries::judge(&facts, &answers, verdict);
    local::judge(&published, &answers, verdict);
    Ok(())
}
