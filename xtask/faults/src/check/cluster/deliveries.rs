// SPDX-License-Identifier: Apache-2.0
//! Each finding of the cluster is delivered exactly once when it opens, and once when it closes, also when the reporter
//! changes meanwhile.

use super::facts::RecordedFacts;
use super::recorded::{ClusterFinding, RecordedAnswers, RecordedNotification};
use crate::check::verdict::RunVerdict;
use crate::moment::{Micros, SECOND};

/// A finding that opened or closed so long before the end of the run is delivered before the end.
const DELIVERED_WITHIN: Micros = 5 * SECOND;

/// Judges the notifications about findings of the cluster.
pub fn judge(facts: &RecordedFacts, answers: &RecordedAnswers, verdict: &mut RunVerdict) {
    for finding in &answers.findings {
        let moments = [("open", Some(finding.open)), ("closed", finding.close)];
        for (state, at) in moments.into_iter().filter_map(|(state, at)| Some((state, at?))) {
            let sent: Vec<&RecordedNotification> = answers
                .notifications
                .iter()
                .filter(|notification| is_about(notification, finding, state))
                .collect();
            let place =
                format!("{} ({}) {state} at {} s", finding.name, finding.id, facts.run.clock(at));
            if sent.is_empty() && at + DELIVERED_WITHIN < facts.run.end {
                verdict.fail("delivery-missing", format!("{place}; {}", facts.run.context(at)));
            }
            if sent.len() > 1 {
                let times: Vec<String> = sent
                    .iter()
                    .map(|sent| format!("node {:?} at {} s", sent.node, facts.run.clock(sent.at)))
                    .collect();
                verdict.fail("delivery-repeated", format!("{place}: {}", times.join(", ")));
            }
        }
    }
    let is_known = |notification: &&RecordedNotification| {
        answers.findings.iter().any(|finding| id(notification) == Some(&finding.id))
    };
    for notification in
        answers.notifications.iter().filter(|notification| id(notification).is_some())
    {
        if !is_known(&notification) {
            let at = facts.run.clock(notification.at);
            verdict.fail("delivery-unknown", format!("at {at} s: {}", notification.body));
        }
    }
}

/// The id of the finding of the cluster that a notification is about; `None` for other notifications.
fn id(notification: &RecordedNotification) -> Option<&str> {
    let body = &notification.body;
    if body["scope"] == "cluster" { body["cluster"]["id"].as_str() } else { None }
}

fn is_about(notification: &RecordedNotification, finding: &ClusterFinding, state: &str) -> bool {
    id(notification) == Some(&finding.id) && notification.body["state"] == state
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::cluster::findings::tests::facts;

    /// The kinds of failure for notifications with these states, about one finding from 10 s to 20 s.
    fn failures(states: &[&str]) -> Vec<&'static str> {
        let notification = |state: &&str| RecordedNotification {
            at: 15 * SECOND,
            node: Some(0),
            body: serde_json::json!({
                "scope": "cluster", "state": state, "cluster": { "id": "1-a", "name": "cluster-two-primaries" },
            }),
        };
        let answers = RecordedAnswers {
            findings: vec![ClusterFinding {
                id: "1-a".to_owned(),
                name: "cluster-two-primaries".to_owned(),
                subject: None,
                open: 10 * SECOND,
                close: Some(20 * SECOND),
                text: String::new(),
                reporter: "node0".to_owned(),
            }],
            documents: Vec::new(),
            notifications: states.iter().map(notification).collect(),
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
