// SPDX-License-Identifier: Apache-2.0
//! `--wait`: checks again after events of the node, until the node is drained or the time has passed.

use std::time::{Duration, Instant};

use vipwatch_api::client::{Client, ClientError, EventStream};
use vipwatch_api::{
    DrainCheckDocument, DrainQuestion, DrainReason, DrainVerdict, EventFilter, drain_check,
};

use super::facts::{AuditMode, read_facts};
use super::{summary, verdict_text};
use crate::args::{NodeOptions, OutputOptions};
use crate::failure::{CommandError, note};
use crate::reconnect::{RetryWaits, is_temporary};

/// Time in which further events of the same failover are awaited, before the node is checked again.
const SETTLE_WAIT: Duration = Duration::from_millis(200);
/// Maximum time to collect events before the node is checked again.
const MAX_SETTLE_WAIT: Duration = Duration::from_secs(1);
/// Time after which the node is checked again without an event: a delivery that a newer one replaces, and a finding
/// that grows older, are no events.
const RECHECK_WAIT: Duration = Duration::from_secs(5);

/// Waits up to `limit` until the node is drained. The result is the last check, with a new audit.
pub(super) fn until_drained(
    options: &NodeOptions,
    limit: Duration,
) -> Result<DrainCheckDocument, CommandError> {
    let settings = options.settings()?;
    let client = Client::new(&settings.config.socket);
    let mut session = WaitSession {
        client,
        output: &options.output,
        // A limit of years overflows the clock.
        end: Instant::now().checked_add(limit),
        limit,
        printed: String::new(),
    };
    let mut stream = match session.open() {
        Ok(stream) => stream,
        Err(error) => {
            if matches!(error, ClientError::NotListening(_)) {
                settings.check_read()?;
            }
            return Err(error.into());
        }
    };
    loop {
        match session.follow(&mut stream) {
            Ok(check) => return Ok(check),
            Err(error) => stream = session.reconnect(error)?,
        }
    }
}

/// A wait, over one or more connections.
struct WaitSession<'a> {
    client: Client,
    output: &'a OutputOptions,
    /// When the wait ends; `None` for never.
    end: Option<Instant>,
    limit: Duration,
    /// The progress that was printed last.
    printed: String,
}

impl WaitSession<'_> {
    fn open(&self) -> Result<EventStream, ClientError> {
        self.client.events(&EventFilter::default())
    }

    fn left(&self) -> Duration {
        self.end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()))
    }

    /// Checks the node now and after each event. Returns when it is drained, or when the time has passed.
    fn follow(&mut self, stream: &mut EventStream) -> Result<DrainCheckDocument, ClientError> {
        loop {
            let mut check = self.check(AuditMode::Last)?;
            if check.verdict == DrainVerdict::Drained {
                check = self.check(AuditMode::Now)?;
            }
            if check.verdict == DrainVerdict::Drained {
                return Ok(check);
            }
            if self.left().is_zero() {
                return self.check(AuditMode::Now);
            }
            self.print_progress(&check);
            self.next_change(stream, recheck_wait(&check))?;
        }
    }

    fn check(&self, mode: AuditMode) -> Result<DrainCheckDocument, ClientError> {
        Ok(drain_check(DrainQuestion::Now, read_facts(&self.client, mode)?))
    }

    /// Waits for an event, up to `limit` or to the end of the wait, and for the events that follow it closely.
    fn next_change(&self, stream: &mut EventStream, limit: Duration) -> Result<(), ClientError> {
        if stream.next_within(limit.min(self.left()))?.is_none() {
            return Ok(());
        }
        let end = Instant::now() + MAX_SETTLE_WAIT.min(self.left());
        while Instant::now() < end && stream.next_within(SETTLE_WAIT.min(self.left()))?.is_some() {}
        Ok(())
    }

    /// Prints why the command waits, if that has changed.
    fn print_progress(&mut self, check: &DrainCheckDocument) {
        let reasons = [check.blocking.as_slice(), &check.uncertain].concat();
        let text = format!("{}: {}", verdict_text(check), summary(&reasons));
        if text != self.printed {
            let limit = self.limit.as_secs();
            note(self.output, &format!("{text}; waiting up to {limit} s in total"));
            self.printed = text;
        }
    }

    /// Connects again after `error`. It waits for a node that restarts, until the time has passed.
    fn reconnect(&self, mut error: ClientError) -> Result<EventStream, CommandError> {
        if is_temporary(&error) {
            note(self.output, &format!("{error}; connecting again"));
        }
        let mut waits = RetryWaits::default();
        while is_temporary(&error) && !self.left().is_zero() {
            waits.pause_within(self.left());
            match self.open() {
                Ok(stream) => return Ok(stream),
                Err(next) => error = next,
            }
        }
        Err(error.into())
    }
}

/// How long no event may come before the node is checked again. A role changes with an event only.
fn recheck_wait(check: &DrainCheckDocument) -> Duration {
    let is_role = |reason: &DrainReason| reason.name == "primary-here";
    let follows_from_events = check.uncertain.is_empty() && check.blocking.iter().all(is_role);
    if follows_from_events { Duration::from_mins(1) } else { RECHECK_WAIT }
}
