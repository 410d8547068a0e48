// SPDX-License-Identifier: Apache-2.0
//! The result of judging one run.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::moment::Micros;

/// The properties of the answers that are judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strictness {
    /// That each finding and each cause is there, in the right order.
    Presence,
    /// Deadlines too.
    Deadlines,
}

impl Strictness {
    /// A limit for a machine of known or of unknown speed.
    pub fn limit(self, exact: Micros) -> Micros {
        match self {
            Self::Presence => exact * 10,
            Self::Deadlines => exact,
        }
    }
}

/// Counts of one kind of finding, or of one cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct JudgedCount {
    /// Right and expected.
    pub true_positive: u32,
    /// Reported without a reason.
    pub false_positive: u32,
    /// Expected and not reported.
    pub false_negative: u32,
    /// Reported or closed after its deadline.
    pub late: u32,
}

impl JudgedCount {
    pub fn add(&mut self, other: Self) {
        self.true_positive += other.true_positive;
        self.false_positive += other.false_positive;
        self.false_negative += other.false_negative;
        self.late += other.late;
    }

    /// The share of right answers among the reported ones; `None` without any.
    pub fn precision(self) -> Option<f64> {
        share(self.true_positive, self.true_positive + self.false_positive)
    }

    /// The share of right answers among the expected ones; `None` without any.
    pub fn recall(self) -> Option<f64> {
        share(self.true_positive, self.true_positive + self.false_negative)
    }

    fn document(self) -> Value {
        json!({
            "true_positive": self.true_positive,
            "false_positive": self.false_positive,
            "false_negative": self.false_negative,
            "late": self.late,
        })
    }
}

/// The part that `part` is of `whole`, from 0 to 1; `None` if there is no whole.
pub fn share(part: u32, whole: u32) -> Option<f64> {
    (whole > 0).then(|| f64::from(part) / f64::from(whole))
}

/// One reason why a run failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunFailure {
    /// `finding-missing`, `finding-late`, `finding-not-closed`, `finding-without-fault`, `cause-wrong`,
    /// `cause-missing`, `cause-event-missing`, `cause-event-wrong`, `cause-event-late`, `evidence-wrong`, `transition-missing`, `transition-wrong`, `lab`.
    pub kind: &'static str,
    pub text: String,
}

/// The result of one run.
#[derive(Debug, Clone, Default)]
pub struct RunVerdict {
    pub seed: u64,
    pub label: String,
    /// The words of the injected faults.
    pub faults: Vec<String>,
    pub findings: BTreeMap<String, JudgedCount>,
    pub causes: BTreeMap<String, JudgedCount>,
    /// How often `unknown` was right, by its reason.
    pub unknown_reasons: BTreeMap<String, u32>,
    /// The number of transitions that were compared.
    pub transitions: u32,
    pub failures: Vec<RunFailure>,
}

impl RunVerdict {
    /// A run that could not be recorded or judged.
    pub fn broken(seed: u64, error: &str) -> Self {
        let mut verdict = Self { seed, ..Self::default() };
        verdict.fail("lab", error.to_owned());
        verdict
    }

    pub fn fail(&mut self, kind: &'static str, text: String) {
        self.failures.push(RunFailure { kind, text });
    }

    pub fn finding(&mut self, name: &str) -> &mut JudgedCount {
        self.findings.entry(name.to_owned()).or_default()
    }

    pub fn cause(&mut self, word: &str) -> &mut JudgedCount {
        self.causes.entry(word.to_owned()).or_default()
    }

    pub fn document(&self) -> Value {
        let counts = |counts: &BTreeMap<String, JudgedCount>| -> Value {
            counts.iter().map(|(name, count)| (name.clone(), count.document())).collect()
        };
        let failures = self.failures.iter();
        json!({
            "seed": self.seed,
            "label": self.label,
            "faults": self.faults,
            "transitions": self.transitions,
            "findings": counts(&self.findings),
            "causes": counts(&self.causes),
            "unknown_reasons": self.unknown_reasons,
            "failures": failures
                .map(|failure| json!({ "kind": failure.kind, "text": failure.text }))
                .collect::<Vec<_>>(),
        })
    }
}
