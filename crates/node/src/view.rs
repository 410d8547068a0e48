// SPDX-License-Identifier: Apache-2.0
//! Builds the documents of the API from the published state, the history and the receiver's state.
//!
//! The HTTP server and the commands that run without a node (`--direct`) call the same functions, so both give the
//! same documents. Functions that read files or the kernel say so: the server calls them on other threads.

mod adverts;
mod cluster;
mod context;
mod events;
mod findings;
mod history;
mod instances;
mod metrics;
mod receiver;
mod silences;
mod targets;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use vipwatch_api::{
    ConfigDocument, ErrorCode, NodeStatus, ProblemDocument, ReloadDocument, ReloadOutcome,
    RoleSummary, Schema, SeveritySummary, Timestamp, VersionDocument, timestamp_from_millis,
};
use vipwatch_core::Role;
use vipwatch_history::{HistoryError, Reader};

pub use self::cluster::{
    cluster_findings, cluster_groups, cluster_history, cluster_nodes, cluster_status,
};
pub use self::context::{ApiContext, ReloadGaps, ReloadState, ServiceInfo, ServiceKind};
pub use self::events::{EventBackfill, RecordedEvent};
pub(crate) use self::findings::{CurrentFindings, FindingSources};
pub use self::findings::{NodeExpectation, audit_now, findings};
pub use self::history::HistoryPages;
pub use self::instances::{SelectedInstances, config_problems, instance, instances, select};
pub use self::metrics::{
    EmitSample, MetricFamily, MetricKind, MetricLabels, MetricValue, MetricsSnapshot,
    keepalived_metrics, metrics,
};
pub use self::receiver::{report_of, reports};
pub(crate) use self::silences::silenced_until;
pub use self::silences::{create_silence, end_silence, silences};
pub use self::targets::targets;
pub(crate) use crate::event::time as timestamp;
use crate::state::{PublishedState, StateStore};
use crate::transition::millis;

/// The node itself. Reads the history: the findings are those of [`findings()`], and the metrics of targets are the sums of
/// [`targets()`].
pub fn status(context: &ApiContext) -> NodeStatus {
    let mut known = SeveritySummary::default();
    for item in findings(context).items {
        findings::count(&mut known, item.severity);
    }
    let view = context.store.view();
    let roles = role_summary(&view);
    let counted = context.store.counters.metrics().into_iter();
    let metrics = counted.chain(targets::metrics(&targets(context).items));
    NodeStatus {
        schema: Schema::Status,
        node: context.node.to_string(),
        source: context.source,
        epoch: context.store.epoch().to_string(),
        seq: context.store.events.last_seq(),
        roles,
        findings: known,
        health: findings::health(context),
        problems: config_problems(&view.problems),
        silences: silences(context).items,
        metrics: metrics.map(|(name, value)| (name.to_owned(), value)).collect(),
    }
}

/// The number of instances with each role.
pub(crate) fn role_summary(view: &PublishedState) -> RoleSummary {
    let mut roles = RoleSummary::default();
    for entry in view.entries.values() {
        roles.instances += 1;
        *match entry.role {
            Role::Primary => &mut roles.primary,
            Role::Partial { .. } => &mut roles.partial,
            Role::Backup => &mut roles.backup,
            Role::Fault(_) => &mut roles.fault,
            Role::Unknown(_) => &mut roles.unknown,
        } += 1;
    }
    roles
}

/// The commit that the program was built from.
static COMMIT: OnceLock<&str> = OnceLock::new();

/// Sets the commit that the program was built from. Its crate has the commit, so that a new one does not compile this
/// crate again.
pub fn set_commit(commit: &'static str) {
    // Only the first call has an effect.
    let _ = COMMIT.set(commit);
}

