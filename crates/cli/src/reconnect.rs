// SPDX-License-Identifier: Apache-2.0
//! When a command that follows the events of a node connects again, and how long it waits before each attempt.

use std::time::Duration;

use vipwatch_api::ErrorCode;
use vipwatch_api::client::ClientError;

/// The waits between two attempts to connect: doubled from the first value up to the second.
const FIRST_RETRY_WAIT: Duration = Duration::from_millis(250);
const MAX_RETRY_WAIT: Duration = Duration::from_secs(5);

/// Whether the node may answer a later attempt.
pub(crate) fn is_temporary(error: &ClientError) -> bool {
    match error {
        ClientError::NotListening(_)
        | ClientError::TimedOut { .. }
        | ClientError::Io { .. }
        | ClientError::Closed(_) => true,
        ClientError::Problem(problem) => {
            matches!(problem.code, ErrorCode::NotReady | ErrorCode::TooManyConnections)
        }
        ClientError::NotPermitted(_) | ClientError::InvalidAnswer { .. } => false,
    }
}

/// The growing waits between attempts to connect.
#[derive(Debug)]
pub(crate) struct RetryWaits {
    next: Duration,
}

impl Default for RetryWaits {
    fn default() -> Self {
        Self { next: FIRST_RETRY_WAIT }
    }
}

impl RetryWaits {
    /// Waits before the next attempt.
    pub(crate) fn pause(&mut self) {
        self.pause_within(Duration::MAX);
    }

    /// As [`Self::pause`], but at most for `limit`.
    pub(crate) fn pause_within(&mut self, limit: Duration) {
        pause(self.next.min(limit));
        self.next = (self.next * 2).min(MAX_RETRY_WAIT);
    }
}

/// Waits for a time.
pub(crate) fn pause(time: Duration) {
    let limit = rustix::event::Timespec::try_from(time).ok();
    // A signal may end the wait early, which is harmless.
    let _ = rustix::event::poll(&mut [], limit.as_ref());
}
