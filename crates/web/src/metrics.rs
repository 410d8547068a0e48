// SPDX-License-Identifier: Apache-2.0
//! The text of the metrics: OpenMetrics through the crate `prometheus-client`, or the older text format of Prometheus.
//!
//! The text is made in parts, so that neither the values nor the text of thousands of instances are in memory together. A
//! part is encoded by a registry of its own, which writes the head of the family each time: only that of the first part
//! is kept.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use axum::http::{HeaderMap, HeaderValue, header};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use vipwatch_api::{ErrorCode, ProblemDocument};
use vipwatch_node::view::{MetricFamily, MetricKind, MetricLabels, MetricValue, MetricsSnapshot};

/// Size in bytes from which on a part is complete.
const PART_BYTES: usize = 16 << 10;

/// The number of instances that are encoded at once.
const STEPS_AT_ONCE: usize = 32;

/// A text format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MetricsFormat {
    /// OpenMetrics 1.0.0.
    OpenMetrics,
    /// The older text format, version 0.0.4. The node exporter and `promtool check metrics` read only this one.
    Classic,
}

impl MetricsFormat {
    /// The format that a client wants: OpenMetrics, unless it names only `text/plain`.
    pub(crate) fn negotiate(headers: &HeaderMap) -> Result<Self, ProblemDocument> {
        let values = headers.get_all(header::ACCEPT).iter();
        let text: Vec<&str> = values.map(|value| value.to_str().unwrap_or_default()).collect();
        let types: Vec<String> = text
            .iter()
            .flat_map(|value| value.split(','))
            .map(|range| range.split(';').next().unwrap_or_default().trim().to_ascii_lowercase())
            .filter(|range| !range.is_empty())
            .collect();
        let names = |wanted: &[&str]| types.iter().any(|one| wanted.contains(&one.as_str()));
        if types.is_empty() || names(&["application/openmetrics-text", "application/*"]) {
            Ok(Self::OpenMetrics)
        } else if names(&["text/plain", "text/*"]) {
            Ok(Self::Classic)
        } else if names(&["*/*"]) {
            Ok(Self::OpenMetrics)
        } else {
            let detail = "this route answers with application/openmetrics-text or text/plain";
            Err(ProblemDocument::new(ErrorCode::NotAcceptable, detail))
        }
    }

    pub(crate) fn content_type(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Classic => "text/plain; version=0.0.4; charset=utf-8",
        })
    }
}

/// The text of a snapshot, in parts.
#[derive(Debug)]
pub(crate) struct MetricsText {
    snapshot: Arc<MetricsSnapshot>,
    format: MetricsFormat,
    /// The family that is being encoded; the number of families at the end.
    family: usize,
    /// The first step of this family that is not encoded.
    step: usize,
    has_ended: bool,
}

impl MetricsText {
    pub(crate) fn new(snapshot: MetricsSnapshot, format: MetricsFormat) -> Self {
        Self { snapshot: Arc::new(snapshot), format, family: 0, step: 0, has_ended: false }
    }

    /// Adds the next steps of the current family to `text`.
    fn advance(&mut self, family: &'static MetricFamily, text: &mut String) -> fmt::Result {
        let total = self.snapshot.steps(family);
        let steps = self.step..total.min(self.step + STEPS_AT_ONCE);
        let is_first = self.step == 0;
        self.step = steps.end;
        if self.step >= total {
            self.family += 1;
            self.step = 0;
        }
        let begin = text.len();
        let part = FamilyPart { snapshot: Arc::clone(&self.snapshot), family, steps };
        let mut registry = Registry::default();
        registry.register_collector(Box::new(part));
        encode_registry(text, &registry)?;
        if is_first && self.format == MetricsFormat::OpenMetrics {
            return Ok(());
        }
        let end_of_head = begin + head_length(&text[begin..]);
        let head = if is_first { classic_head(family) } else { String::new() };
        text.replace_range(begin..end_of_head, &head);
        Ok(())
    }
}