/// The program, its process and its last reload.
pub fn version(context: &ApiContext) -> VersionDocument {
    let reload = context.service.reload_state();
    VersionDocument {
        schema: Schema::Version,
        node: context.node.to_string(),
        service: context.service.kind.to_string(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        commit: COMMIT.get().map(|commit| (*commit).to_owned()),
        pid: std::process::id(),
        started_at: timestamp(context.service.started_at),
        config_file: reload.config_file.map(|file| file.display().to_string()),
        last_reload: reload.last_reload,
    }
}

/// How a reload ended.
pub fn reload(context: &ApiContext, outcome: ReloadOutcome) -> ReloadDocument {
    let VersionDocument { node, service, pid, config_file, .. } = version(context);
    ReloadDocument { schema: Schema::Reload, node, service, pid, config_file, reload: outcome }
}

/// The settings in force.
pub fn config(context: &ApiContext) -> ConfigDocument {
    let reload = context.service.reload_state();
    ConfigDocument {
        schema: Schema::Config,
        node: context.node.to_string(),
        file: reload.config_file.map(|file| file.display().to_string()),
        loaded_at: timestamp(reload.loaded_at),
        settings: reload.settings,
    }
}

/// A time as the API writes it; `None` for the Unix epoch, which stands for an unknown time.
fn known_timestamp(at: SystemTime) -> Option<Timestamp> {
    Some(millis(at)).filter(|millis| *millis > 0).map(timestamp_from_millis)
}

/// Reads the history. A damaged file is reported to the node, which renames it and begins a new one.
pub(crate) fn read_history<T>(
    context: &ApiContext,
    read: impl FnOnce(Reader) -> Result<T, HistoryError>,
) -> Result<T, HistoryError> {
    read_history_of(&context.store, &context.state_dir, read)
}

/// The same for a thread without an [`ApiContext`].
fn read_history_of<T>(
    store: &StateStore,
    state_dir: &Path,
    read: impl FnOnce(Reader) -> Result<T, HistoryError>,
) -> Result<T, HistoryError> {
    let read = Reader::open(state_dir).and_then(read);
    if read.as_ref().is_err_and(HistoryError::is_damage) {
        store.report_history_damage();
    }
    read
}

/// How long a thread waits for the history that must go on while the disk does not answer.
const HISTORY_LIMIT: Duration = Duration::from_secs(5);

/// As [`read_history_of`], on a thread of its own; `None` if that fails, or if the disk does not answer.
fn read_history_in_time<T: Send + 'static>(
    store: &Arc<StateStore>,
    state_dir: &Path,
    read: impl FnOnce(Reader) -> Result<T, HistoryError> + Send + 'static,
) -> Option<T> {
    /// An earlier read has had no answer yet.
    static IS_LATE: AtomicBool = AtomicBool::new(false);
    if IS_LATE.load(Ordering::SeqCst) {
        return None;
    }
    let (answer, answered) = sync_channel(1);
    let (store, state_dir) = (Arc::clone(store), state_dir.to_owned());
    let thread = std::thread::Builder::new().spawn(move || {
        let _ = answer.send(read_history_of(&store, &state_dir, read));
        IS_LATE.store(false, Ordering::SeqCst);
    });
    thread.ok()?;
    if let Ok(read) = answered.recv_timeout(HISTORY_LIMIT) {
        return read.ok();
    }
    // ORDER: the answer is looked for after the store, and the thread clears the mark after its answer.
    IS_LATE.store(true, Ordering::SeqCst);
    let read = answered.try_recv().ok()?;
    IS_LATE.store(false, Ordering::SeqCst);
    read.ok()
}

/// The problem document for a history that cannot be read.
pub fn history_problem(error: &HistoryError) -> ProblemDocument {
    let (code, hint) = match error {
        HistoryError::Missing(_) => (
            ErrorCode::NoHistory,
            "`vipwatch node` records the history; --state-dir sets its directory",
        ),
        HistoryError::OtherFormat { .. } => (
            ErrorCode::HistoryUnavailable,
            "use the version that wrote it; `vipwatch node` keeps the file under another name and begins a new one",
        ),
        _ => (ErrorCode::HistoryUnavailable, "check the file and its disk; the log has details"),
    };
    ProblemDocument::new(code, vipwatch_core::ErrorChain(error).to_string()).with_hint(hint)
}
