// SPDX-License-Identifier: Apache-2.0
//! The state in the log (SIGUSR1), for a process that cannot be queried, or for a report.
//!
//! A thread of its own writes it, so that the main loop does not wait while thousands of lines are formatted.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use vipwatch_api::{ReportItem, ReportList, TargetItem};
use vipwatch_core::InstanceId;
use vipwatch_history::QueueLength;
use vipwatch_linux::worker::workers;

use crate::log;
use crate::state::InstanceEntry;
use crate::view::{self, ApiContext};

/// Maximum number of lines about instances, and about routers of a receiver: as many as a large machine has. journald
/// accepts 10,000 lines in 30 s.
const MAX_INSTANCES: usize = 5000;

/// Maximum number of lines about targets.
const MAX_TARGETS: usize = 500;

/// Whether a dump is being written.
static IS_WRITING: AtomicBool = AtomicBool::new(false);

/// Writes the state of this process to the log: one line for each instance, target and thread, and the queues. If one is
/// being written already, this does nothing.
pub fn write_state_dump(context: &ApiContext) {
    if IS_WRITING.swap(true, Ordering::Relaxed) {
        return;
    }
    let context = context.clone();
    let work = move || {
        write(&context);
        IS_WRITING.store(false, Ordering::Relaxed);
    };
    if let Err(error) = std::thread::Builder::new().name("state-dump".to_owned()).spawn(work) {
        IS_WRITING.store(false, Ordering::Relaxed);
        tracing::error!(%error, "cannot start the thread that writes the state to the log");
    }
}

fn write(context: &ApiContext) {
    let (service, version) = (context.service.kind, env!("CARGO_PKG_VERSION"));
    tracing::info!("state begins: {service} {version}");
    let mut left_out = instances(context);
    left_out += targets(&view::targets(context).items);
    left_out += routers(context);
    queues(context);
    for (thread, age) in workers() {
        tracing::info!(thread, "state: thread {thread}: last heartbeat {} ms ago", age.as_millis());
    }
    for problem in context.store.health_problems() {
        let (finding, since) = (problem.kind.name(), view::timestamp(problem.since));
        tracing::info!(finding, "state: problem {finding} since {since}: {}", problem.text);
    }
    tracing::info!(left_out, "state ends, {left_out} lines left out");
}

/// Returns the number of instances that are left out.
fn instances(context: &ApiContext) -> usize {
    let view = context.store.view();
    for (id, entry) in view.entries.iter().take(MAX_INSTANCES) {
        instance(id, entry);
    }
    view.entries.len().saturating_sub(MAX_INSTANCES)
}

fn instance(id: &InstanceId, entry: &InstanceEntry) {
    let role = entry.role.kind().word();
    let since = view::timestamp(entry.since);
    let (netns, address) = (log::netns_name(&entry.instance), log::addresses(&entry.instance));
    let findings = entry.current_audit().map_or(0, |audit| audit.findings.len());
    let failing: Vec<&str> = entry.failures.keys().map(|(_, target)| target.as_str()).collect();
    tracing::info!(
        instance = %id,
        netns,
        address,
        role,
        "state: instance {id}: {role} since {since}, event {}, {findings} findings, failing targets: {failing:?}",
        entry.seq,
    );
}

/// Returns the number of targets that are left out.
fn targets(items: &[TargetItem]) -> usize {
    for target in items.iter().take(MAX_TARGETS) {
        let TargetItem { name, source, pending, delivered, failures, given_up, dropped, .. } =
            target;
        tracing::info!(
            "state: target {name} of the {source}: {pending} pending, {delivered} delivered, {failures} failures, \
             {given_up} given up, {dropped} dropped"
        );
    }
    items.len().saturating_sub(MAX_TARGETS)
}

/// The routers of which monitors report to the receiver of this process. Returns the number of those that are left out.
fn routers(context: &ApiContext) -> usize {
    let Ok(reports) = view::reports(context) else { return 0 };
    for report in reports.items.iter().take(MAX_INSTANCES) {
        let ReportItem { id, reported, settled, at, .. } = report;
        let settled = settled.as_deref().unwrap_or("none");
        tracing::info!(
            instance = id,
            "state: router {id}: reported {reported} at {at}, settled {settled}"
        );
    }
    let ReportList { accepted, pending, connections, problems, .. } = &reports;
    let problems = problems.len();
    tracing::info!(
        "state: receiver: {accepted} accepted, {pending} pending, {connections} connections, {problems} problems"
    );
    reports.items.len().saturating_sub(MAX_INSTANCES)
}

fn queues(context: &ApiContext) {
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let counters = &context.store.counters;
    let log = log::queue();
    let history = context.store.history_queue.get().map_or(0, QueueLength::get);
    tracing::info!(
        "state: queues: {history} for the history, {} bytes of the log, {} lines of the log lost, {} API connections, \
         {} event streams, {} TCP connections",
        log.bytes,
        log.lost,
        load(&counters.api_connections),
        load(&counters.api_streams),
        load(&counters.web_connections),
    );
    tracing::info!(
        "state: kernel: {} namespaces, {} sockets, {} snapshots, {} overruns, {} resyncs",
        load(&counters.namespaces),
        load(&counters.netlink_sockets),
        load(&counters.snapshots),
        load(&counters.overruns),
        load(&counters.resyncs),
    );
}
