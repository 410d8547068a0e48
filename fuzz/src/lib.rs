// SPDX-License-Identifier: Apache-2.0
//! The budget of one input: a parser may use memory in proportion to the length of its input, and no more. libFuzzer limits
//! the time (`-timeout`) and the memory of the whole process (`-rss_limit_mb`), which is too coarse to find an input that
//! takes a thousand times its size.

use std::alloc::System;

use cap::Cap;

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

/// Memory in use at the same time that each byte of an input may add to a budget, in bytes.
const MEMORY_FOR_EACH_BYTE: usize = 128;

/// Requested memory that each byte of an input may add to a budget, in bytes.
const WORK_FOR_EACH_BYTE: usize = 4096;

/// What a parser may use for an empty input, in bytes.
pub struct Budget {
    /// Memory that is in use at the same time.
    pub memory: usize,
    /// All memory that is requested, also if it is released again: the steps of a parser that copies its input again and again.
    pub work: usize,
}

impl Budget {
    /// Runs a parser on an input of this length. A parser that needs more memory than its budget is aborted, and one that
    /// has requested more than its budget panics.
    pub fn run(&self, input_bytes: usize, parse: impl FnOnce()) {
        let before = ALLOCATOR.total_allocated();
        let memory = self.memory + MEMORY_FOR_EACH_BYTE * input_bytes;
        set_limit(ALLOCATOR.allocated() + memory);
        parse();
        set_limit(usize::MAX);
        let requested = ALLOCATOR.total_allocated() - before;
        let limit = self.work + WORK_FOR_EACH_BYTE * input_bytes;
        assert!(
            requested <= limit,
            "{requested} bytes were requested for an input of {input_bytes} bytes; the limit is {limit}"
        );
    }
}

/// Runs a parser with the budget of a parser that expands nothing.
pub fn within_budget(input_bytes: usize, parse: impl FnOnce()) {
    Budget { memory: 1 << 20, work: 4 << 20 }.run(input_bytes, parse);
}

fn set_limit(bytes: usize) {
    ALLOCATOR.set_limit(bytes).expect("less memory is in use than the limit");
}
