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

    /// The tables, and every failed seed with its reasons.
    pub fn text(&self) -> String {
        let mut text = String::new();
        table(&mut text, "finding", &self.counts(|verdict| &verdict.findings));
        table(&mut text, "cause", &self.counts(|verdict| &verdict.causes));
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
        let _ = writeln!(
            text,
            "\n{} runs, {} failed; {faults} faults, {transitions} transitions",
            self.verdicts.len(),
            failed.len()
        );
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
            "verdicts": verdicts.iter().map(|verdict| verdict.document()).collect::<Vec<_>>(),
        })
    }
}

/// A Markdown table with precision and recall.
fn table(text: &mut String, title: &str, counts: &Counts) {
    let _ = writeln!(
        text,
        "\n| {title} | right | without reason | missing | late | precision | recall |"
    );
    text.push_str("|---|---|---|---|---|---|---|\n");
    let mut total = JudgedCount::default();
    for (name, count) in counts {
        total.add(*count);
        row(text, name, *count);
    }
    row(text, "all", total);
}

fn row(text: &mut String, name: &str, count: JudgedCount) {
    let JudgedCount { true_positive: right, false_positive: extra, false_negative: missing, late } =
        count;
    let share = |part: u32, other: u32| {
        if part + other == 0 {
            "–".to_owned()
        } else {
            format!("{:.3}", f64::from(part) / f64::from(part + other))
        }
    };
    let (precision, recall) = (share(right, extra), share(right, missing));
    let _ = writeln!(
        text,
        "| `{name}` | {right} | {extra} | {missing} | {late} | {precision} | {recall} |"
    );
}
