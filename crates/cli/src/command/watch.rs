// SPDX-License-Identifier: Apache-2.0
//! `vipwatch watch`: prints every event as it happens, one line for each.
//!
//! The command reads the events of the node. If the connection is lost, it connects again and continues after the last
//! event. Without a node it follows the kernel itself.

mod direct;
mod printer;
mod selection;

use std::net::IpAddr;
use std::time::{Duration, Instant};

use vipwatch_api::client::{Client, ClientError, EventStream};
use vipwatch_api::{ErrorCode, EventFilter, EventId, InstanceFilter, NodeEvent, ResetReason};

use self::printer::{Flow, Printer};
use self::selection::EventSelection;
use crate::args::{After, WatchArgs};
use crate::failure::{CommandError, note, warn};
use crate::reconnect::{RetryWaits, is_temporary};
use crate::source::namespace_text;

/// Maximum time that the command waits for an event before it looks for lines to print.
const IDLE_WAIT: Duration = Duration::from_mins(1);
/// Time between two attempts to read the roles after a reset.
const ROLES_RETRY_WAIT: Duration = Duration::from_secs(1);

pub(crate) fn run(options: &WatchArgs) -> Result<(), CommandError> {
    let output = options.query.output();
    let printer = Printer::new(options);
    if options.query.is_direct() {
        note(output, &format!("reading events from the kernel; {}", namespace_text()));
        return direct::follow(options, printer);
    }
    let node = options.query.node.settings()?;
    let client = Client::new(&node.config.socket);
    let ids = options.ids.clone();
    let selection = EventSelection::new(options);
    let mut session = Session { client, options, ids, selection, printer, roles_due: None };
    match session.begin() {
        Ok(after) => {
            // The node may stop after it has answered with the roles.
            let stream = session
                .open(Some(after.clone()))
                .or_else(|error| session.reconnect(&error, Some(after)))?;
            session.print_events(stream)
        }
        Err(error @ ClientError::NotListening(_)) => {
            node.check_read()?;
            let text = format!("{error}; reading events from the kernel; {}", namespace_text());
            // Also with --quiet: another source than the node answers.
            warn(&text);
            direct::follow(options, session.printer)
        }
        Err(error) => Err(error.into()),
    }
}

/// A watch of the node, over one or more connections.
struct Session<'a> {
    client: Client,
    options: &'a WatchArgs,
    /// The selected instances. An address stands for the instances that have it when the command begins.
    ids: Vec<String>,
    selection: EventSelection,
    printer: Printer,
    /// When the roles are read again after a reset; `None` if they are printed.
    roles_due: Option<Instant>,
}

