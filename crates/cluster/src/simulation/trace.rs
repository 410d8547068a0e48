// SPDX-License-Identifier: Apache-2.0
//! What happened in a run, in order.

use std::fmt::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::time::Instant;

/// The lines of a run. Each begins with the time since the start in milliseconds.
#[derive(Debug, Clone)]
pub(super) struct Trace {
    start: Instant,
    text: Arc<Mutex<String>>,
}

impl Trace {
    pub(super) fn new(start: Instant) -> Self {
        Self { start, text: Arc::default() }
    }

    /// Milliseconds since the start.
    pub(super) fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    pub(super) fn add(&self, line: fmt::Arguments<'_>) {
        let mut text = self.text.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = writeln!(text, "{:>7} {line}", self.now());
    }

    /// Removes and returns the lines.
    pub(super) fn take(&self) -> String {
        std::mem::take(&mut self.text.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
