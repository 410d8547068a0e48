// SPDX-License-Identifier: Apache-2.0
//! The answers of one node: the rows of its history, and the events that it published.

use std::path::Path;

use serde_json::Value;

use crate::FaultsError;
use crate::moment::{Micros, parse};

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

/// A finding, from its appearance to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FindingSpan {
    /// Empty for findings about the node itself.
    pub instance: String,
    pub name: String,
    pub open: Micros,
    /// `None` if it was open at the end.
    pub close: Option<Micros>,
    pub text: String,
}

/// All answers of a node.
#[derive(Debug, Default)]
pub struct NodeAnswers {
    pub rows: Vec<HistoryRow>,
    pub findings: Vec<FindingSpan>,
    /// Causes in events `transition` and `cause`, in their order.
    pub causes: Vec<PublishedCause>,
    /// Defects of the answers themselves, for example an end without a beginning.
    pub problems: Vec<String>,
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn time(value: &Value) -> Result<Micros, FaultsError> {
    parse(value.as_str().unwrap_or_default())
        .ok_or_else(|| FaultsError(format!("{value} is no time")))
}

/// Reads the answers of one node.
pub fn read(directory: &Path) -> Result<NodeAnswers, FaultsError> {
    let mut answers = NodeAnswers::default();
    let history: Value =
        serde_json::from_str(&std::fs::read_to_string(directory.join("history.json"))?)?;
    for item in history["items"].as_array().into_iter().flatten() {
        if item["type"] != "transition" {
            answers.problems.push(format!("the history has {item}"));
            continue;
        }
        answers.rows.push(HistoryRow {
            seq: item["seq"].as_i64().unwrap_or_default(),
            at: time(&item["at"])?,
            instance: text(&item["id"]),
            from: text(&item["from"]),
            to: text(&item["to"]),
            cause: text(&item["cause"]),
            evidence: item["evidence"].clone(),
        });
    }
    answers.rows.sort_by_key(|row| row.seq);
    answers.add_events(directory)?;
    Ok(answers)
}

/// The findings in the events of one node.
pub fn read_events(directory: &Path) -> Result<Vec<FindingSpan>, FaultsError> {
    let mut answers = NodeAnswers::default();
    answers.add_events(directory)?;
    Ok(answers.findings)
}

impl NodeAnswers {
    fn add_events(&mut self, directory: &Path) -> Result<(), FaultsError> {
        let events = std::fs::read_to_string(directory.join("events.jsonl"))?;
        for line in events.lines() {
            // The last line may be cut off.
            let Ok(event) = serde_json::from_str::<Value>(line) else { continue };
            self.add_event(&event)?;
        }
        Ok(())
    }

    fn add_event(&mut self, event: &Value) -> Result<(), FaultsError> {
        let schema = event["schema"].as_str().unwrap_or_default();
        let transition = match schema.split('/').next() {
            Some("vipwatch.transition") => event["seq"].as_i64(),
            Some("vipwatch.cause") => event["transition"].as_i64(),
            _ => None,
        };
        if let (Some(transition), Some(word)) = (transition, event["cause"].as_str()) {
            let (at, word) = (time(&event["at"])?, word.to_owned());
            self.causes.push(PublishedCause { transition, at, word });
        }
        if !schema.starts_with("vipwatch.finding/") {
            return Ok(());
        }
        let (instance, finding, at) = (text(&event["id"]), &event["finding"], time(&event["at"])?);
        let name = text(&finding["name"]);
        let is_same = |span: &&mut FindingSpan| {
            span.instance == instance && span.name == name && span.close.is_none()
        };
        let open = self.findings.iter_mut().rev().find(is_same);
        match (event["state"].as_str(), open) {
            (Some("open"), None) => self.findings.push(FindingSpan {
                instance,
                name,
                open: at,
                close: None,
                text: text(&finding["text"]),
            }),
            // The text of an open finding may change.
            (Some("changed"), Some(_)) => {}
            (Some("closed"), Some(span)) => span.close = Some(at),
            (state, _) => self.problems.push(format!("{name} of {instance}: unexpected {state:?}")),
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
            answers.add_event(&event(state, &format!("2026-01-01T00:00:{at}Z"))).ok().unwrap();
        }
        assert_eq!(answers.findings.len(), 2);
        assert_eq!(
            answers.findings[0].close.map(|close| close - answers.findings[0].open),
            Some(1_000_000)
        );
        assert_eq!((answers.findings[1].close, answers.problems.len()), (None, 0));
        answers.add_event(&event("open", "2026-01-01T00:00:04Z")).ok().unwrap();
        assert_eq!(answers.problems.len(), 1);
    }
}
