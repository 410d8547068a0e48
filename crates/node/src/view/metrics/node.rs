// SPDX-License-Identifier: Apache-2.0
//! Metrics of the node: its instances in total, netlink, audit, findings, witness, announcements, history and main loop.

use std::sync::atomic::Ordering;

use vipwatch_core::RoleKind;
use vipwatch_history::Stage;

use super::process::counter;
use super::{MetricFamily, MetricValue, emit_one};

pub(super) const FAMILIES: &[MetricFamily] = families! { Node:
    Gauge "vipwatch_instances", "Instances with this role" => |facts, emit| {
        for (role, count) in RoleKind::ALL.into_iter().zip(facts.roles) {
            emit(&[("role", role.word())], MetricValue::Count(count));
        }
    };
    Histogram "vipwatch_delivery_latency_seconds", "Time from the kernel's event to the end of the delivery" =>
        |facts, emit| {
            for stage in Stage::ALL {
                let value = facts.context.store.latencies.of(stage).value();
                emit(&[("stage", stage.word())], MetricValue::Histogram(&value));
            }
        };
    Histogram "vipwatch_main_loop_turn_seconds",
        "Time for which the main loop worked in one turn; later events wait for its end" =>
        |facts, emit| emit(&[], MetricValue::Histogram(&facts.turns));
    Counter "vipwatch_netlink_overruns_total",
        "How often the kernel dropped netlink events because the buffer was full" =>
        |facts, emit| counter(facts, emit, |counters| &counters.overruns);
    Counter "vipwatch_netlink_resyncs_total",
        "How often all namespaces were read again after the kernel dropped events" =>
        |facts, emit| counter(facts, emit, |counters| &counters.resyncs);
    Counter "vipwatch_netlink_snapshots_total", "Snapshots of namespaces, after events and after overruns" =>
        |facts, emit| counter(facts, emit, |counters| &counters.snapshots);
    Gauge "vipwatch_netlink_sockets", "Netlink sockets for events" =>
        |facts, emit| counter(facts, emit, |counters| &counters.netlink_sockets);
    Gauge "vipwatch_namespaces", "Network namespaces that are followed" =>
        |facts, emit| counter(facts, emit, |counters| &counters.namespaces);
    Counter "vipwatch_audits_total", "Namespaces that the periodic audit has read" =>
        |facts, emit| counter(facts, emit, |counters| &counters.audits);
    Counter "vipwatch_audit_corrections_total", "Role changes that only the audit found" =>
        |facts, emit| counter(facts, emit, |counters| &counters.audit_corrections);
    Gauge "vipwatch_findings", "Open findings" => |facts, emit| {
        for ((name, severity), count) in &facts.findings {
            let labels = [("name", &**name), ("severity", severity)];
            emit(&labels, MetricValue::Count(*count));
        }
    };
    Counter "vipwatch_announcements_total", "Rounds of announcements of addresses, by their result" => |facts, emit| {
        let counters = &facts.context.store.counters;
        for (result, count) in [
            ("sent", &counters.announce_sent),
            ("refused", &counters.announce_refused),
            ("failed", &counters.announce_failed),
        ] {
            let count = count.load(Ordering::Relaxed);
            emit(&[("result", result)], MetricValue::Count(count));
        }
    };
    Counter "vipwatch_announce_duplicates_total", "Claims of other stations to an announced address" =>
        |facts, emit| counter(facts, emit, |counters| &counters.announce_duplicates);
    Counter "vipwatch_witness_adverts_total", "VRRP packets that the witness has read" =>
        |facts, emit| emit_one(emit, facts.context.store.witness.totals.read.load(Ordering::Relaxed));
    Counter "vipwatch_witness_bad_adverts_total", "VRRP packets that are not valid, or that a router has forwarded" =>
        |facts, emit| emit_one(emit, facts.context.store.witness.totals.bad.load(Ordering::Relaxed));
    Counter "vipwatch_witness_dropped_adverts_total",
        "VRRP packets that the kernel dropped because the queue of a capture was full" =>
        |facts, emit| emit_one(emit, facts.context.store.witness.totals.dropped.load(Ordering::Relaxed));
    Gauge "vipwatch_history_up", "1 if the history can be written" =>
        |facts, emit| counter(facts, emit, |counters| &counters.history_up);
    Counter "vipwatch_history_dropped_total", "Transitions that could not be recorded" =>
        |facts, emit| counter(facts, emit, |counters| &counters.history_dropped);
    Gauge "vipwatch_history_queue_length", "Messages that wait for the thread of the history" => |facts, emit| {
        let queue = facts.context.store.history_queue.get();
        emit_one(emit, queue.map_or(0, |queue| queue.get() as u64));
    };
    Gauge "vipwatch_history_size_bytes", "Size of the history on the disk" => |facts, emit| {
        if let Some(bytes) = facts.history_bytes {
            emit_one(emit, bytes);
        }
    };
    Gauge "vipwatch_silences", "Silences in force, also those of the cluster that cover this node" =>
        |facts, emit| emit_one(emit, crate::view::silences(&facts.context).items.len() as u64);
};