impl Session<'_> {
    /// Prints the current roles; returns the position of the events after them.
    fn begin(&mut self) -> Result<EventId, ClientError> {
        // ORDER: the position before the roles, so that no transition between the two is lost.
        let status = self.client.status()?;
        self.resolve_addresses()?;
        if self.selection.needs_places() {
            self.selection.add_instances(&self.client.instances(&InstanceFilter::default())?.items);
        }
        Ok(match &self.options.after {
            Some(After::Event(id)) => id.clone(),
            Some(After::Seq(seq)) => EventId { epoch: status.epoch, seq: *seq },
            None => {
                self.print_roles()?;
                EventId { epoch: status.epoch, seq: status.seq }
            }
        })
    }

    /// Replaces each address by the ids of its instances: after a reconnect the node could give it to others, or to
    /// none, and the removal of an instance could not be selected.
    fn resolve_addresses(&mut self) -> Result<(), ClientError> {
        for text in std::mem::take(&mut self.ids) {
            if text.parse::<IpAddr>().is_err() {
                self.ids.push(text);
                continue;
            }
            let filter = InstanceFilter { ids: vec![text], ..InstanceFilter::default() };
            let list = self.client.instances(&filter)?;
            self.ids.extend(list.items.into_iter().map(|instance| instance.id));
        }
        Ok(())
    }

    fn open(&self, after: Option<EventId>) -> Result<EventStream, ClientError> {
        self.client.events(&EventFilter { ids: self.ids.clone(), after })
    }

    /// Prints the current roles. An id that matches no instance is an error.
    fn print_roles(&mut self) -> Result<(), ClientError> {
        let list = self.client.instances(&self.selection.filter(self.ids.clone()))?;
        list.items.iter().for_each(|instance| self.printer.role(instance));
        Ok(())
    }

    /// Prints events until the reader of the output has gone, or enough transitions are printed.
    fn print_events(&mut self, mut stream: EventStream) -> Result<(), CommandError> {
        loop {
            self.print_due_roles()?;
            let flow = match stream.next_within(self.wait()) {
                Ok(Some(event)) => self.take(&event),
                Ok(None) => self.printer.flush(Instant::now()),
                Err(error) => {
                    // The results of these deliveries may arrive after a long time, or never.
                    let flow = self.printer.flush_all();
                    if flow == Flow::Continue {
                        stream = self.reconnect(&error, stream.last_id().cloned())?;
                    }
                    flow
                }
            };
            if flow == Flow::Stop {
                return Ok(());
            }
        }
    }

    /// Maximum time to wait for the next event.
    fn wait(&self) -> Duration {
        let now = Instant::now();
        let line = self.printer.wait(now).unwrap_or(IDLE_WAIT);
        self.roles_due.map_or(line, |due| line.min(due.saturating_duration_since(now)))
    }

    /// Prints an event. After a reset, the roles are read again.
    fn take(&mut self, event: &NodeEvent) -> Flow {
        if let NodeEvent::Reset(reset) = event {
            let reason = reset_text(reset.reason);
            let text = format!("events are missing: {reason}; the current roles follow");
            note(self.options.query.output(), &text);
            self.roles_due = Some(Instant::now());
        }
        if self.selection.covers(event) { self.printer.take(event) } else { Flow::Continue }
    }

    /// Reads and prints the roles, if that is due after a reset. If the node cannot answer now, this is repeated.
    fn print_due_roles(&mut self) -> Result<(), CommandError> {
        if self.roles_due.is_none_or(|due| due > Instant::now()) {
            return Ok(());
        }
        self.roles_due = None;
        match self.print_roles() {
            Ok(()) => {}
            Err(error) if is_temporary(&error) => {
                self.roles_due = Some(Instant::now() + ROLES_RETRY_WAIT);
            }
            // The instance may appear again.
            Err(ClientError::Problem(problem)) if problem.code == ErrorCode::UnknownInstance => {
                note(self.options.query.output(), &problem.detail);
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Connects again after `error`, and continues after the event `last`. It waits for a node that restarts.
    fn reconnect(
        &self,
        error: &ClientError,
        last: Option<EventId>,
    ) -> Result<EventStream, CommandError> {
        let output = self.options.query.output();
        if !is_temporary(error) {
            return Err(error.into());
        }
        note(output, &format!("{error}; connecting again"));
        let mut waits = RetryWaits::default();
        loop {
            match self.open(last.clone()) {
                Ok(stream) => {
                    let after = last.map(|last| format!(", continuing after {last}"));
                    note(output, &format!("connected again{}", after.unwrap_or_default()));
                    return Ok(stream);
                }
                Err(error) if is_temporary(&error) => {}
                Err(error) => return Err(error.into()),
            }
            waits.pause();
        }
    }
}

fn reset_text(reason: ResetReason) -> &'static str {
    match reason {
        ResetReason::OtherEpoch => "the history was begun anew",
        ResetReason::Expired => {
            "a node was killed before it recorded them, or retention has deleted them"
        }
        ResetReason::Future => "the node has no event of this number yet",
        ResetReason::HistoryUnavailable => "the history cannot be read",
    }
}
