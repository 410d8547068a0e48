// SPDX-License-Identifier: Apache-2.0
//! Runs seeds, each in a sandbox of its own, several at the same time, and judges their recordings.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use crate::FaultsError;
use crate::args::RunOptions;
use crate::check;
use crate::check::verdict::{RunVerdict, Strictness};
use crate::fault_table::FaultAct;
use crate::inject::{self, Pace};
use crate::inotify;
use crate::lab::FaultLab;
use crate::lab::set_up_lock::{self, SetUpLock};
use crate::schedule;
use crate::setup::LabSetup;
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
    let seeds = options.seeds();
    inotify::check_limit(options.jobs.min(seeds.len()))?;
    let base = options.keep.clone().unwrap_or_else(|| {
        std::env::temp_dir().join(format!("vipwatch-faults-{}", std::process::id()))
    });
    std::fs::create_dir_all(&base)?;
    let began = Instant::now();
    let summary = Mutex::new(Summary::default());
    in_parallel(options.jobs, &seeds, |seed| {
        let verdict = run_seed(options, *seed, &base.join(format!("seed{seed}")));
        let mut summary = summary.lock().unwrap_or_else(PoisonError::into_inner);
        summary.verdicts.push(verdict);
        let (done, all) = (summary.verdicts.len(), seeds.len());
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
    if options.quick { Strictness::Presence } else { Strictness::Deadlines }
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
    command.arg(std::env::current_exe()?).arg(options.lab.word()).arg("--inside").arg(directory);
    command.args(["--seed", &seed.to_string()]).arg("--vipwatch").arg(&options.vipwatch);
    command.args(options.faults.iter().flat_map(|faults| ["--faults", faults]));
    command.args(options.quick.then_some("--quick"));
    let output = command.stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    let reason = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(FaultsError(format!("the lab failed: {reason}")))
}

/// One run, in its sandbox.
pub fn run_inside(options: &RunOptions, directory: &Path) -> Result<(), FaultsError> {
    let seed = options.seed.unwrap_or_default();
    let mut setup = LabSetup::of(options.lab, seed);
    let pace = if options.quick { Pace::Patient } else { Pace::Exact };
    let steps = schedule::steps(options, &setup)?;
    let mut acts = steps.iter().flat_map(|step| step.kind.begin);
    let has_clock_step = acts.any(|act| matches!(act, FaultAct::Clock(_)));
    if let Some(cluster) = &mut setup.cluster {
        cluster.has_own_clocks = has_clock_step;
    }
    let lock = SetUpLock::wait(directory.parent().unwrap_or(directory))?;
    let mut lab = FaultLab::start(setup, directory, &options.vipwatch)?;
    lab.wait_until_settled()?;
    drop(lock);
    inject::inject(&mut lab, &steps, pace)
}

/// Judges the recordings in a directory, and writes the verdict there.
fn judge(directory: &Path, strictness: Strictness) -> Result<RunVerdict, FaultsError> {
    let verdict = check::judge(directory, strictness)?;
    let text = serde_json::to_string_pretty(&verdict)? + "\n";
    crate::lab::write_file(&directory.join("verdict.json"), &text)?;
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
        summary.verdicts.push(verdict.unwrap_or_else(|FaultsError(error)| {
            RunVerdict::broken(0, &format!("{}: {error}", run.display()))
        }));
        println!("{}", summary.last_line());
    }
    print!("{}", summary.text());
    if summary.is_clean() {
        Ok(())
    } else {
        Err(FaultsError("some runs failed; see above".to_owned()))
    }
}
