//! What an instance's change leads to, beyond what the engine has: programs, the web, and the
//! network of many namespaces. Each works on threads of its own and reports when it is done.

pub(crate) mod announce;
pub(crate) mod hook;
pub(crate) mod post;
pub(crate) mod webhook;

use std::collections::VecDeque;
use std::fmt::Debug;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

use rustix::event::{EventfdFlags, eventfd};
use serde_json::Value;
use vipwatch_core::{InstanceId, Moment};
use vipwatch_history::Stage;
use vipwatch_linux::clock;

use crate::transition::micros;

/// What programs and addresses are told: that a role has changed, or what monitors claim.
pub(crate) trait Letter: Debug + Send + Sync {
    /// About whom.
    fn instance(&self) -> &InstanceId;
    /// Its number.
    fn seq(&self) -> i64;
    /// When it was heard of.
    fn heard(&self) -> Moment;
    /// As it is read.
    fn json(&self, node: &str) -> Value;
}

/// Where workers leave their reports.
pub(crate) type Sink = Arc<dyn Fn(Report) + Send + Sync>;

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

    /// For a worker who leaves his reports here.
    pub(crate) fn sink(&self) -> Sink {
        let tray = self.clone();
        Arc::new(move |report| tray.leave(report))
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
    pub(crate) fn new(letter: &dyn Letter, stage: Stage, whom: &str) -> Self {
        Self {
            instance: letter.instance().clone(),
            seq: letter.seq(),
            stage,
            whom: whom.to_owned(),
            micros: micros(letter.heard(), clock::now()),
            outcome: Ok(()),
            is_final: true,
        }
    }
}
