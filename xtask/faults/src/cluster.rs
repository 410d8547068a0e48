// SPDX-License-Identifier: Apache-2.0
//! `cargo xtask faults cluster`: three hosts with real keepalived, real etcd and `vipwatch node`, faults of all of them, and
//! a checker that judges the findings of the cluster from the log of the injector and the recordings.

pub mod check;
mod inject;
mod lab;
mod schedule;
mod setup;

use std::path::Path;

use crate::FaultsError;
use crate::inject::Pace;
use crate::lab::set_up_lock::SetUpLock;

/// The seeds of `cluster --quick`.
pub const QUICK_SEEDS: [u64; 3] = [1, 2, 3];

/// The faults of each seed of `cluster --quick`.
pub fn quick_faults(seed: u64) -> &'static str {
    match seed {
        1 => "data-partition,kill-vipwatch",
        2 => "stop-all-keepalived,cut-from-etcd",
        _ => "kill-reporter-with-finding,quorum-loss",
    }
}

/// Whether a text names faults of a cluster.
#[cfg(test)]
pub fn are_faults(words: &str) -> bool {
    schedule::chosen(words).is_ok()
}

/// One run, in its sandbox.
pub fn inside(
    seed: u64,
    faults: &str,
    pace: Pace,
    directory: &Path,
    vipwatch: &Path,
) -> Result<(), FaultsError> {
    let mut setup = setup::ClusterRunSetup::of(seed);
    let steps = match (faults, pace) {
        ("", Pace::Patient) => schedule::chosen(quick_faults(seed))?,
        ("", Pace::Exact) => schedule::schedule(seed),
        (faults, _) => schedule::chosen(faults)?,
    };
    setup.has_own_clocks = steps.iter().any(|step| step.fault == schedule::ClusterFault::ClockStep);
    let base = directory.parent().unwrap_or(directory);
    let lock = SetUpLock::wait(base)?;
    let mut lab = lab::ClusterLab::start(setup, directory, vipwatch)?;
    lab.wait_until_settled()?;
    drop(lock);
    inject::inject(&mut lab, &steps, pace)
}
