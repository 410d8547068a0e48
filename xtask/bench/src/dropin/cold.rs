// SPDX-License-Identifier: Apache-2.0
//! Measures changes after a pause, when the monitor is no longer in the processor's caches. The changes of a real
//! router are usually hours apart.

use std::ops::RangeInclusive;
use std::time::Duration;

use vipwatch_testkit::pause;

use super::limit::distance;
use super::{Program, ProgramPaths, Setup, progress, set, setup};
use crate::measure::Samples;
use crate::report::Row;

/// The pause before a change.
pub(super) struct IdleGap {
    name: &'static str,
    milliseconds: RangeInclusive<u64>,
}

pub(super) const FREQUENT: IdleGap = IdleGap { name: "40 to 70 ms", milliseconds: 40..=70 };
pub(super) const RARE: IdleGap = IdleGap { name: "2 s", milliseconds: 2_000..=2_000 };

/// One of the two measured programs with its samples, in milliseconds.
struct Measured {
    program: Program,
    setup: Setup,
    files: Vec<f64>,
    reports: Vec<f64>,
}

/// Measures the drop-in and the limit by turns, so that both run under the same conditions.
pub(super) fn run(paths: &ProgramPaths, gap: &IdleGap, count: usize, rows: &mut Vec<Row>) {
    let mut both = [Program::Ours, Program::Limit].map(|program| {
        progress(&format!("change after {}", gap.name), program);
        Measured { program, setup: setup(paths, program), files: Vec::new(), reports: Vec::new() }
    });
    let mut random = 0x9e37_79b9_7f4a_7c15;
    for turn in 0..count {
        let is_primary = turn % 2 == 0;
        for one in &mut both {
            // The file and the agent are measured in separate changes: see `change` in the parent module.
            gap.wait(&mut random);
            one.files.push(one.setup.time_to_file(is_primary));
            one.setup.settle(if is_primary { "primary" } else { "backup" });
            gap.wait(&mut random);
            one.reports.extend(one.setup.time_to_agent(!is_primary));
            one.setup.change(is_primary);
            one.setup.settle(if is_primary { "primary" } else { "backup" });
        }
    }
    for (what, of) in
        [("file", (|one| &one.files) as fn(&Measured) -> &Vec<f64>), ("agent", |one| &one.reports)]
    {
        let name = |share: &str| format!("VIP change after {} → {what}, {share}", gap.name);
        let mut half = Row::new(name("p50"), "ms");
        let mut most = Row::new(name("p99"), "ms");
        for one in &both {
            let samples = Samples::of(of(one).clone());
            set(&mut half, one.program, samples.as_ref().map(|samples| samples.quantile(0.5)));
            set(&mut most, one.program, samples.as_ref().map(|samples| samples.quantile(0.99)));
        }
        let distance = distance(&half);
        rows.extend([half, most, distance]);
    }
}

impl IdleGap {
    /// Waits for a pseudo-random time of the range; the sequence is the same in every run.
    fn wait(&self, random: &mut u64) {
        *random ^= *random << 13;
        *random ^= *random >> 7;
        *random ^= *random << 17;
        let (from, to) = (*self.milliseconds.start(), *self.milliseconds.end());
        pause(Duration::from_millis(from + *random % (to - from + 1)));
    }
}
