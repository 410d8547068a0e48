// SPDX-License-Identifier: Apache-2.0
//! Measures changes after a pause, when the monitor is no longer in the processor's caches. The changes of a real
//! router are usually hours apart.

use std::ops::RangeInclusive;
use std::time::Duration;

use vipwatch_testkit::{Random, pause};

use super::limit::distance;
use super::{
    ChangeTimes, Program, ProgramPaths, Setup, progress, quantile_rows, set_quantiles, setup,
};
use crate::report::Row;

/// The pause before a change.
pub(super) struct IdleGap {
    name: &'static str,
    milliseconds: RangeInclusive<u64>,
}

pub(super) const FREQUENT: IdleGap = IdleGap { name: "40 to 70 ms", milliseconds: 40..=70 };
pub(super) const RARE: IdleGap = IdleGap { name: "2 s", milliseconds: 2_000..=2_000 };

/// One of the two measured programs with its samples.
struct Measured {
    program: Program,
    setup: Setup,
    times: ChangeTimes,
}

/// Measures the drop-in and the limit by turns, so that both run under the same conditions.
pub(super) fn run(paths: &ProgramPaths, gap: &IdleGap, count: usize, rows: &mut Vec<Row>) {
    let mut both = [Program::Ours, Program::Limit].map(|program| {
        progress(&format!("change after {}", gap.name), program);
        Measured { program, setup: setup(paths, program), times: ChangeTimes::default() }
    });
    let mut random = Random::new(1);
    let mut wait = || gap.wait(&mut random);
    for turn in 0..count {
        for one in &mut both {
            one.setup.sample(turn % 2 == 0, &mut wait, &mut one.times);
        }
    }
    let names = ["file", "agent"].map(|what| format!("VIP change after {} → {what}", gap.name));
    let mut tables = names.map(|name| quantile_rows(&name));
    for Measured { program, times, .. } in both {
        for (table, samples) in tables.iter_mut().zip([times.files, times.reports]) {
            set_quantiles(table, program, samples);
        }
    }
    for [half, most] in tables {
        let distance = distance(&half);
        rows.extend([half, most, distance]);
    }
}

impl IdleGap {
    /// Waits for a pseudo-random time of the range; the sequence is the same in every run.
    fn wait(&self, random: &mut Random) {
        let times: Vec<u64> = self.milliseconds.clone().collect();
        pause(Duration::from_millis(times[random.below(times.len())]));
    }
}