impl Iterator for MetricsText {
    type Item = Result<String, fmt::Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.has_ended {
            return None;
        }
        let mut text = String::with_capacity(PART_BYTES + PART_BYTES / 2);
        while text.len() < PART_BYTES {
            let Some(family) = self.snapshot.families().get(self.family).copied() else {
                self.has_ended = true;
                let ended = match self.format {
                    MetricsFormat::OpenMetrics => encode_eof(&mut text),
                    MetricsFormat::Classic => Ok(()),
                };
                return Some(ended.map(|()| text));
            };
            if let Err(error) = self.advance(family, &mut text) {
                self.has_ended = true;
                return Some(Err(error));
            }
        }
        Some(Ok(text))
    }
}

/// The length of the lines that begin with `#` at the beginning of a text.
fn head_length(text: &str) -> usize {
    let lines = text.split_inclusive('\n').take_while(|line| line.starts_with('#'));
    lines.map(str::len).sum()
}

/// The head of a family in the older text format: a counter has its full name, and there is no type `info`.
fn classic_head(family: &MetricFamily) -> String {
    let MetricFamily { name, help, kind, .. } = family;
    let kind = match kind {
        MetricKind::Counter => "counter",
        MetricKind::Gauge | MetricKind::Info => "gauge",
        MetricKind::Histogram => "histogram",
    };
    format!("# HELP {name} {help}\n# TYPE {name} {kind}\n")
}

/// Some samples of one family.
#[derive(Debug)]
struct FamilyPart {
    snapshot: Arc<MetricsSnapshot>,
    family: &'static MetricFamily,
    steps: Range<usize>,
}

impl Collector for FamilyPart {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let MetricFamily { name, help, kind, .. } = self.family;
        // The encoder adds the suffix of a counter and of an info.
        let (kind, suffix) = match kind {
            MetricKind::Counter => (MetricType::Counter, "_total"),
            MetricKind::Gauge => (MetricType::Gauge, ""),
            MetricKind::Histogram => (MetricType::Histogram, ""),
            MetricKind::Info => (MetricType::Info, "_info"),
        };
        let name = name.strip_suffix(suffix).unwrap_or(name);
        let mut encoder = encoder.encode_descriptor(name, help, None, kind)?;
        let mut result = Ok(());
        self.snapshot.emit(self.family, self.steps.clone(), &mut |labels, value| {
            if result.is_ok() {
                result = encode_labelled(&mut encoder, self.family.kind, labels, value);
            }
        });
        result
    }
}

fn encode_labelled(
    encoder: &mut MetricEncoder<'_>,
    kind: MetricKind,
    labels: &MetricLabels<'_>,
    value: MetricValue<'_>,
) -> fmt::Result {
    match (labels, kind) {
        (labels, MetricKind::Info) => encoder.encode_info(&labels),
        ([], _) => encode_value(encoder, kind, value),
        (labels, _) => encode_value(&mut encoder.encode_family(&labels)?, kind, value),
    }
}

fn encode_value(
    encoder: &mut MetricEncoder<'_>,
    kind: MetricKind,
    value: MetricValue<'_>,
) -> fmt::Result {
    match (kind, value) {
        (MetricKind::Counter, MetricValue::Count(count)) => {
            encoder.encode_counter::<NoLabelSet, _, u64>(&count, None)
        }
        (MetricKind::Counter, MetricValue::Number(number)) => {
            encoder.encode_counter::<NoLabelSet, _, u64>(&number, None)
        }
        (_, MetricValue::Count(count)) => encoder.encode_gauge(&count),
        (_, MetricValue::Number(number)) => encoder.encode_gauge(&number),
        (_, MetricValue::Histogram(value)) => {
            encoder.encode_histogram::<NoLabelSet>(value.sum, value.count, &value.buckets, None)
        }
    }
}

#[cfg(test)]
mod tests;
