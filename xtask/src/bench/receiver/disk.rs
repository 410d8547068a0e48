//! What the disk takes for one promise: a small write and an `fdatasync`, as the journal makes them.

use std::io::Write;
use std::time::Instant;

use vipwatch_testkit::Lab;

use crate::bench::measure::{Samples, ms};
use crate::bench::report::{BenchTarget, Row};

/// About what the journal writes for one bundle of reports, in bytes.
const WRITE_BYTES: usize = 4096;

/// Below this the processors decide, and not the disk: 1,000 reports at 20 µs each, in milliseconds.
const AT_LEAST_MS: f64 = 20.0;

pub(super) struct Disk {
    /// In milliseconds.
    samples: Samples,
}

impl Disk {
    /// Writes and waits `count` times, in the directory where the journals of this bench are.
    pub(super) fn measure(count: usize) -> Self {
        eprintln!("bench: the disk: {count} times fdatasync");
        let lab = Lab::new();
        let directory = lab.path().join("claims");
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

    /// A target of `times` the median.
    pub(super) fn multiple(&self, times: f64) -> BenchTarget {
        let measured = self.samples.quantile(0.5);
        BenchTarget::Multiple { times, of: "fdatasync", measured, at_least: AT_LEAST_MS }
    }
}
