// SPDX-License-Identifier: Apache-2.0
//! The results of all seeds: a line for each run, and a table at the end.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::check::verdict::{JudgedCount, RunVerdict, share};

/// The verdicts in the order in which the runs ended.
#[derive(Default)]
pub struct Summary {
    pub verdicts: Vec<RunVerdict>,
    /// The runs are about the cluster. Its checker does not judge causes.
    pub is_cluster: bool,
}

/// The counts of all runs, by the name of a finding or the word of a cause.
type Counts = BTreeMap<String, JudgedCount>;

impl Summary {
    pub fn add(&mut self, verdict: RunVerdict) {
        self.verdicts.push(verdict);
    }

    pub fn is_clean(&self) -> bool {
        self.verdicts.iter().all(|verdict| verdict.failures.is_empty())
    }

    /// The result of the newest run.
    pub fn last_line(&self) -> String {
        let Some(verdict) = self.verdicts.last() else { return String::new() };
        let RunVerdict { seed, label, faults, failures, .. } = verdict;
        let result = match failures.first() {
            None => "ok".to_owned(),
            Some(first) => {
                format!("FAILED ({} reasons)\n    {}: {}", failures.len(), first.kind, first.text)
            }
        };
        format!("seed {seed} ({label}): {}: {result}", faults.join(", "))
    }

    fn counts(&self, of: impl Fn(&RunVerdict) -> &Counts) -> Counts {
        let mut all = Counts::new();
        for (name, count) in self.verdicts.iter().flat_map(of) {
            all.entry(name.clone()).or_default().add(*count);
        }
        all
    }

    /// How often `unknown` was a right cause.
    fn unknown_share(&self) -> UnknownShare {
        let mut by_reason: BTreeMap<String, u32> = BTreeMap::new();
        for (reason, count) in self.verdicts.iter().flat_map(|verdict| &verdict.unknown_reasons) {
            *by_reason.entry(reason.clone()).or_default() += count;
        }
        let right = total(&self.counts(|verdict| &verdict.causes)).true_positive;
        UnknownShare { by_reason, right }
    }

    /// The tables, and every failed seed with its reasons.
    pub fn text(&self) -> String {
        let mut text = String::new();
        table(&mut text, "finding", &self.counts(|verdict| &verdict.findings));
        if !self.is_cluster {
            table(&mut text, "cause", &self.counts(|verdict| &verdict.causes));
            let _ = writeln!(text, "\n{}", self.unknown_share().line());
        }
        let failed: Vec<&RunVerdict> =
            self.verdicts.iter().filter(|verdict| !verdict.failures.is_empty()).collect();
        for verdict in &failed {
            let _ = writeln!(text, "\nseed {} failed ({}):", verdict.seed, verdict.label);
            for failure in &verdict.failures {
                let _ = writeln!(text, "  {}: {}", failure.kind, failure.text);
            }
        }
        let transitions: u32 = self.verdicts.iter().map(|verdict| verdict.transitions).sum();
        let faults: usize = self.verdicts.iter().map(|verdict| verdict.faults.len()).sum();
        let (runs, failed) = (self.verdicts.len(), failed.len());
        let _ = write!(text, "\n{runs} runs, {failed} failed; {faults} faults");
        if !self.is_cluster {
            let _ = write!(text, ", {transitions} transitions");
        }
        text.push('\n');
        text
    }

    pub fn document(&self) -> Value {
        let mut verdicts: Vec<&RunVerdict> = self.verdicts.iter().collect();
        verdicts.sort_by_key(|verdict| verdict.seed);
        let failed: Vec<u64> = verdicts
            .iter()
            .filter(|verdict| !verdict.failures.is_empty())
            .map(|verdict| verdict.seed)
            .collect();
        json!({
            "runs": verdicts.len(),
            "failed_seeds": failed,
            "totals": self.totals(),
            "verdicts": verdicts.iter().map(|verdict| verdict.document()).collect::<Vec<_>>(),
        })
    }

    /// The counts of all runs, by name and together.
    fn totals(&self) -> Value {
        let rows = |counts: &Counts| -> Value {
            let by_name: BTreeMap<&String, Value> =
                counts.iter().map(|(name, count)| (name, total_document(*count))).collect();
            json!({ "all": total_document(total(counts)), "by_name": by_name })
        };
        let mut causes = rows(&self.counts(|verdict| &verdict.causes));
        causes["unknown"] = self.unknown_share().document();
        json!({ "findings": rows(&self.counts(|verdict| &verdict.findings)), "causes": causes })
    }
}

/// How often `unknown` was a right cause: such an answer is right, but does not explain the transition.
struct UnknownShare {
    /// The number of right answers `unknown`, by their reason.
    by_reason: BTreeMap<String, u32>,
    /// The number of all right causes.
    right: u32,
}

impl UnknownShare {
    fn count(&self) -> u32 {
        self.by_reason.values().sum()
    }

    fn line(&self) -> String {
        let (count, right) = (self.count(), self.right);
        let mut line = format!("`unknown`: {count} of {right} right causes");
        let _ = write!(line, " ({})", share_text(share(count, right)));
        let mut reasons: Vec<(&String, &u32)> = self.by_reason.iter().collect();
        reasons.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        let reasons = reasons.iter().map(|(reason, count)| format!("`{reason}` {count}"));
        let reasons: Vec<String> = reasons.collect();
        if !reasons.is_empty() {
            let _ = write!(line, ": {}", reasons.join(", "));
        }
        line
    }

    fn document(&self) -> Value {
        let row = |count: u32| json!({ "right": count, "share": share(count, self.right) });
        let by_reason: BTreeMap<&String, Value> =
            self.by_reason.iter().map(|(reason, count)| (reason, row(*count))).collect();
        json!({ "all": row(self.count()), "by_reason": by_reason })
    }
}

fn total(counts: &Counts) -> JudgedCount {
    let mut total = JudgedCount::default();
    for count in counts.values() {
        total.add(*count);
    }
    total
}

fn total_document(count: JudgedCount) -> Value {
    json!({
        "right": count.true_positive,
        "without_reason": count.false_positive,
        "missing": count.false_negative,
        "late": count.late,
        "precision": count.precision(),
        "recall": count.recall(),
    })
}

/// A Markdown table with precision and recall.
fn table(text: &mut String, title: &str, counts: &Counts) {
    let _ = writeln!(
        text,
        "\n| {title} | right | without reason | missing | late | precision | recall |"
    );
    text.push_str("|---|---|---|---|---|---|---|\n");
    for (name, count) in counts {
        row(text, name, *count);
    }
    row(text, "all", total(counts));
}

fn row(text: &mut String, name: &str, count: JudgedCount) {
    let JudgedCount { true_positive: right, false_positive: extra, false_negative: missing, late } =
        count;
    let (precision, recall) = (share_text(count.precision()), share_text(count.recall()));
    let _ = writeln!(
        text,
        "| `{name}` | {right} | {extra} | {missing} | {late} | {precision} | {recall} |"
    );
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
            summary.add(verdict);
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
