// SPDX-License-Identifier: Apache-2.0
//! The results of all seeds: a line for each run, and a table at the end.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::check::verdict::{JudgedCount, RunVerdict};

/// The verdicts in the order in which the runs ended.
#[derive(Default)]
pub struct Summary {
    pub verdicts: Vec<RunVerdict>,
}

/// Counts of all runs, by the name of a finding or the word of a cause.
type Counts = BTreeMap<String, JudgedCount>;

impl Summary {
    fn failed(&self) -> impl Iterator<Item = &RunVerdict> {
        self.verdicts.iter().filter(|verdict| !verdict.failures.is_empty())
    }

    pub fn is_clean(&self) -> bool {
        self.failed().next().is_none()
    }

    /// The result of the newest run.
    pub fn last_line(&self) -> String {
        let Some(verdict) = self.verdicts.last() else { return String::new() };
        let RunVerdict { seed, label, faults, failures, .. } = verdict;
        let result = failures.first().map_or("ok".to_owned(), |first| {
            format!("FAILED ({} reasons)\n    {}: {}", failures.len(), first.kind, first.text)
        });
        format!("seed {seed} ({label}): {}: {result}", faults.join(", "))
    }

    fn counts(&self, of: impl Fn(&RunVerdict) -> &Counts) -> Counts {
        let mut all = Counts::new();
        for (name, count) in self.verdicts.iter().flat_map(of) {
            let sum = all.entry(name.clone()).or_default();
            *sum = sum.plus(*count);
        }
        all
    }

    /// How often `unknown` was a right cause, by its reason. Such an answer is right, but does not explain the transition.
    fn unknown(&self) -> BTreeMap<&str, u32> {
        let mut by_reason: BTreeMap<&str, u32> = BTreeMap::new();
        for (reason, count) in self.verdicts.iter().flat_map(|verdict| &verdict.unknown_reasons) {
            *by_reason.entry(reason).or_default() += count;
        }
        by_reason
    }

    /// The number of all right causes.
    fn right_causes(&self) -> u32 {
        total(&self.counts(|verdict| &verdict.causes)).true_positive
    }

    fn unknown_line(&self) -> String {
        let mut reasons: Vec<(&str, u32)> = self.unknown().into_iter().collect();
        reasons.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let count: u32 = reasons.iter().map(|(_, count)| count).sum();
        let (right, colon) = (self.right_causes(), if reasons.is_empty() { "" } else { ": " });
        let reasons = reasons.iter().map(|(reason, count)| format!("`{reason}` {count}"));
        let reasons = reasons.collect::<Vec<String>>().join(", ");
        let share = share_text(share(count, right));
        format!("`unknown`: {count} of {right} right causes ({share}){colon}{reasons}")
    }

    /// The tables, and every failed seed with its reasons.
    pub fn text(&self) -> String {
        // The checker of the cluster does not judge causes.
        let is_cluster = self.verdicts.iter().any(|verdict| verdict.is_cluster);
        let mut text = String::new();
        table(&mut text, "finding", &self.counts(|verdict| &verdict.findings));
        if !is_cluster {
            table(&mut text, "cause", &self.counts(|verdict| &verdict.causes));
            let _ = writeln!(text, "\n{}", self.unknown_line());
        }
        for verdict in self.failed() {
            let _ = writeln!(text, "\nseed {} failed ({}):", verdict.seed, verdict.label);
            for failure in &verdict.failures {
                let _ = writeln!(text, "  {}: {}", failure.kind, failure.text);
            }
        }
        let transitions: u32 = self.verdicts.iter().map(|verdict| verdict.transitions).sum();
        let faults: usize = self.verdicts.iter().map(|verdict| verdict.faults.len()).sum();
        let (runs, failed) = (self.verdicts.len(), self.failed().count());
        let _ = write!(text, "\n{runs} runs, {failed} failed; {faults} faults");
        if !is_cluster {
            let _ = write!(text, ", {transitions} transitions");
        }
        text.push('\n');
        text
    }

    pub fn document(&self) -> Value {
        let mut verdicts: Vec<&RunVerdict> = self.verdicts.iter().collect();
        verdicts.sort_by_key(|verdict| verdict.seed);
        let mut failed: Vec<u64> = self.failed().map(|verdict| verdict.seed).collect();
        failed.sort_unstable();
        let totals = json!({ "findings": rows(&self.counts(|verdict| &verdict.findings)), "causes": self.causes() });
        json!({ "runs": verdicts.len(), "failed_seeds": failed, "totals": totals, "verdicts": verdicts })
    }

    /// The counts of causes, with the share of `unknown`.
    fn causes(&self) -> Value {
        let right = self.right_causes();
        let row = |count: u32| json!({ "right": count, "share": share(count, right) });
        let by_reason = self.unknown();
        let all = row(by_reason.values().sum());
        let by_reason: BTreeMap<&str, Value> =
            by_reason.into_iter().map(|(reason, count)| (reason, row(count))).collect();
        let mut causes = rows(&self.counts(|verdict| &verdict.causes));
        causes["unknown"] = json!({ "all": all, "by_reason": by_reason });
        causes
    }
}

