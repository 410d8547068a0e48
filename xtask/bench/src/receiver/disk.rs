// SPDX-License-Identifier: Apache-2.0
//! Measures the disk: a small write and an `fdatasync`, as the journal does for a batch of reports.

use std::io::Write;
use std::time::Instant;

use vipwatch_testkit::Lab;

use crate::measure::{Samples, ms};
use crate::report::{BenchTarget, Row};

/// About the size of the journal's write for one batch of reports, in bytes.
const WRITE_BYTES: usize = 4096;

/// The smallest target, in milliseconds: 1,000 reports take 20 µs of CPU time each, however fast the disk is.
const MIN_TARGET_MS: f64 = 20.0;

/// The measured times of the disk, in ms.
pub(super) struct Disk {
    p50: f64,
    p99: f64,
}

impl Disk {
    /// Writes and syncs `count` times, on the file system that has the journals of this bench.
    pub(super) fn measure(count: usize) -> Self {
        eprintln!("bench: the disk: {count} times fdatasync");
        let lab = Lab::new();
        let mut file = std::fs::File::create(lab.path().join("fdatasync")).expect("a file");
        let mut one = || {
            let began = Instant::now();
            file.write_all(&[7; WRITE_BYTES]).expect("a write");
            file.sync_data().expect("fdatasync");
            ms(began.elapsed())
        };
        let samples = Samples::of((0..count).map(|_| one()).collect());
        let both = samples.p50().zip(samples.p99());
        let (p50, p99) = both.expect("at least one sample");
        Self { p50, p99 }
    }

    pub(super) fn report(&self, rows: &mut Vec<Row>) {
        for (name, value) in [("p50", self.p50), ("p99", self.p99)] {
            let row = Row::new(format!("the disk: write and fdatasync, {name}"), "ms");
            rows.push(row.ours(value));
        }
    }

    /// The target: at most `times` the median.
    pub(super) fn multiple(&self, times: f64) -> BenchTarget {
        let (of, measured) = ("fdatasync", self.p50);
        BenchTarget::Multiple { times, of, measured, at_least: MIN_TARGET_MS }
    }
}
