// SPDX-License-Identifier: Apache-2.0
//! Runs seeds, each in a sandbox of its own, several at the same time, and judges their recordings.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::args::RunOptions;
use crate::check;
use crate::check::verdict::{RunVerdict, Strictness};
use crate::fault_table::{ClusterAct, FaultAct};
use crate::inject;
use crate::inotify;
use crate::lab::FaultLab;
use crate::lab::set_up_lock::{self, SetUpLock};
use crate::schedule;
use crate::setup::LabSetup;
use crate::summary::Summary;
use crate::{FaultsError, LabResult};

/// Runs and judges all seeds; prints a line for each and a table at the end.
pub fn run(options: &RunOptions) -> LabResult {
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
        let mut summary = locked(&summary);
        summary.verdicts.push(verdict);
        let (done, all) = (summary.verdicts.len(), seeds.len());
        println!("[{done}/{all} {:.0} s] {}", began.elapsed().as_secs_f64(), summary.last_line());
    });
    if options.keep.is_none() {
        set_up_lock::remove_file(&base);
        // Empty unless a seed has failed.
        let _ = std::fs::remove_dir(&base);
    }
    report(&locked(&summary), options.json.as_deref())
}

/// Prints the tables, and writes them to a file; an error if a run failed.
fn report(summary: &Summary, file: Option<&Path>) -> LabResult {
    print!("{}", summary.text());
    if let Some(path) = file {
        crate::lab::write_file(path, &format!("{:#}\n", summary.document()))?;
    }
    if summary.is_clean() {
        return Ok(());
    }
    Err(FaultsError("some seeds failed; see above".to_owned()))
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does the work for each item, on a number of threads; the results have the order of the items.
pub fn in_parallel<I: Sync, T: Send>(
    threads: usize,
    items: &[I],
    work: impl Fn(&I) -> T + Sync,
) -> Vec<T> {
    let next = Mutex::new(items.iter().enumerate());
    let results = Mutex::new(BTreeMap::new());
    let take = || locked(&next).next();
    std::thread::scope(|scope| {
        for _ in 0..threads.min(items.len()) {
            scope.spawn(|| {
                while let Some((index, item)) = take() {
                    let result = work(item);
                    locked(&results).insert(index, result);
                }
            });
        }
    });
    results.into_inner().unwrap_or_else(PoisonError::into_inner).into_values().collect()
}

/// Runs one seed. A run that could not be recorded is a failed one.
pub fn run_seed(options: &RunOptions, seed: u64, directory: &Path) -> RunVerdict {
    let recorded = record(options, seed, directory);
    let verdict = recorded.and_then(|()| judge(directory, options.strictness()));
    let verdict = verdict.unwrap_or_else(|FaultsError(error)| RunVerdict::broken(seed, &error));
    if options.keep.is_none() && verdict.failures.is_empty() {
        let _ = std::fs::remove_dir_all(directory);
    }
    verdict
}

/// Runs the lab of a seed in a sandbox.
fn record(options: &RunOptions, seed: u64, directory: &Path) -> LabResult {
    let _ = std::fs::remove_dir_all(directory);
    std::fs::create_dir_all(directory)?;
    // The lab ends together with this process.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--", "unshare"]);
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user", "--map-auto"]);
    }
    command.args(["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--"]);
    command.arg(std::env::current_exe()?).arg("--inside").arg(directory);
    command.args(["--seed", &seed.to_string()]).arg("--vipwatch").arg(&options.vipwatch);
    command.args(options.faults.iter().flat_map(|faults| ["--faults", faults]));
    command.args(options.quick.then_some("--quick"));
    command.arg(options.lab.word());
    let output = command.stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    let reason = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(FaultsError(format!("the lab failed: {reason}")))
}

/// One run, in its sandbox.
pub fn run_inside(options: &RunOptions, directory: &Path) -> LabResult {
    let seed = options.seed.unwrap_or_default();
    let has_down_timer = crate::lab::keepalived::has_down_timer()?;
    let mut setup = LabSetup::of(options.lab, seed).with_known_words(has_down_timer);
    let steps = schedule::steps(options, &setup)?;
    let mut acts = steps.iter().flat_map(|step| &step.kind.begin);
    let has_clock_step = acts.any(|act| matches!(act, FaultAct::Cluster(ClusterAct::Clock(_))));
    if let Some(cluster) = &mut setup.cluster {
        cluster.has_own_clocks = has_clock_step;
    }
    let lock = SetUpLock::wait(directory.parent().unwrap_or(directory))?;
    let mut lab = FaultLab::start(setup, directory, &options.vipwatch)?;
    lab.wait_until_settled()?;
    drop(lock);
    inject::inject(&mut lab, &steps, options.strictness())
}

/// Judges the recordings in a directory, and writes the verdict there.
fn judge(directory: &Path, strictness: Strictness) -> LabResult<RunVerdict> {
    let verdict = check::judge(directory, strictness)?;
    let text = serde_json::to_string_pretty(&verdict)? + "\n";
    crate::lab::write_file(&directory.join("verdict.json"), &text)?;
    Ok(verdict)
}

/// Judges the recordings below a directory again, for example after a change of the checker.
pub fn judge_again(directory: &Path) -> LabResult {
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
    report(&summary, None)
}