fn total(counts: &Counts) -> JudgedCount {
    counts.values().fold(JudgedCount::default(), |total, count| total.plus(*count))
}

/// The part that `part` is of `whole`, from 0 to 1; `None` if there is no whole.
fn share(part: u32, whole: u32) -> Option<f64> {
    (whole > 0).then(|| f64::from(part) / f64::from(whole))
}

impl JudgedCount {
    fn plus(self, other: Self) -> Self {
        Self {
            true_positive: self.true_positive + other.true_positive,
            false_positive: self.false_positive + other.false_positive,
            false_negative: self.false_negative + other.false_negative,
            late: self.late + other.late,
        }
    }

    /// The share of right answers among the reported ones; `None` without any.
    fn precision(self) -> Option<f64> {
        share(self.true_positive, self.true_positive + self.false_positive)
    }

    /// The share of right answers among the expected ones; `None` without any.
    fn recall(self) -> Option<f64> {
        share(self.true_positive, self.true_positive + self.false_negative)
    }
}

/// Counts by name and together.
fn rows(counts: &Counts) -> Value {
    let row = |count: &JudgedCount| {
        json!({
            "right": count.true_positive, "without_reason": count.false_positive,
            "missing": count.false_negative, "late": count.late,
            "precision": count.precision(), "recall": count.recall(),
        })
    };
    let by_name: BTreeMap<&String, Value> =
        counts.iter().map(|(name, count)| (name, row(count))).collect();
    json!({ "all": row(&total(counts)), "by_name": by_name })
}

/// A Markdown table with precision and recall.
fn table(text: &mut String, title: &str, counts: &Counts) {
    let columns = "right | without reason | missing | late | precision | recall";
    let _ = writeln!(text, "\n| {title} | {columns} |\n|---|---|---|---|---|---|---|");
    let all = total(counts);
    let rows = counts.iter().map(|(name, count)| (name.as_str(), count));
    for (name, count) in rows.chain([("all", &all)]) {
        let JudgedCount { true_positive, false_positive, false_negative, late } = count;
        let (precision, recall) = (share_text(count.precision()), share_text(count.recall()));
        let counts = format!("{true_positive} | {false_positive} | {false_negative} | {late}");
        let _ = writeln!(text, "| `{name}` | {counts} | {precision} | {recall} |");
    }
}

fn share_text(share: Option<f64>) -> String {
    share.map_or("–".to_owned(), |share| format!("{share:.3}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two runs with 8 right causes together, 3 of them `unknown`, and one finding that is missing.
    fn summary() -> Summary {
        let mut summary = Summary::default();
        for (preempted, unknown, reason) in [(2, 2, "superseded"), (3, 1, "capture-incomplete")] {
            let mut verdict = RunVerdict::default();
            verdict.cause("preempted").true_positive = preempted;
            verdict.cause("unknown").true_positive = unknown;
            verdict.unknown_reasons.insert(reason.to_owned(), unknown);
            summary.verdicts.push(verdict);
        }
        summary.verdicts[0].cause("preempted").false_positive = 2;
        summary.verdicts[0].finding("flapping").false_negative = 1;
        summary
    }

    #[test]
    fn the_document_has_totals_by_name_and_together() {
        let totals = &summary().document()["totals"];
        let row = |right: u32, without_reason: u32, precision: f64| {
            json!({
                "right": right, "without_reason": without_reason, "missing": 0, "late": 0,
                "precision": precision, "recall": 1.0,
            })
        };
        assert_eq!(totals["causes"]["all"], row(8, 2, 0.8));
        assert_eq!(totals["causes"]["by_name"]["preempted"], row(5, 2, 5.0 / 7.0));
        assert_eq!(totals["causes"]["by_name"]["unknown"], row(3, 0, 1.0));
        let flapping = json!({
            "right": 0, "without_reason": 0, "missing": 1, "late": 0, "precision": null, "recall": 0.0,
        });
        assert_eq!(totals["findings"]["by_name"], json!({ "flapping": flapping }));
        assert_eq!(totals["findings"]["all"], flapping);
    }

    #[test]
    fn the_share_of_unknown_has_its_reasons() {
        let unknown = &summary().document()["totals"]["causes"]["unknown"];
        assert_eq!(unknown["all"], json!({ "right": 3, "share": 0.375 }));
        assert_eq!(unknown["by_reason"]["superseded"], json!({ "right": 2, "share": 0.25 }));
        let text = summary().text();
        let line = "| `all` | 8 | 2 | 0 | 0 | 0.800 | 1.000 |\n\n\
                    `unknown`: 3 of 8 right causes (0.375): `superseded` 2, `capture-incomplete` 1\n";
        assert!(text.contains(line), "{text}");
    }

    #[test]
    fn without_causes_there_is_no_share() {
        let summary = Summary::default();
        assert_eq!(summary.document()["totals"]["causes"]["unknown"]["all"]["share"], Value::Null);
        assert!(summary.text().contains("`unknown`: 0 of 0 right causes (–)\n"));
    }
}
