// SPDX-License-Identifier: Apache-2.0
//! The sources of all documents.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use vipwatch_api::{AnswerSource, ReloadOutcome};

use crate::audit::{Audit, AuditRequests};
use crate::cluster::ClusterService;
use crate::config::{Config, MetricsConfig};
use crate::notify::Notifier;
use crate::receiver::ReceiverHandle;
use crate::reload_requests::ReloadRequests;
use crate::silence::Silences;
use crate::state::StateStore;
use crate::view::timestamp;

/// The sources of all documents.
#[derive(Debug, Clone)]
pub struct ApiContext {
    /// The published state.
    pub store: Arc<StateStore>,
    /// The audit, with its findings.
    pub audit: Arc<Audit>,
    /// Requests to the thread that audits; `None` in a process without that thread.
    pub audit_requests: Option<AuditRequests>,
    /// The directory of the history.
    pub state_dir: PathBuf,
    /// The name of this node.
    pub node: Arc<str>,
    /// Whether a running node answers, or the command itself.
    pub source: AnswerSource,
    /// The states that monitors have reported, if a receiver runs in this process.
    pub receiver_handle: ReceiverHandle,
    /// The targets of the node and of its receiver; `None` without a node.
    pub notifier: Option<Notifier>,
    /// The silences; `None` without a node.
    pub silences: Option<Arc<Silences>>,
    /// Requests to the loop that reloads the configuration; `None` in a process without it.
    pub reload_requests: Option<ReloadRequests>,
    /// This node in the cluster; `None` without `[cluster]` in the configuration.
    pub cluster: Option<ClusterService>,
    /// This process and its configuration.
    pub service: Arc<ServiceInfo>,
}

/// The service that a process runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::Display)]
#[strum(serialize_all = "kebab-case")]
pub enum ServiceKind {
    /// `vipwatch node`, or a command that answers in its place.
    Node,
    /// `vipwatch receiver`
    Receiver,
}

/// This process and its configuration.
#[derive(Debug)]
pub struct ServiceInfo {
    /// The service.
    pub kind: ServiceKind,
    /// When the process started.
    pub started_at: SystemTime,
    /// Which metrics are exported, and where.
    pub metrics: MetricsConfig,
    reload: Mutex<ReloadState>,
}

/// The configuration in force, and how the last reload ended.
#[derive(Debug, Clone)]
pub struct ReloadState {
    /// The configuration file; `None` without one.
    pub config_file: Option<PathBuf>,
    /// When the configuration in force was read.
    pub loaded_at: SystemTime,
    /// The settings in force, without secrets.
    pub settings: serde_json::Map<String, serde_json::Value>,
    /// The last reload; `None` if there was none.
    pub last_reload: Option<ReloadOutcome>,
}

/// The parts of a configuration that are not in force after a reload.
#[derive(Debug, Default)]
pub struct ReloadGaps {
    /// Why the configuration, or a part of it, could not be applied.
    pub error: Option<String>,
    /// The keys that need a restart.
    pub needs_restart: Vec<String>,
    /// The changes that are applied later, one sentence each.
    pub pending: Vec<String>,
}

impl ReloadState {
    fn new(config: &Config, last_reload: Option<ReloadOutcome>) -> Self {
        Self {
            config_file: config.file.clone(),
            loaded_at: SystemTime::now(),
            settings: config.settings(),
            last_reload,
        }
    }

    /// The outcome of a reload that ends now, with the next number.
    fn next_outcome(&self, gaps: ReloadGaps) -> ReloadOutcome {
        let number = self.last_reload.as_ref().map_or(0, |last| last.number) + 1;
        let ReloadGaps { error, needs_restart, pending } = gaps;
        ReloadOutcome { number, at: timestamp(SystemTime::now()), error, needs_restart, pending }
    }
}

impl ServiceInfo {
    /// The service of a process that starts now with `config`.
    pub fn new(kind: ServiceKind, config: &Config) -> Self {
        let reload = Mutex::new(ReloadState::new(config, None));
        let metrics = config.metrics.clone();
        Self { kind, started_at: SystemTime::now(), metrics, reload }
    }

    /// The configuration in force, and how the last reload ended.
    pub fn reload_state(&self) -> ReloadState {
        self.reload.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Records that `config` is in force since now, and returns how the reload ended. `gaps` has the parts of the
    /// file that are not in force.
    pub fn record_reload(&self, config: &Config, gaps: ReloadGaps) -> ReloadOutcome {
        let mut reload = self.reload.lock().unwrap_or_else(PoisonError::into_inner);
        let outcome = reload.next_outcome(gaps);
        *reload = ReloadState::new(config, Some(outcome.clone()));
        outcome
    }

    /// Records that a reload failed, and the configuration in force did not change. Returns how the reload ended.
    pub fn record_failed_reload(&self, error: String) -> ReloadOutcome {
        let mut reload = self.reload.lock().unwrap_or_else(PoisonError::into_inner);
        let outcome =
            reload.next_outcome(ReloadGaps { error: Some(error), ..ReloadGaps::default() });
        reload.last_reload = Some(outcome.clone());
        outcome
    }
}
