// SPDX-License-Identifier: Apache-2.0
//! Runs seeds, each in a sandbox of its own, several at the same time, and judges their recordings.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use crate::FaultsError;
use crate::args::{LabKind, RunOptions};
use crate::check::verdict::{RunVerdict, Strictness};
use crate::check::{self};
use crate::cluster;
use crate::inotify;
use crate::lab::set_up_lock;
use crate::summary::Summary;

/// Runs and judges all seeds; prints a line for each and a table at the end.
pub fn run(options: &RunOptions) -> Result<(), FaultsError> {
    let summary = collect(options)?;
    print!("{}", summary.text());
    if let Some(path) = &options.json {
        crate::lab::write_file(path, &format!("{:#}\n", summary.document()))?;
    }
    if summary.is_clean() {
        Ok(())
    } else {
        Err(FaultsError("some seeds failed; see above".to_owned()))
    }
}

/// Runs and judges all seeds.
pub fn collect(options: &RunOptions) -> Result<Summary, FaultsError> {
    inotify::check_limit(options.jobs.min(options.seeds.len()))?;
    let base = options.keep.clone().unwrap_or_else(|| {
        std::env::temp_dir().join(format!("vipwatch-faults-{}", std::process::id()))
    });
    std::fs::create_dir_all(&base)?;
    let began = Instant::now();
    let is_cluster = options.lab == LabKind::Cluster;
    let summary = Mutex::new(Summary { is_cluster, ..Summary::default() });
    in_parallel(options.jobs, &options.seeds, |seed| {
        let verdict = run_seed(options, *seed, &base.join(format!("seed{seed}")));
        let mut summary = summary.lock().unwrap_or_else(PoisonError::into_inner);
        summary.add(verdict);
        let (done, all) = (summary.verdicts.len(), options.seeds.len());
        println!("[{done}/{all} {:.0} s] {}", began.elapsed().as_secs_f64(), summary.last_line());
    });
    if options.keep.is_none() {
        set_up_lock::remove_file(&base);
        // Empty unless a seed has failed.
        let _ = std::fs::remove_dir(&base);
    }
    Ok(summary.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// Does the work for each item, on a number of threads; the results have the order of the items.
pub fn in_parallel<I: Sync, T: Send>(
    threads: usize,
    items: &[I],
    work: impl Fn(&I) -> T + Sync,
) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..threads.min(items.len()) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(index) else { break };
                    let result = work(item);
                    results.lock().unwrap_or_else(PoisonError::into_inner).push((index, result));
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

/// Runs one seed. A run that could not be recorded is a failed one.
pub fn run_seed(options: &RunOptions, seed: u64, directory: &Path) -> RunVerdict {
    let verdict =
        record(options, seed, directory).and_then(|()| judge(directory, strictness(options)));
    let verdict = match verdict {
        Ok(verdict) => verdict,
        Err(FaultsError(error)) => RunVerdict::broken(seed, &error),
    };
    if options.keep.is_none() && verdict.failures.is_empty() {
        let _ = std::fs::remove_dir_all(directory);
    }
    verdict
}

fn strictness(options: &RunOptions) -> Strictness {
    if options.is_quick { Strictness::Presence } else { Strictness::Deadlines }
}

/// Runs the lab of a seed in a sandbox.
fn record(options: &RunOptions, seed: u64, directory: &Path) -> Result<(), FaultsError> {
    let _ = std::fs::remove_dir_all(directory);
    std::fs::create_dir_all(directory)?;
    let mut command = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user", "--map-auto"]);
    }
    command.args(["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--"]);
    let inside = match options.lab {
        LabKind::Nodes => "inside",
        LabKind::Cluster => "inside-cluster",
    };
    command.arg(std::env::current_exe()?).arg(inside).arg(seed.to_string());
    command.arg(options.faults.as_deref().unwrap_or_default());
    command.arg(if options.is_quick { "patient" } else { "exact" });
    command.arg(directory).arg(&options.vipwatch);
    let output = command.stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    let reason = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(FaultsError(format!("the lab failed: {reason}")))
}

/// Whether the recordings in a directory are those of a cluster.
fn is_cluster(directory: &Path) -> bool {
    let setup = std::fs::read_to_string(directory.join("setup.json")).unwrap_or_default();
    let setup: serde_json::Value = serde_json::from_str(&setup).unwrap_or_default();
    setup["kind"] == "cluster"
}

fn judge(directory: &Path, strictness: Strictness) -> Result<RunVerdict, FaultsError> {
    let verdict = if is_cluster(directory) {
        cluster::check::judge(directory, strictness)?
    } else {
        check::judge(directory, strictness)?
    };
    crate::lab::write_file(
        &directory.join("verdict.json"),
        &format!("{:#}\n", verdict.document()),
    )?;
    Ok(verdict)
}

/// Judges the recordings below a directory again, for example after a change of the checker.
pub fn judge_again(directory: &Path) -> Result<(), FaultsError> {
    let mut runs: Vec<PathBuf> = std::fs::read_dir(directory)?
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.join("setup.json").exists())
        .collect();
    if directory.join("setup.json").exists() {
        runs.push(directory.to_owned());
    }
    runs.sort();
    let mut summary = Summary::default();
    for run in runs {
        let verdict = judge(&run, Strictness::Deadlines);
        summary.add(verdict.unwrap_or_else(|FaultsError(error)| {
            RunVerdict::broken(0, &format!("{}: {error}", run.display()))
        }));
        summary.is_cluster |= is_cluster(&run);
        println!("{}", summary.last_line());
    }
    print!("{}", summary.text());
    if summary.is_clean() {
        Ok(())
    } else {
        Err(FaultsError("some runs failed; see above".to_owned()))
    }
}
