// SPDX-License-Identifier: Apache-2.0
//! Runs steps beside each other: each is a process with a log of its own, and starts when the steps before it have ended.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags};

use crate::{TaskError, build, sandbox};

/// The internal command of `xtask` for a step.
pub const STEP: &str = "step";

/// One step.
pub struct Step {
    /// The name in the table; no other step has it.
    pub name: String,
    /// The arguments of `xtask step`.
    pub args: Vec<String>,
    /// The names of the steps that must have succeeded.
    pub after: Vec<String>,
    /// Steps in one queue run one after the other, in the order of the list.
    pub queue: &'static str,
    /// Whether it takes only the CPU time that other steps leave.
    pub is_idle: bool,
    /// Whether its output is on the terminal instead of in its log.
    pub is_shown: bool,
}

/// How a step ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StepEnd {
    Ended {
        is_ok: bool,
    },
    /// A step before it failed.
    NotStarted,
}

/// A step that has ended.
pub struct StepResult {
    pub name: String,
    pub end: StepEnd,
    pub wall: Duration,
    /// CPU time of its process and all reaped descendants.
    pub cpu: Duration,
    /// Time from the run's start to the step's end.
    pub ended: Duration,
    /// Whether its output is in [`log_path`].
    pub has_log: bool,
}

/// The directory with the logs and results of the steps.
pub fn directory() -> PathBuf {
    build::target_directory().join("test")
}

/// The log of a step.
pub fn log_path(name: &str) -> PathBuf {
    directory().join(format!("{name}.log"))
}

/// Runs all steps; the results have the order in which the steps ended.
pub fn run(mut waiting: Vec<Step>) -> Result<Vec<StepResult>, TaskError> {
    std::fs::create_dir_all(directory())?;
    let program = kept_program()?;
    let began = Instant::now();
    let report = |text: &str| println!("[{:>4} s] {text}", began.elapsed().as_secs());
    let mut running: Vec<RunningStep> = Vec::new();
    let mut results: Vec<StepResult> = Vec::new();
    while !waiting.is_empty() || !running.is_empty() {
        let mut index = 0;
        while let Some(step) = waiting.get(index) {
            match readiness(step, &waiting[..index], &running, &results) {
                Readiness::Ready => {
                    report(&format!("{} …", step.name));
                    running.push(RunningStep::start(waiting.remove(index), program)?);
                }
                Readiness::NeverReady => {
                    let step = waiting.remove(index);
                    report(&format!("{}: not started, because a step before it failed", step.name));
                    results.push(StepResult::not_started(step.name));
                    // A step in front of it may have waited for its queue.
                    index = 0;
                }
                Readiness::Waits => index += 1,
            }
        }
        if running.is_empty() {
            continue;
        }
        let mut result = wait_for_any(&mut running)?;
        result.ended = began.elapsed();
        let word = if result.end == (StepEnd::Ended { is_ok: true }) { "done" } else { "FAILED" };
        let (wall, cpu) = (result.wall.as_secs(), result.cpu.as_secs());
        report(&format!("{}: {word} ({wall} s, {cpu} s of CPU time)", result.name));
        results.push(result);
    }
    Ok(results)
}

/// A second name of this program. `cargo xtask` may be built again during the run, which removes the first one.
fn kept_program() -> Result<&'static Path, TaskError> {
    static KEPT: OnceLock<PathBuf> = OnceLock::new();
    if let Some(kept) = KEPT.get() {
        return Ok(kept);
    }
    let (current, kept) = (std::env::current_exe()?, directory().join("xtask"));
    if kept.exists() {
        std::fs::remove_file(&kept)?;
    }
    if std::fs::hard_link(&current, &kept).is_err() {
        std::fs::copy(&current, &kept)?;
    }
    Ok(KEPT.get_or_init(|| kept))
}

enum Readiness {
    Ready,
    Waits,
    /// A step before it failed or was not started.
    NeverReady,
}

fn readiness(
    step: &Step,
    in_front: &[Step],
    running: &[RunningStep],
    results: &[StepResult],
) -> Readiness {
    let end = |name: &String| results.iter().find(|result| result.name == *name);
    let is_ok = |result: &StepResult| result.end == StepEnd::Ended { is_ok: true };
    if step.after.iter().filter_map(end).any(|result| !is_ok(result)) {
        return Readiness::NeverReady;
    }
    let is_queue_free = !running.iter().any(|other| other.step.queue == step.queue)
        && !in_front.iter().any(|other| other.queue == step.queue);
    if is_queue_free && step.after.iter().all(|name| end(name).is_some()) {
        Readiness::Ready
    } else {
        Readiness::Waits
    }
}

struct RunningStep {
    step: Step,
    process: Child,
    /// Readable when the process has ended.
    end: OwnedFd,
    began: Instant,
}

impl RunningStep {
    fn start(step: Step, program: &Path) -> Result<Self, TaskError> {
        let mut command = sandbox::bound_command();
        if step.is_idle {
            command.args(["chrt", "--idle", "0"]);
        }
        command.arg(program).arg(STEP).args(&step.args);
        command.stdin(Stdio::null());
        if !step.is_shown {
            let log = File::create(log_path(&step.name))?;
            command.stdout(log.try_clone()?).stderr(log);
        }
        let process = command.spawn()?;
        let pid = i32::try_from(process.id()).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| TaskError("a process without an id".to_owned()))?;
        let end = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
        Ok(Self { step, process, end, began: Instant::now() })
    }
}

/// Waits until one step has ended, and reads its CPU time before the kernel forgets it.
fn wait_for_any(running: &mut Vec<RunningStep>) -> Result<StepResult, TaskError> {
    let mut ends: Vec<PollFd> =
        running.iter().map(|step| PollFd::new(&step.end, PollFlags::IN)).collect();
    rustix::io::retry_on_intr(|| rustix::event::poll(&mut ends, None))?;
    let ended = ends.iter().position(|end| !end.revents().is_empty()).unwrap_or_default();
    drop(ends);
    let mut ended = running.remove(ended);
    let cpu = cpu_time(ended.process.id()).unwrap_or_default();
    let status: ExitStatus = ended.process.wait()?;
    let end = StepEnd::Ended { is_ok: status.success() };
    let (wall, has_log) = (ended.began.elapsed(), !ended.step.is_shown);
    Ok(StepResult { name: ended.step.name, end, wall, cpu, ended: Duration::ZERO, has_log })
}

/// CPU time of a process and all reaped descendants: fields 14 to 17 of `proc_pid_stat(5)`.
fn cpu_time(process: u32) -> Option<Duration> {
    let path = Path::new("/proc").join(process.to_string()).join("stat");
    let text = std::fs::read_to_string(path).ok()?;
    let fields = text.rsplit_once(')')?.1.split_whitespace().skip(11).take(4);
    let ticks: u64 = fields.map(|field| field.parse::<u64>().unwrap_or_default()).sum();
    Some(Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second()))
}

impl StepResult {
    fn not_started(name: String) -> Self {
        let none = Duration::ZERO;
        Self { name, end: StepEnd::NotStarted, wall: none, cpu: none, ended: none, has_log: false }
    }
}
