// SPDX-License-Identifier: Apache-2.0
//! Reads a stream of server-sent events.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::ClientError;
use super::connection::ClientConnection;
use crate::{EventId, NodeEvent};

/// A stream without any byte for so long is dead: the server sends a comment every 15 s.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(45);

/// Maximum size of one event in bytes.
const MAX_EVENT_BYTES: usize = 4 << 20;

/// The events of a node, as they happen.
#[derive(Debug)]
pub struct EventStream {
    connection: ClientConnection,
    parser: EventParser,
    last_id: Option<EventId>,
    last_byte: Instant,
}

impl EventStream {
    pub(super) fn new(connection: ClientConnection, after: Option<EventId>) -> Self {
        let (parser, last_byte) = (EventParser::default(), Instant::now());
        Self { connection, parser, last_id: after, last_byte }
    }

    /// The id after which a new stream must continue; `None` before the first event.
    pub fn last_id(&self) -> Option<&EventId> {
        self.last_id.as_ref()
    }

    /// The next event; `None` if there is none within `limit`. Events of later releases are left out. The error
    /// [`ClientError::Closed`] means that the server has ended the stream.
    pub fn next_within(&mut self, limit: Duration) -> Result<Option<NodeEvent>, ClientError> {
        let end = Instant::now() + limit;
        loop {
            if let Some(event) = self.parser.events.pop_front() {
                if let Some(id) = &event.id {
                    self.last_id = id.parse().ok().or(self.last_id.take());
                }
                if !event.data.is_empty() {
                    return self.read(&event).map(Some);
                }
                continue;
            }
            let left = end.saturating_duration_since(Instant::now());
            let silence = self.last_byte + SILENCE_TIMEOUT;
            let silence = silence.saturating_duration_since(Instant::now());
            match self.connection.next_part(left.min(silence)) {
                Ok(Some(part)) => {
                    self.last_byte = Instant::now();
                    self.parser.add(&part).map_err(|reason| self.connection.invalid(reason))?;
                }
                Ok(None) => return Err(self.connection.closed()),
                Err(ClientError::TimedOut { .. }) if left <= silence => return Ok(None),
                Err(ClientError::TimedOut { path, .. }) => {
                    return Err(ClientError::TimedOut { path, after: SILENCE_TIMEOUT });
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn read(&mut self, raw: &RawEvent) -> Result<NodeEvent, ClientError> {
        let event = NodeEvent::from_data(&raw.name, &raw.data);
        let event = event.ok_or_else(|| self.connection.invalid("unknown event"))?;
        let event = event.map_err(|error| self.connection.invalid(error.to_string()))?;
        if let NodeEvent::Reset(reset) = &event {
            self.last_id = reset.next_after.parse().ok();
        }
        Ok(event)
    }
}

/// One event of the stream, not interpreted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct RawEvent {
    /// `None` if the event has none.
    id: Option<String>,
    name: String,
    data: String,
}

/// Splits the stream into events (HTML standard, section "Server-sent events").
#[derive(Debug, Default)]
struct EventParser {
    /// The bytes of a line that is not complete.
    rest: Vec<u8>,
    current: RawEvent,
    events: VecDeque<RawEvent>,
}

impl EventParser {
    fn add(&mut self, bytes: &[u8]) -> Result<(), &'static str> {
        self.rest.extend_from_slice(bytes);
        let mut used = 0;
        while let Some(length) = self.rest[used..].iter().position(|byte| *byte == b'\n') {
            let line = self.rest[used..used + length].to_vec();
            used += length + 1;
            let line = String::from_utf8(line).ok().ok_or("the stream is not UTF-8")?;
            self.add_line(line.trim_end_matches('\r'));
        }
        self.rest.drain(..used);
        if self.rest.len() + self.current.data.len() > MAX_EVENT_BYTES {
            return Err("an event is too large");
        }
        Ok(())
    }

    fn add_line(&mut self, line: &str) {
        if line.is_empty() {
            let event = std::mem::take(&mut self.current);
            let is_known = NodeEvent::from_data(&event.name, "{}").is_some();
            if is_known && !event.data.is_empty() {
                self.events.push_back(event);
            } else if event.id.is_some() {
                // Without data it is no event, but its id counts: the server sends the position of a quiet stream.
                self.events.push_back(RawEvent { data: String::new(), ..event });
            }
            return;
        }
        // A line that begins with a colon is a comment.
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "id" => self.current.id = Some(value.to_owned()),
            "event" => value.clone_into(&mut self.current.name),
            "data" => {
                if !self.current.data.is_empty() {
                    self.current.data.push('\n');
                }
                self.current.data.push_str(value);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_found_wherever_the_parts_are_cut() {
        let text = ": pulse\n\nid: a-1\nevent: dropped\ndata: {\"x\":1}\n\nevent: later\ndata: {}\n\n\
                    event: reset\r\ndata: {\ndata: }\r\n\r\n:\nid: a-7\n\n";
        let event = |name: &str, data: &str, id: Option<&str>| RawEvent {
            id: id.map(str::to_owned),
            name: name.to_owned(),
            data: data.to_owned(),
        };
        let expected = [
            event("dropped", "{\"x\":1}", Some("a-1")),
            event("reset", "{\n}", None),
            event("", "", Some("a-7")),
        ];
        for cut in 0..text.len() {
            let mut parser = EventParser::default();
            parser.add(&text.as_bytes()[..cut]).unwrap();
            parser.add(&text.as_bytes()[cut..]).unwrap();
            assert_eq!(Vec::from(parser.events), expected, "cut at {cut}");
        }
    }
}
