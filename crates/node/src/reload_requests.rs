// SPDX-License-Identifier: Apache-2.0
//! Requests of clients to reload the configuration, and the answers with the result.
//!
//! ```text
//!   POST /v1/reload ──▶ ReloadRequests ──▶ main loop: one reload for all requests that wait ──▶ callbacks ──▶ answers
//! ```
//!
//! The main loop takes the requests before it reads the file. So each client gets the result of a reload that began after
//! its request, and a file that was written before the request is the file that the result is about.

use std::fmt;
use std::io;

use vipwatch_api::ReloadOutcome;
use vipwatch_linux::wake_queue::WakeQueue;

/// Requests for a reload. A clone is another handle on the same queue.
#[derive(Debug, Clone)]
pub struct ReloadRequests {
    /// BOUND: one entry for each connection of the API's unix socket, which limits them.
    waiting: WakeQueue<ReloadRequest>,
}

/// A request that waits for the end of a reload.
pub struct ReloadRequest(Box<dyn FnOnce(ReloadOutcome) + Send>);

impl ReloadRequests {
    /// An empty queue.
    pub fn new() -> io::Result<Self> {
        Ok(Self { waiting: WakeQueue::new()? })
    }

    /// Asks for a reload. `completed` is called on the thread that reloads.
    pub fn submit(&self, completed: impl FnOnce(ReloadOutcome) + Send + 'static) {
        self.waiting.push(ReloadRequest(Box::new(completed)));
    }

    /// The requests that wait. To be called before the configuration is read.
    pub fn take_all(&self) -> Vec<ReloadRequest> {
        self.waiting.take_all()
    }
}

impl ReloadRequest {
    /// Answers the request with the result of the reload.
    pub fn complete(self, outcome: ReloadOutcome) {
        (self.0)(outcome);
    }
}

impl fmt::Debug for ReloadRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReloadRequest")
    }
}

// Readable while a request waits.
vipwatch_linux::as_fd!(ReloadRequests.waiting);
