// SPDX-License-Identifier: Apache-2.0
//! The checker: judges the recordings of one run. It reads the log of the injector, the capture of the switch, the
//! recordings of `ip monitor` and the answers of the product. It shares no code with the product.
//!
//! ```text
//!   injector.jsonl ─┐                        ┌─ node: roles, causes, conditions of findings ───────┐
//!   monitor.log ────┼─▶ recording ─▶ rules ──┤                                                     ├─▶ verdict
//!   wire.pcap ──────┤                        └─ cluster: states that can stand in etcd, conditions ┘
//!   answers ────────┘
//! ```

mod answers;
mod cluster;
mod findings;
mod node;
mod periods;
mod recording;
mod roles;
pub mod verdict;
mod wire;

use std::path::Path;

use self::recording::RecordedRun;
use self::verdict::{RunVerdict, Strictness};
use crate::LabResult;

/// Judges the recordings in a directory.
pub fn judge(directory: &Path, strictness: Strictness) -> LabResult<RunVerdict> {
    let run = RecordedRun::read(directory)?;
    let mut verdict = RunVerdict {
        seed: run.setup.seed,
        label: run.setup.label.clone(),
        faults: run.faults(),
        is_cluster: run.is_cluster(),
        ..RunVerdict::default()
    };
    if run.is_cluster() {
        cluster::judge(directory, run, strictness, &mut verdict)?;
    } else {
        node::judge(&run, strictness, &mut verdict);
    }
    Ok(verdict)
}
