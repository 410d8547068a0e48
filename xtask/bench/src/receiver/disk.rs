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

/// The measured times of the disk.
pub(super) struct Disk {
    /// In milliseconds.
    samples: Samples,
}

impl Disk {
    /// Writes and syncs `count` times, on the file system that has the journals of this bench.
    pub(super) fn measure(count: usize) -> Self {
        eprintln!("bench: the disk: {count} times fdatasync");
        let lab = Lab::new();
        let directory = lab.path().join("receiver");
        std::fs::create_dir(&directory).expect("a directory in the lab");
        let mut file = std::fs::File::create(directory.join("fdatasync")).expect("a file");
        let mut one = || {
            let began = Instant::now();
            file.write_all(&[7; WRITE_BYTES]).expect("a write");
            file.sync_data().expect("fdatasync");
            ms(began.elapsed())
        };
        let samples = Samples::of((0..count).map(|_| one()).collect());
        Self { samples: samples.expect("at least one sample") }
    }

    pub(super) fn report(&self, rows: &mut Vec<Row>) {
        for (name, share) in [("p50", 0.5), ("p99", 0.99)] {
            let mut row = Row::new(format!("the disk: write and fdatasync, {name}"), "ms");
            row.ours = Some(self.samples.quantile(share));
            rows.push(row);
        }
    }

    /// The target: at most `times` the median.
    pub(super) fn multiple(&self, times: f64) -> BenchTarget {
        let measured = self.samples.quantile(0.5);
        BenchTarget::Multiple { times, of: "fdatasync", measured, at_least: MIN_TARGET_MS }
    }
}
