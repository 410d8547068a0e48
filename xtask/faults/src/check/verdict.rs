// SPDX-License-Identifier: Apache-2.0
//! The result of judging one run.

use std::collections::BTreeMap;

use serde::Serialize;

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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
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

/// One reason why a run failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RunFailure {
    /// One of the words in docs/reference/faults.md, `answers`, or `lab`.
    pub kind: &'static str,
    pub text: String,
}

/// The result of one run.
#[derive(Debug, Clone, Default, Serialize)]
pub struct RunVerdict {
    pub seed: u64,
    pub label: String,
    /// The words of the injected faults.
    pub faults: Vec<String>,
    /// The run is about the cluster. Its checker does not judge causes.
    #[serde(skip)]
    pub is_cluster: bool,
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

    /// A finding without a reason.
    pub fn unexpected_finding(&mut self, name: &str, text: String) {
        self.finding(name).false_positive += 1;
        self.fail("finding-without-fault", text);
    }

    pub fn missing_finding(&mut self, name: &str, text: String) {
        self.finding(name).false_negative += 1;
        self.fail("finding-missing", text);
    }

    /// A finding that was opened or closed at the wrong time.
    pub fn late_finding(&mut self, kind: &'static str, name: &str, text: String) {
        self.finding(name).late += 1;
        self.fail(kind, text);
    }

    pub fn cause(&mut self, word: &str) -> &mut JudgedCount {
        self.causes.entry(word.to_owned()).or_default()
    }
}
