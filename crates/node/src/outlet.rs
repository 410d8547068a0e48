//! What an instance's change leads to, beyond what the engine has: programs, the web, and the
//! network of many namespaces. Each works on threads of its own and reports when it is done.

pub(crate) mod announce;
pub(crate) mod hook;
pub(crate) mod webhook;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

use rustix::event::{EventfdFlags, eventfd};
use vipwatch_core::InstanceId;
use vipwatch_history::Stage;
use vipwatch_linux::clock;

use crate::transition::{Transition, micros};

/// Somebody was told of a change, or could not be.
#[derive(Debug)]
pub(crate) struct Report {
    /// Of whose change.
    pub(crate) instance: InstanceId,
    /// Of which.
    pub(crate) seq: i64,
    /// Who was told.
    pub(crate) stage: Stage,
    /// Which one of several: a program, an address.
    pub(crate) whom: String,
    /// How long after the kernel's word, in microseconds.
    pub(crate) micros: i64,
    /// What came of it.
    pub(crate) outcome: Result<(), String>,
    /// Whether it will be tried again.
    pub(crate) is_final: bool,
}

/// Where workers leave their reports, and the loop finds them. It holds no more than there are
/// letters in lanes.
#[derive(Debug, Clone)]
pub(crate) struct Tray {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    reports: Mutex<VecDeque<Report>>,
    bell: OwnedFd,
}

impl Tray {
    pub(crate) fn new() -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { shared: Arc::new(Shared { reports: Mutex::default(), bell }) })
    }

    pub(crate) fn leave(&self, report: Report) {
        if let Ok(mut reports) = self.shared.reports.lock() {
            reports.push_back(report);
        }
        let _ = rustix::io::write(&self.shared.bell, &1_u64.to_ne_bytes());
    }

    pub(crate) fn empty(&self) -> VecDeque<Report> {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.shared.bell, &mut count);
        self.shared
            .reports
            .lock()
            .map(|mut reports| std::mem::take(&mut *reports))
            .unwrap_or_default()
    }
}

impl AsFd for Tray {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.bell.as_fd()
    }
}

impl Report {
    /// Now.
    pub(crate) fn new(transition: &Transition, stage: Stage, whom: &str) -> Self {
        Self {
            instance: transition.found.id.clone(),
            seq: transition.seq,
            stage,
            whom: whom.to_owned(),
            micros: micros(transition.heard, clock::now()),
            outcome: Ok(()),
            is_final: true,
        }
    }
}
