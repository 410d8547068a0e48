// SPDX-License-Identifier: Apache-2.0
//! Runs the seeds of the simulation. `VIPWATCH_SIM_SEED` runs one and prints its trace; `VIPWATCH_SIM_SEEDS`, `VIPWATCH_SIM_FIRST` and
//! `VIPWATCH_SIM_FAULTS` choose others. `VIPWATCH_SIM_SECONDS` runs as many as fit into this time.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::fault::FaultKind;
use super::run::{RunResult, run_seed};

/// The number of seeds without `VIPWATCH_SIM_SEEDS`.
const SEEDS: u64 = 200;

/// The number of failed seeds after which no more are run.
const MAX_FAILED: usize = 20;

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn kinds() -> Vec<FaultKind> {
    variable("VIPWATCH_SIM_FAULTS").map_or_else(FaultKind::usual, |words| FaultKind::parse(&words))
}

/// Runs the seeds on two threads, until the time is over if there is one; returns their number, and those that failed.
fn run_seeds(
    first: u64,
    count: u64,
    limit: Option<Duration>,
    kinds: &[FaultKind],
) -> (u64, Vec<RunResult>) {
    let (next, failed) = (AtomicU64::new(first), Mutex::new(Vec::new()));
    let (began, run_count) = (Instant::now(), AtomicU64::new(0));
    let run = || {
        while let seed = next.fetch_add(1, Ordering::Relaxed)
            && seed < first + count
            && limit.is_none_or(|limit| began.elapsed() < limit)
        {
            let result = run_seed(seed, kinds);
            run_count.fetch_add(1, Ordering::Relaxed);
            let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
            if !result.failures.is_empty() {
                failed.push(result);
            }
            if failed.len() >= MAX_FAILED {
                next.store(first + count, Ordering::Relaxed);
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(run);
        scope.spawn(run);
    });
    let mut failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    failed.sort_by_key(|result| result.seed);
    (run_count.into_inner(), failed)
}

#[test]
fn a_seed_has_the_same_trace_twice() {
    let mut verdicts = 0;
    for seed in 1..4 {
        let (first, second) =
            (run_seed(seed, &FaultKind::usual()), run_seed(seed, &FaultKind::usual()));
        let same = first.trace.lines().zip(second.trace.lines()).find(|(one, other)| one != other);
        assert_eq!(same, None, "seed {seed}");
        assert_eq!(first.trace.lines().count(), second.trace.lines().count(), "seed {seed}");
        assert!(first.opened > 0, "seed {seed} opens no finding:\n{}", first.trace);
        verdicts += first.yes_verdicts;
    }
    assert!(verdicts > 0, "no node could be taken down");
}

#[test]
fn the_properties_hold_for_each_seed() {
    if let Some(seed) = variable("VIPWATCH_SIM_SEED") {
        let result = run_seed(seed.parse().unwrap(), &kinds());
        println!("{}", result.trace);
        assert!(result.failures.is_empty(), "seed {seed}: {:#?}", result.failures);
        return;
    }
    let limit = variable("VIPWATCH_SIM_SECONDS");
    let limit = limit.map(|seconds| Duration::from_secs(seconds.parse().unwrap()));
    let usual = if limit.is_some() { u64::MAX / 2 } else { SEEDS };
    let count = variable("VIPWATCH_SIM_SEEDS").map_or(usual, |count| count.parse().unwrap());
    let first = variable("VIPWATCH_SIM_FIRST").map_or(1, |first| first.parse().unwrap());
    let (run, failed) = run_seeds(first, count, limit, &kinds());
    println!("simulation: {run} seeds from {first} on, {} failed", failed.len());
    let mut text = String::new();
    for result in &failed {
        let _ = writeln!(text, "seed {}: {:#?}", result.seed, result.failures);
    }
    let trace = failed.first().map_or("", |result| result.trace.as_str());
    assert!(failed.is_empty(), "{trace}\n{text}{} of {run} seeds failed", failed.len());
}
