//! `vipwatch watch`: prints every event as it happens, one line for each.
//!
//! The command reads the events of the node. If the connection is lost, it connects again and continues after the last
//! event. Without a node it follows the kernel itself.

mod direct;
mod printer;

use std::time::{Duration, Instant};

use vipwatch_api::client::{Client, ClientError, EventStream};
use vipwatch_api::{ErrorCode, Event, EventFilter, EventId, InstanceFilter, ResetReason};

use self::printer::{Flow, Printer};
use crate::args::{After, WatchArgs};
use crate::failure::{CommandError, note};
use crate::source::namespace_text;

/// Maximum time that the command waits for an event before it looks for lines to print.
const IDLE_WAIT: Duration = Duration::from_mins(1);
/// The waits between two attempts to connect: doubled from the first value up to the second.
const FIRST_RETRY_WAIT: Duration = Duration::from_millis(250);
const MAX_RETRY_WAIT: Duration = Duration::from_secs(5);

pub(crate) fn run(options: &WatchArgs) -> Result<(), CommandError> {
    let output = options.query.output();
    let printer = Printer::new(options);
    if options.query.is_direct() {
        note(output, &format!("reading events from the kernel; {}", namespace_text()));
        return direct::follow(options, printer);
    }
    let node = options.query.node.settings()?;
    let mut session = Session { client: Client::new(&node.config.socket), options, printer };
    match session.begin() {
        Ok(stream) => session.print_events(stream),
        Err(error @ ClientError::NotListening(_)) => {
            node.check_read()?;
            let text = format!("{error}; reading events from the kernel; {}", namespace_text());
            note(output, &text);
            direct::follow(options, session.printer)
        }
        Err(error) => Err(error.into()),
    }
}

/// A watch of the node, over one or more connections.
struct Session<'a> {
    client: Client,
    options: &'a WatchArgs,
    printer: Printer,
}

impl Session<'_> {
    /// Prints the current roles, and opens the stream of the events after them.
    fn begin(&mut self) -> Result<EventStream, ClientError> {
        // ORDER: the position before the roles, so that no transition between the two is lost.
        let status = self.client.status()?;
        let after = match &self.options.after {
            Some(After::Event(id)) => id.clone(),
            Some(After::Seq(seq)) => EventId { epoch: status.epoch, seq: *seq },
            None => {
                self.print_roles()?;
                EventId { epoch: status.epoch, seq: status.seq }
            }
        };
        self.open(Some(after))
    }

    fn open(&self, after: Option<EventId>) -> Result<EventStream, ClientError> {
        self.client.events(&EventFilter { ids: self.options.ids.clone(), after })
    }

    /// Prints the current roles. An id that matches no instance is an error.
    fn print_roles(&mut self) -> Result<(), ClientError> {
        let ids = self.options.ids.clone();
        let list = self.client.instances(&InstanceFilter { ids, ..InstanceFilter::default() })?;
        list.items.iter().for_each(|instance| self.printer.role(instance));
        Ok(())
    }

    /// Prints events until the reader of the output has gone, or enough transitions are printed.
    fn print_events(&mut self, mut stream: EventStream) -> Result<(), CommandError> {
        loop {
            let flow =
                match stream.next_within(self.printer.wait(Instant::now()).unwrap_or(IDLE_WAIT)) {
                    Ok(Some(event)) => match self.take(&event) {
                        Ok(flow) => flow,
                        Err(error) => {
                            stream = self.reconnect(&error, stream.last_id().cloned())?;
                            Flow::Continue
                        }
                    },
                    Ok(None) => self.printer.flush(Instant::now()),
                    Err(error) => {
                        stream = self.reconnect(&error, stream.last_id().cloned())?;
                        Flow::Continue
                    }
                };
            if flow == Flow::Stop {
                return Ok(());
            }
        }
    }

    /// Prints an event. After a reset, the roles are read again.
    fn take(&mut self, event: &Event) -> Result<Flow, ClientError> {
        let flow = self.printer.take(event);
        if let Event::Reset(reset) = event {
            let reason = reset_text(reset.reason);
            let text = format!("events are missing: {reason}; the current roles follow");
            note(self.options.query.output(), &text);
            self.print_roles()?;
        }
        Ok(flow)
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
        let mut wait = FIRST_RETRY_WAIT;
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
            pause(wait);
            wait = (wait * 2).min(MAX_RETRY_WAIT);
        }
    }
}

/// Whether the node may answer a later attempt.
fn is_temporary(error: &ClientError) -> bool {
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

/// Waits for a time.
fn pause(time: Duration) {
    let limit = rustix::event::Timespec::try_from(time).ok();
    // A signal may end the wait early, which is harmless.
    let _ = rustix::event::poll(&mut [], limit.as_ref());
}
