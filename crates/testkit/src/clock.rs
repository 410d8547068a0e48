// SPDX-License-Identifier: Apache-2.0
//! A wall clock for one process that a test can set: a preloaded library adds seconds to `CLOCK_REALTIME`. The clock of the
//! machine is never set. It has no effect on a static program, nor on a program that asks the kernel without the C library.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{NodeFixture, run};

/// The library. It finds the seconds in the file that the variable names.
const SOURCE: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *ahead;

__attribute__((constructor)) static void map_seconds(void) {
    int fd = open(getenv("VIPWATCH_TEST_CLOCK"), O_RDONLY);
    void *mapped = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);
    if (fd < 0 || mapped == MAP_FAILED) abort();
    close(fd);
    ahead = mapped;
}

int clock_gettime(clockid_t id, struct timespec *time) {
    int result = syscall(SYS_clock_gettime, id, time);
    if (result == 0 && id == CLOCK_REALTIME && ahead) time->tv_sec += *ahead;
    return result;
}
"#;

/// The wall clock of one process.
#[derive(Debug)]
pub struct SteppedClock {
    library: PathBuf,
    seconds: PathBuf,
}

impl SteppedClock {
    /// A clock that shows the time of the machine. Its files are in `directory`.
    pub fn new(directory: &Path) -> Self {
        let (source, library) = (directory.join("clock.c"), directory.join("clock.so"));
        let written =
            File::create(&source).and_then(|file| file.write_all_at(SOURCE.as_bytes(), 0));
        written.expect("write the source");
        run(Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source));
        let clock = Self { library, seconds: directory.join("clock") };
        clock.step_to(0);
        clock
    }

    /// Sets the clock to so many seconds after the time of the machine.
    pub fn step_to(&self, seconds: i64) {
        // The process has mapped the file: it is not truncated.
        let file = File::options().write(true).create(true).truncate(false).open(&self.seconds);
        let written = file.and_then(|file| file.write_all_at(&seconds.to_ne_bytes(), 0));
        written.expect("set the clock");
    }

    /// A node with this clock.
    pub fn on(&self, fixture: NodeFixture) -> NodeFixture {
        let path = |path: &Path| path.to_str().expect("the path is UTF-8").to_owned();
        let fixture = fixture.with_variable("LD_PRELOAD", &path(&self.library));
        fixture.with_variable("VIPWATCH_TEST_CLOCK", &path(&self.seconds))
    }
}
