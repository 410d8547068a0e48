// SPDX-License-Identifier: Apache-2.0
//! Reads the history while it arrives.

use std::collections::VecDeque;
use std::time::Duration;

use super::ClientError;
use super::connection::ClientConnection;
use crate::{HistoryDocument, TimelineItem};

/// Maximum time between two parts of the answer.
const PART_TIMEOUT: Duration = Duration::from_secs(30);

/// The last member of the document. The server sends its array piece by piece. These bytes cannot occur in a string
/// before it, where the quotation marks are escaped.
const ITEMS: &[u8] = b"\"items\":[";

/// The entries of the history, oldest first. Only a few of them are in memory at a time.
#[derive(Debug)]
pub struct HistoryStream {
    connection: ClientConnection,
    parser: ItemParser,
    /// The document without its entries.
    pub head: HistoryDocument,
    has_failed: bool,
}

impl HistoryStream {
    pub(super) fn new(mut connection: ClientConnection) -> Result<Self, ClientError> {
        let mut buffer = Vec::new();
        let head_end = loop {
            let found = buffer.windows(ITEMS.len()).position(|window| window == ITEMS);
            if let Some(start) = found {
                break start + ITEMS.len();
            }
            match connection.next_part(PART_TIMEOUT)? {
                Some(part) => buffer.extend_from_slice(&part),
                None => return Err(connection.invalid("the document has no items")),
            }
        };
        let head = [&buffer[..head_end], b"]}".as_slice()].concat();
        let head = serde_json::from_slice(&head);
        let head = head.map_err(|error| connection.invalid(error.to_string()))?;
        let mut parser = ItemParser::default();
        parser.add(&buffer[head_end..]).map_err(|error| connection.invalid(error))?;
        Ok(Self { connection, parser, head, has_failed: false })
    }

    fn read(&mut self) -> Result<Option<TimelineItem>, ClientError> {
        loop {
            if let Some(item) = self.parser.items.pop_front() {
                return Ok(Some(item));
            }
            if self.parser.has_ended {
                return Ok(None);
            }
            let part = self.connection.next_part(PART_TIMEOUT)?;
            let part = part.ok_or_else(|| self.connection.closed())?;
            self.parser.add(&part).map_err(|error| self.connection.invalid(error))?;
        }
    }
}

impl Iterator for HistoryStream {
    type Item = Result<TimelineItem, ClientError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.has_failed {
            return None;
        }
        let item = self.read();
        self.has_failed = item.is_err();
        item.transpose()
    }
}

/// Splits the array into its entries.
#[derive(Debug, Default)]
struct ItemParser {
    /// The bytes of an entry that is not complete.
    rest: Vec<u8>,
    items: VecDeque<TimelineItem>,
    has_ended: bool,
}

impl ItemParser {
    /// Adds bytes of the array. Fails if an entry is not valid.
    fn add(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.rest.extend_from_slice(bytes);
        let mut used = 0;
        while !self.has_ended {
            let rest = &self.rest[used..];
            let separators = rest.iter().take_while(|byte| b", \r\n\t".contains(byte)).count();
            let rest = &rest[separators..];
            used += separators;
            if rest.first() == Some(&b']') {
                self.has_ended = true;
                break;
            }
            let mut parser = serde_json::Deserializer::from_slice(rest).into_iter();
            match parser.next() {
                Some(Ok(item)) => {
                    used += parser.byte_offset();
                    self.items.push_back(item);
                }
                Some(Err(error)) if !error.is_eof() => return Err(error.to_string()),
                Some(Err(_)) | None => break,
            }
        }
        self.rest.drain(..used);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GapItem, GapReason, timestamp_from_millis};

    fn gap(count: u64) -> TimelineItem {
        let (from, until) = (timestamp_from_millis(1), timestamp_from_millis(2));
        TimelineItem::Gap(GapItem { from, until, reason: GapReason::Killed, count: Some(count) })
    }

    #[test]
    fn entries_are_found_wherever_the_parts_are_cut() {
        let items: Vec<TimelineItem> = (1..=3).map(gap).collect();
        let text = serde_json::to_string(&items).unwrap();
        let array = [&text.as_bytes()[1..], b"}".as_slice()].concat();
        for cut in 0..array.len() {
            let mut parser = ItemParser::default();
            parser.add(&array[..cut]).unwrap();
            parser.add(&array[cut..]).unwrap();
            assert!(parser.has_ended, "cut at {cut}");
            assert_eq!(Vec::from(parser.items), items, "cut at {cut}");
        }
        assert!(ItemParser::default().add(b"{\"type\":7}").is_err());
    }
}
