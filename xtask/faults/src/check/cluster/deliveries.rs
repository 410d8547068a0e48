// SPDX-License-Identifier: Apache-2.0
//! Each finding of the cluster is delivered exactly once when it opens, and once when it closes, also when the reporter
//! changes meanwhile.

use super::answers::{RecordedAnswers, RecordedNotification};
use super::facts::RecordedFacts;
use crate::check::verdict::RunVerdict;
use crate::moment::{Micros, SECOND};

/// A finding that opened or closed so long before the end of the run is delivered before the end.
const DELIVERED_WITHIN: Micros = 5 * SECOND;

/// Judges the notifications about findings of the cluster.
pub fn judge(facts: &RecordedFacts, answers: &RecordedAnswers, verdict: &mut RunVerdict) {
    let run = &facts.run;
    for finding in &answers.findings {
        let moments = [("open", Some(finding.open)), ("closed", finding.close)];
        for (state, at) in moments.into_iter().filter_map(|(state, at)| Some((state, at?))) {
            let is_about = |sent: &&RecordedNotification| {
                id(sent) == Some(&finding.id) && sent.body["state"] == state
            };
            let time = |sent: &RecordedNotification| {
                format!("node {:?} at {} s", sent.node(), run.clock(sent.at))
            };
            let sent: Vec<String> =
                answers.notifications.iter().filter(is_about).map(time).collect();
            let place = format!("{} ({}) {state} at {} s", finding.name, finding.id, run.clock(at));
            let is_part = answers.partial.parts.contains(&finding.id);
            if sent.is_empty() && !is_part && at + DELIVERED_WITHIN < run.end {
                verdict.fail("delivery-missing", format!("{place}; {}", run.context(at)));
            }
            if sent.len() > 1 {
                verdict.fail("delivery-repeated", format!("{place}: {}", sent.join(", ")));
            }
        }
    }
    for sent in &answers.notifications {
        let is_known = |id: &str| {
            answers.findings.iter().any(|finding| finding.id == id)
                || answers.partial.grouped.contains(id)
        };
        if id(sent).is_some_and(|id| !is_known(id)) {
            let text = format!("at {} s: {}", run.clock(sent.at), sent.body);
            verdict.fail("delivery-unknown", text);
        }
    }
}

/// The id of the finding of the cluster that a notification is about; `None` for other notifications.
fn id(notification: &RecordedNotification) -> Option<&str> {
    let body = &notification.body;
    if body["scope"] == "cluster" { body["cluster"]["id"].as_str() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::cluster::findings::tests::facts;
    use crate::check::findings::FindingSpan;

    /// The kinds of failure for notifications with these states, about one finding from 10 s to 20 s.
    fn failures(states: &[&str]) -> Vec<&'static str> {
        let notification = |state: &&str| RecordedNotification {
            at: 15 * SECOND,
            peer: "10.7.0.1".to_owned(),
            body: serde_json::json!({
                "scope": "cluster", "state": state, "cluster": { "id": "1-a", "name": "cluster-two-primaries" },
            }),
        };
        let answers = RecordedAnswers {
            findings: vec![FindingSpan {
                id: "1-a".to_owned(),
                subject: String::new(),
                name: "cluster-two-primaries".to_owned(),
                open: 10 * SECOND,
                close: Some(20 * SECOND),
                text: String::new(),
            }],
            notifications: states.iter().map(notification).collect(),
            ..RecordedAnswers::default()
        };
        let mut verdict = RunVerdict::default();
        judge(&facts(), &answers, &mut verdict);
        verdict.failures.iter().map(|failure| failure.kind).collect()
    }

    #[test]
    fn one_delivery_of_each_is_right() {
        assert_eq!(failures(&["open", "closed"]), [""; 0]);
    }

    #[test]
    fn a_missing_or_repeated_delivery_is_a_failure() {
        assert_eq!(failures(&["open"]), ["delivery-missing"]);
        assert_eq!(failures(&["open", "open", "closed"]), ["delivery-repeated"]);
    }
}
