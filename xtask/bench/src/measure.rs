// SPDX-License-Identifier: Apache-2.0
//! Reads the kernel's counters of processes, and sorts samples.

use std::collections::HashMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Pid, Signal};
use vipwatch_testkit::monitor::parent;

/// Samples in ascending order; none if nothing was measured or a value was not reached.
#[derive(Default)]
pub struct Samples(Vec<f64>);

impl Samples {
    pub fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        Self(values)
    }

    /// The value that `share` of all samples do not exceed; `None` without samples.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an index into a few hundred samples"
    )]
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let last = self.0.len().checked_sub(1)?;
        Some(self.0[((last as f64) * share).ceil() as usize])
    }

    pub fn p50(&self) -> Option<f64> {
        self.quantile(0.5)
    }

    pub fn p99(&self) -> Option<f64> {
        self.quantile(0.99)
    }

    pub fn max(&self) -> Option<f64> {
        self.quantile(1.0)
    }
}

/// A count as a number of the report.
#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
pub fn count(number: usize) -> f64 {
    number as f64
}

/// Writes a file that no program reads yet.
pub fn write_file(path: &Path, text: &str) {
    let file = std::fs::File::create(path);
    file.and_then(|mut file| file.write_all(text.as_bytes())).expect("write a file");
}

/// Kills processes.
pub fn kill_all(pids: impl IntoIterator<Item = i32>) {
    for pid in pids.into_iter().filter_map(Pid::from_raw) {
        let _ = rustix::process::kill_process(pid, Signal::KILL);
    }
}

/// Milliseconds.
pub fn ms(span: Duration) -> f64 {
    span.as_secs_f64() * 1e3
}

/// The pids of a process and its descendants.
pub fn family(pid: i32) -> Vec<i32> {
    families(&[pid])
}

/// The pids of processes and their descendants. `/proc` is read once, because there may be thousands.
pub fn families(pids: &[i32]) -> Vec<i32> {
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let all = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    for pid in all {
        if let Some(parent) = parent(pid) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = pids.to_vec();
    let mut next = 0;
    while next < found.len() {
        found.extend(children.get(&found[next]).into_iter().flatten());
        next += 1;
    }
    found
}

/// Memory in KiB.
#[derive(Clone, Copy, Default)]
pub struct MemoryUse {
    pub rss: f64,
    pub pss: f64,
    pub uss: f64,
    /// Heap, stacks and other memory that is not mapped from a file.
    pub anonymous: f64,
}

/// The memory of all `pids` together.
pub fn memory(pids: &[i32]) -> MemoryUse {
    let mut sum = MemoryUse::default();
    for pid in pids {
        let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
        for line in text.lines() {
            let Some((key, value)) = line.split_once(':') else { continue };
            let value: f64 =
                value.split_whitespace().next().and_then(|value| value.parse().ok()).unwrap_or(0.0);
            match key {
                "Rss" => sum.rss += value,
                "Pss" => sum.pss += value,
                "Anonymous" => sum.anonymous += value,
                "Private_Clean" | "Private_Dirty" => sum.uss += value,
                _ => {}
            }
        }
    }
    sum
}

/// CPU time of `pids` and of their ended children, in ms. The time of the processes themselves is exact to the
/// nanosecond; the time of their children is counted in clock ticks of 10 ms.
pub fn cpu(pids: &[i32]) -> f64 {
    let own = |pid: &i32| scheduled(Path::new(&format!("/proc/{pid}")));
    pids.iter().map(|pid| own(pid) + waited_cpu(*pid)).sum()
}

/// CPU time of all threads of `pid`, in ms.
pub fn thread_cpu(pid: i32) -> f64 {
    threads(pid).map(|thread| scheduled(&thread)).sum()
}

/// The CPU time of a process or thread, in ms, by its directory in `/proc`.
fn scheduled(directory: &Path) -> f64 {
    let text = std::fs::read_to_string(directory.join("schedstat")).unwrap_or_default();
    text.split_whitespace().next().and_then(|ns| ns.parse::<f64>().ok()).unwrap_or(0.0) / 1e6
}

/// The directories of all threads of `pid`.
fn threads(pid: i32) -> impl Iterator<Item = PathBuf> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
    threads.flatten().map(|thread| thread.path())
}

/// How often all threads of `pid` have waited for something since their start: the voluntary context switches.
pub fn wakeups(pid: i32) -> f64 {
    let each = threads(pid).filter_map(|thread| {
        let text = std::fs::read_to_string(thread.join("status")).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        line.trim().parse::<f64>().ok()
    });
    each.sum()
}

/// Number of open files of `pid`.
pub fn fds(pid: i32) -> f64 {
    count(std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().count())
}

/// The kernel's slab memory of the whole machine, in KiB.
pub fn slab() -> f64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("Slab:"));
    let size = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    size.unwrap_or(0.0)
}

/// CPU time of the ended children of `pid`, in ms, counted in clock ticks of 10 ms.
pub fn waited_cpu(pid: i32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields: Vec<f64> = text
        .rsplit_once(')')
        .map(|(_, rest)| rest.split_whitespace().filter_map(|field| field.parse().ok()).collect())
        .unwrap_or_default();
    // Counted from ppid as 0, cutime is 12 and cstime is 13; the state letter before them is no number.
    fields.get(12).unwrap_or(&0.0) * 10.0 + fields.get(13).unwrap_or(&0.0) * 10.0
}

/// The date, the processor and the kernel, in one line.
pub fn machine() -> String {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .and_then(|line| line.split_once(": "))
        .map_or("unknown CPU", |(_, name)| name)
        .to_owned();
    let count = std::thread::available_parallelism().map_or(0, usize::from);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let kernel = kernel.trim().split('-').next().unwrap_or_default().to_owned();
    let date = vipwatch_testkit::run(std::process::Command::new("date").arg("+%Y-%m-%d"));
    let date = date.trim();
    format!("{date}, {count} cores of {cpu}, Linux {kernel}")
}
