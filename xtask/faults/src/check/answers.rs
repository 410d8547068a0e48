// SPDX-License-Identifier: Apache-2.0
//! The answers of one node: the rows of its history, and the events that it published.

use std::path::Path;

use serde_json::Value;

use super::findings::FindingSpan;
use super::node::deliveries::DeliveredFinding;
use crate::moment::{Micros, parse};
use crate::{FaultsError, LabResult};

/// A transition in the history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryRow {
    pub seq: i64,
    pub at: Micros,
    pub instance: String,
    /// Empty if it is not known.
    pub from: String,
    pub to: String,
    /// Empty if the row has none.
    pub cause: String,
    /// The facts behind the cause; null if there are none.
    pub evidence: Value,
}

/// A cause that the node published in its events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishedCause {
    /// The sequence number of the transition.
    pub transition: i64,
    pub at: Micros,
    pub word: String,
}

/// All answers of a node.
#[derive(Debug, Default)]
pub struct NodeAnswers {
    pub rows: Vec<HistoryRow>,
    /// The subject is the name of the instance; it is empty for findings about the node itself.
    pub findings: Vec<FindingSpan>,
    /// Causes in events `transition` and `cause`, in their order.
    pub causes: Vec<PublishedCause>,
    /// What the hook of the node received.
    pub deliveries: Vec<DeliveredFinding>,
    /// Defects of the answers themselves, for example an end without a beginning.
    pub problems: Vec<String>,
}

/// The text of a value; empty if it is none.
pub fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn time(value: &Value) -> LabResult<Micros> {
    parse(&text(value)).ok_or_else(|| FaultsError(format!("{value} is no time")))
}

/// The documents in the lines of a file. The last one may be cut off: the recorders end with the sandbox.
pub fn lines(path: &Path) -> LabResult<Vec<Value>> {
    let text = std::fs::read_to_string(path)?;
    Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
}

impl NodeAnswers {
    pub fn read_history(&mut self, path: &Path) -> LabResult {
        let history: Value = serde_json::from_str(&std::fs::read_to_string(path)?)?;
        for item in history["items"].as_array().into_iter().flatten() {
            if item["type"] != "transition" {
                self.problems.push(format!("the history has {item}"));
                continue;
            }
            self.rows.push(HistoryRow {
                seq: item["seq"].as_i64().unwrap_or_default(),
                at: time(&item["at"])?,
                instance: text(&item["id"]),
                from: text(&item["from"]),
                to: text(&item["to"]),
                cause: text(&item["cause"]),
                evidence: item["evidence"].clone(),
            });
        }
        self.rows.sort_by_key(|row| row.seq);
        Ok(())
    }

    pub fn read_events(&mut self, path: &Path) -> LabResult {
        lines(path)?.iter().try_for_each(|event| self.add_event(event))
    }

    /// Reads what the hook wrote; it may not have run at all.
    pub fn read_deliveries(&mut self, path: &Path) -> LabResult {
        for line in if path.exists() { lines(path)? } else { Vec::new() } {
            let (body, received) = (&line["body"], line["wall"].as_i64().unwrap_or_default());
            self.deliveries.push(DeliveredFinding {
                received,
                at: time(&body["at"])?,
                subject: text(&body["id"]),
                name: text(&body["finding"]["name"]),
                state: text(&body["state"]),
            });
        }
        Ok(())
    }

    fn add_event(&mut self, event: &Value) -> LabResult {
        let schema = text(&event["schema"]);
        let transition = match schema.split('/').next() {
            Some("vipwatch.transition") => event["seq"].as_i64(),
            Some("vipwatch.cause") => event["transition"].as_i64(),
            Some("vipwatch.finding") => return self.add_finding(event),
            _ => None,
        };
        if let (Some(transition), Some(word)) = (transition, event["cause"].as_str()) {
            let (at, word) = (time(&event["at"])?, word.to_owned());
            self.causes.push(PublishedCause { transition, at, word });
        }
        Ok(())
    }

    fn add_finding(&mut self, event: &Value) -> LabResult {
        let (subject, finding, at) = (text(&event["id"]), &event["finding"], time(&event["at"])?);
        let name = text(&finding["name"]);
        let mut known = self.findings.iter_mut().rev();
        let open = known.find(|span| span.is_about(&name, &subject) && span.close.is_none());
        match (event["state"].as_str(), open) {
            (Some("open"), None) => {
                let text = text(&finding["text"]);
                let (id, close) = (String::new(), None);
                self.findings.push(FindingSpan { id, subject, name, open: at, close, text });
            }
            // The text of an open finding may change.
            (Some("changed"), Some(_)) => {}
            (Some("closed"), Some(span)) => span.close = Some(at),
            (state, _) => self.problems.push(format!("{name} of {subject}: unexpected {state:?}")),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn event(state: &str, at: &str) -> Value {
        let finding = json!({ "name": "two-primaries", "text": "" });
        json!({ "schema": "vipwatch.finding/1", "at": at, "id": "VI_1", "state": state, "finding": finding })
    }

    #[test]
    fn an_end_belongs_to_the_last_beginning_and_needs_one() {
        let mut answers = NodeAnswers::default();
        for (state, at) in [("open", "01"), ("closed", "02"), ("open", "03")] {
            answers.add_event(&event(state, &format!("2026-01-01T00:00:{at}Z"))).unwrap();
        }
        assert_eq!(answers.findings.len(), 2);
        assert_eq!(
            answers.findings[0].close.map(|close| close - answers.findings[0].open),
            Some(1_000_000)
        );
        assert_eq!((answers.findings[1].close, answers.problems.len()), (None, 0));
        answers.add_event(&event("open", "2026-01-01T00:00:04Z")).unwrap();
        assert_eq!(answers.problems.len(), 1);
    }
}
