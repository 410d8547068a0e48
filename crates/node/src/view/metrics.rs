// SPDX-License-Identifier: Apache-2.0
//! The metrics of a node or a receiver, as plain values. The crate `web` encodes them.
//!
//! ```text
//!   published state, targets, findings, /proc ──▶ MetricsSnapshot ──▶ families ──▶ samples ──▶ web::metrics (text)
//! ```
//!
//! There is no registry that must be kept in step: all values are read when a client asks for them. A family is a constant
//! with a function that emits its samples, so that the samples of thousands of instances are never in memory together.

/// A table of families: the type, the name and the help of each, and the function that emits its samples. The variant of
/// [`FamilySamples`] says from what.
macro_rules! families {
    ($from:ident: $($kind:ident $name:literal, $help:expr => $samples:expr;)+) => {
        &[$(MetricFamily {
            name: $name,
            help: $help,
            kind: super::MetricKind::$kind,
            samples: super::FamilySamples::$from($samples),
        }),+]
    };
}

mod cluster;
mod conntrack;
mod facts;
mod instance;
mod keepalived;
mod neutron;
mod node;
mod process;
mod receiver;
mod targets;

use std::ops::Range;
use std::sync::Arc;

use self::cluster::ClusterNumbers;
use self::facts::MetricFacts;
use self::neutron::NeutronNumbers;
use super::{ApiContext, ServiceKind};
use crate::state::{HistogramValue, InstanceEntry};

/// The type of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// A number that only grows, from the start of the process. Its name ends in `_total`.
    Counter,
    /// A number that can fall.
    Gauge,
    /// A distribution in buckets.
    Histogram,
    /// A text in labels; the value is 1. Its name ends in `_info`.
    Info,
}

/// The value of a sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum MetricValue<'v> {
    /// A whole number.
    Count(u64),
    /// A number with a fraction.
    Number(f64),
    /// A distribution.
    Histogram(&'v HistogramValue),
}

/// The label names and values of a sample.
pub type MetricLabels<'l> = [(&'static str, &'l str)];

/// The function that takes the samples of a family.
pub type EmitSample<'e> = dyn FnMut(&MetricLabels<'_>, MetricValue<'_>) + 'e;

/// All samples with one name.
#[derive(Debug, Clone, Copy)]
pub struct MetricFamily {
    /// The name, with `_total` or `_info`.
    pub name: &'static str,
    /// The meaning, in one sentence without a full stop.
    pub help: &'static str,
    /// The type.
    pub kind: MetricKind,
    samples: FamilySamples,
}

/// How the samples of a family are made.
#[derive(Debug, Clone, Copy)]
enum FamilySamples {
    /// From facts about the node.
    Node(fn(&MetricFacts, &mut EmitSample<'_>)),
    /// From facts about the cluster, if one is configured.
    Cluster(fn(&ClusterNumbers, &mut EmitSample<'_>)),
    /// From facts about the comparison with Neutron, if one is configured.
    Neutron(fn(&NeutronNumbers, &mut EmitSample<'_>)),
    /// From each instance.
    Instance(fn(&InstanceFacts<'_>, &mut EmitSample<'_>)),
}

/// One instance, for its samples.
#[derive(Debug, Clone, Copy)]
struct InstanceFacts<'f> {
    node: &'f MetricFacts,
    entry: &'f InstanceEntry,
}

/// A sample without labels.
fn emit_one(emit: &mut EmitSample<'_>, value: u64) {
    emit(&[], MetricValue::Count(value));
}

/// The metrics of one moment.
#[derive(Debug)]
pub struct MetricsSnapshot {
    families: Vec<&'static MetricFamily>,
    facts: MetricFacts,
    /// In the order of their ids; empty if no family has samples of instances.
    entries: Vec<Arc<InstanceEntry>>,
}

impl MetricsSnapshot {
    /// All families of this snapshot.
    pub fn families(&self) -> &[&'static MetricFamily] {
        &self.families
    }

    /// Leaves out the families about the process, which have the same names for every program: the node exporter rejects
    /// them in a text file, because it exports its own.
    #[must_use]
    pub fn without_process_families(mut self) -> Self {
        self.families.retain(|family| !family.name.starts_with("process_"));
        self
    }

    /// The number of steps in which the samples of a family are made: one for each instance, or one.
    pub fn steps(&self, family: &MetricFamily) -> usize {
        match family.samples {
            FamilySamples::Node(_) | FamilySamples::Cluster(_) | FamilySamples::Neutron(_) => 1,
            FamilySamples::Instance(_) => self.entries.len(),
        }
    }

    /// Makes the samples of some steps of a family.
    pub fn emit(&self, family: &MetricFamily, steps: Range<usize>, emit: &mut EmitSample<'_>) {
        match family.samples {
            FamilySamples::Instance(samples) => {
                for entry in self.entries.get(steps).unwrap_or_default() {
                    samples(&InstanceFacts { node: &self.facts, entry }, emit);
                }
            }
            _ if !steps.contains(&0) => {}
            FamilySamples::Node(samples) => samples(&self.facts, emit),
            FamilySamples::Cluster(samples) => {
                self.facts.cluster.iter().for_each(|cluster| samples(cluster, emit));
            }
            FamilySamples::Neutron(samples) => {
                self.facts.neutron.iter().for_each(|neutron| samples(neutron, emit));
            }
        }
    }
}

/// The metrics of this process. Reads the history and `/proc`.
pub fn metrics(context: &ApiContext) -> MetricsSnapshot {
    let mut families: Vec<&MetricFamily> = process::FAMILIES.iter().collect();
    if context.service.kind == ServiceKind::Node {
        families.extend(node::FAMILIES.iter().chain(conntrack::SUMS));
        if context.service.metrics.is_per_instance {
            families.extend(instance::FAMILIES.iter().chain(conntrack::FAMILIES));
        } else {
            families.extend(instance::AGGREGATES);
        }
    }
    families.extend(targets::FAMILIES);
    let mut entries = entries(context);
    let facts = MetricFacts::read(context, &entries);
    if !context.service.metrics.is_per_instance {
        entries.clear();
    }
    if facts.cluster.is_some() {
        families.extend(cluster::FAMILIES);
    }
    if facts.neutron.is_some() {
        families.extend(neutron::FAMILIES);
    }
    if facts.reports.is_some() {
        families.extend(receiver::FAMILIES);
    }
    MetricsSnapshot { families, facts, entries }
}

/// The metrics with the names that exporters for keepalived use.
pub fn keepalived_metrics(context: &ApiContext) -> MetricsSnapshot {
    MetricsSnapshot {
        families: keepalived::PROCESSES.iter().chain(keepalived::FAMILIES).collect(),
        facts: MetricFacts::without_reading(context),
        entries: entries(context),
    }
}

/// Copies the list of entries: while a reader holds the view, the next change must copy all of it.
fn entries(context: &ApiContext) -> Vec<Arc<InstanceEntry>> {
    context.store.view().entries.values().cloned().collect()
}

#[cfg(test)]
mod tests;
