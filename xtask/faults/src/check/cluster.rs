// SPDX-License-Identifier: Apache-2.0
//! The checker of the cluster: judges the recordings of one run. It shares no code with the product.
//!
//! ```text
//!   injector.jsonl ─▶ facts ─▶ published (which states can stand in etcd) ─▶ conditions ─┐
//!   monitor.log ────┘                                                                    ├─▶ verdict
//!   etcd.jsonl, documents.jsonl, notifications.jsonl, events.jsonl ─▶ recorded ──────────┘
//! ```

mod conditions;
mod deliveries;
mod facts;
mod findings;
mod flapping;
mod groups;
mod node_findings;
mod published;
mod recorded;
mod views;
mod witness;

use std::path::Path;

use self::facts::RecordedFacts;
use self::findings::FindingJudge;
use self::published::{PublishTimes, Published};
use self::recorded::RecordedAnswers;
use crate::FaultsError;
use crate::check::verdict::{RunVerdict, Strictness};

/// Judges the recordings in a directory.
pub fn judge(directory: &Path, strictness: Strictness) -> Result<RunVerdict, FaultsError> {
    let facts = RecordedFacts::read(directory)?;
    let answers = RecordedAnswers::read(directory, &facts)?;
    let mut verdict = RunVerdict {
        seed: facts.run.setup.seed,
        label: facts.run.setup.label.clone(),
        faults: facts.run.faults(),
        ..RunVerdict::default()
    };
    let exact = Published { facts: &facts, times: PublishTimes::EXACT };
    // On a machine of unknown speed, more states are possible; the required findings are the same.
    let published = Published { facts: &facts, times: PublishTimes::of(strictness) };
    let judge = FindingJudge::new(&exact, &published, strictness);
    judge.all(&answers.findings, &mut verdict);
    views::judge(&published, &answers, strictness, &mut verdict);
    deliveries::judge(&facts, &answers, &mut verdict);
    let local = node_findings::read(directory, &facts)?;
    witness::judge(&published, &local, &answers.findings, &mut verdict);
    node_findings::judge(directory, &published, &local, &mut verdict)?;
    Ok(verdict)
}
