// SPDX-License-Identifier: Apache-2.0
//! The checker: judges the recordings of one run. It reads the log of the injector, the capture of the switch, the
//! recordings of `ip monitor` and the answers of the nodes. It shares no code with the product.
//!
//! ```text
//!   injector.jsonl ──▶ processes ─┐
//!   monitor.log ─────▶ roles ─────┼──▶ conditions ──▶ findings that must open and close ──┐
//!   wire.pcap ───────▶ wire ──────┘──▶ causes ──────▶ words that are right ───────────────┼──▶ verdict
//!   history.json, events.jsonl ──────▶ answers ───────────────────────────────────────────┘
//! ```

pub mod answers;
mod causes;
pub mod cluster;
mod conditions;
mod findings;
mod processes;
pub mod recorded_run;
pub mod roles;
mod run_record;
mod transitions;
pub mod verdict;
pub mod wire;

use std::path::Path;

use self::recorded_run::RecordedRun;
use self::run_record::RunRecord;
use self::verdict::{RunVerdict, Strictness};
use crate::FaultsError;

/// Whether the recordings in a directory are those of a cluster.
pub fn is_cluster(directory: &Path) -> bool {
    RecordedRun::read(directory).is_ok_and(|run| run.setup.times.is_some())
}

/// Judges the recordings in a directory.
pub fn judge(directory: &Path, strictness: Strictness) -> Result<RunVerdict, FaultsError> {
    if is_cluster(directory) {
        return cluster::judge(directory, strictness);
    }
    let record = RunRecord::read(directory)?;
    let mut verdict = RunVerdict {
        seed: record.run.setup.seed,
        label: record.run.setup.label.clone(),
        faults: record.run.faults(),
        ..RunVerdict::default()
    };
    for (node, facts) in record.nodes.iter().enumerate() {
        for problem in &facts.answers.problems {
            verdict.fail("answers", format!("node {node}: {problem}"));
        }
        transitions::judge(&record, node, strictness, &mut verdict);
        causes::judge(&record, node, strictness, &mut verdict);
        let conditions = conditions::of_node(&record, node);
        findings::judge(&record, node, &conditions, strictness, &mut verdict);
    }
    Ok(verdict)
}
