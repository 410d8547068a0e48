// SPDX-License-Identifier: Apache-2.0
//! The facts about a node from which its metrics are made.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use vipwatch_api::{ReportList, TargetItem};
use vipwatch_core::conntrack_sync::ConntrackSync;
use vipwatch_core::{InstanceId, RoleKind};
use vipwatch_linux::process_usage::ProcessUsage;

use super::cluster::ClusterNumbers;
use super::conntrack;
use super::neutron::NeutronNumbers;
use crate::log::{self, LogQueue};
use crate::state::{HistogramValue, InstanceEntry};
use crate::view::findings::{FindingCounts, finding_counts};
use crate::view::{ApiContext, reports, targets};

/// The facts about the process and the node at one moment.
#[derive(Debug)]
pub(super) struct MetricFacts {
    pub(super) context: ApiContext,
    /// The number of instances with each role, in the order of [`RoleKind::ALL`].
    pub(super) roles: [u64; RoleKind::ALL.len()],
    pub(super) targets: Vec<TargetItem>,
    /// The number of findings with each name and severity.
    pub(super) findings: FindingCounts,
    /// The state of the receiver; `None` if this process runs none.
    pub(super) reports: Option<ReportList>,
    /// `None` if `/proc` cannot be read.
    pub(super) usage: Option<ProcessUsage>,
    /// The size of the history on the disk, in bytes; `None` without a file.
    pub(super) history_bytes: Option<u64>,
    pub(super) log: LogQueue,
    /// The last synchronisation of connection tracking of each router that has one.
    pub(super) conntrack: HashMap<InstanceId, ConntrackSync>,
    pub(super) turns: HistogramValue,
    /// The cluster; `None` if none is configured.
    pub(super) cluster: Option<ClusterNumbers>,
    /// The comparison with Neutron; `None` if none is configured.
    pub(super) neutron: Option<NeutronNumbers>,
}

impl MetricFacts {
    /// Reads the history, `/proc`, and the files of `entries`.
    pub(super) fn read(context: &ApiContext, entries: &[Arc<InstanceEntry>]) -> Self {
        Self {
            targets: targets(context).items,
            findings: finding_counts(context),
            reports: reports(context).ok(),
            usage: ProcessUsage::read().ok(),
            history_bytes: history_bytes(&context.state_dir),
            conntrack: conntrack::read_all(entries),
            cluster: ClusterNumbers::read(context),
            neutron: context.cluster.as_ref().and_then(NeutronNumbers::read),
            ..Self::without_reading(context)
        }
    }

    /// The facts that are in memory.
    pub(super) fn without_reading(context: &ApiContext) -> Self {
        let mut roles = [0; RoleKind::ALL.len()];
        for entry in context.store.view().entries.values() {
            roles[entry.role.kind() as usize] += 1;
        }
        Self {
            roles,
            targets: Vec::new(),
            findings: FindingCounts::new(),
            reports: None,
            usage: None,
            history_bytes: None,
            conntrack: HashMap::new(),
            log: log::queue(),
            turns: context.store.turns.value(),
            cluster: None,
            neutron: None,
            context: context.clone(),
        }
    }
}

/// The size of the file and of SQLite's files beside it.
fn history_bytes(state_dir: &Path) -> Option<u64> {
    let size = |suffix: &str| {
        let name = format!("{}{suffix}", vipwatch_history::FILE);
        state_dir.join(name).metadata().ok().map(|metadata| metadata.len())
    };
    Some(size("")? + size("-wal").unwrap_or(0) + size("-shm").unwrap_or(0))
}
