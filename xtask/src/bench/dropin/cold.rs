//! Changes after a pause, when nothing of the monitor is in the processor's caches: most changes of a real
//! router come hours apart.

use std::ops::RangeInclusive;
use std::time::Duration;

use vipwatch_testkit::pause;

use super::limit::distance;
use super::{PeerPrograms, Stage, Who, say, set, stage};
use crate::bench::measure::Samples;
use crate::bench::report::Row;

/// How long nothing happens before a change.
pub(super) struct IdleGap {
    name: &'static str,
    milliseconds: RangeInclusive<u64>,
}

pub(super) const FREQUENT: IdleGap = IdleGap { name: "40 to 70 ms", milliseconds: 40..=70 };
pub(super) const RARE: IdleGap = IdleGap { name: "2 s", milliseconds: 2_000..=2_000 };

/// One of the two programs, and its samples in milliseconds.
struct Measured {
    who: Who,
    stage: Stage,
    files: Vec<f64>,
    letters: Vec<f64>,
}

/// Ours and the limit by turns, so that both meet the same machine.
pub(super) fn run(homes: &PeerPrograms, gap: &IdleGap, count: usize, rows: &mut Vec<Row>) {
    let mut both = [Who::Ours, Who::Limit].map(|who| {
        say(&format!("change after {}", gap.name), who);
        Measured { who, stage: stage(homes, who), files: Vec::new(), letters: Vec::new() }
    });
    let mut random = 0x9e37_79b9_7f4a_7c15;
    for turn in 0..count {
        let is_primary = turn % 2 == 0;
        for one in &mut both {
            // The file by looking at it all the time, the agent by waiting for it: see `change`.
            gap.wait(&mut random);
            one.files.push(one.stage.time_to_file(is_primary));
            one.stage.settle(if is_primary { "primary" } else { "backup" });
            gap.wait(&mut random);
            one.letters.extend(one.stage.time_to_agent(!is_primary));
            one.stage.change(is_primary);
            one.stage.settle(if is_primary { "primary" } else { "backup" });
        }
    }
    for (what, of) in
        [("file", (|one| &one.files) as fn(&Measured) -> &Vec<f64>), ("agent", |one| &one.letters)]
    {
        let name = |share: &str| format!("VIP change after {} → {what}, {share}", gap.name);
        let mut half = Row::new(name("p50"), "ms");
        let mut most = Row::new(name("p99"), "ms");
        for one in &both {
            let samples = Samples::of(of(one).clone());
            set(&mut half, one.who, samples.as_ref().map(|samples| samples.quantile(0.5)));
            set(&mut most, one.who, samples.as_ref().map(|samples| samples.quantile(0.99)));
        }
        let distance = distance(&half);
        rows.extend([half, most, distance]);
    }
}

impl IdleGap {
    /// Lets a time pass that differs from change to change, and is the same in every run.
    fn wait(&self, random: &mut u64) {
        *random ^= *random << 13;
        *random ^= *random >> 7;
        *random ^= *random << 17;
        let (from, to) = (*self.milliseconds.start(), *self.milliseconds.end());
        pause(Duration::from_millis(from + *random % (to - from + 1)));
    }
}
