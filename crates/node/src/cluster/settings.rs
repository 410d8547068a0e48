// SPDX-License-Identifier: Apache-2.0
//! The configuration `[cluster]` as settings of a session.

use std::io;

use vipwatch_cluster::findings::EvaluatorSettings;
use vipwatch_cluster::key::ClusterName;
use vipwatch_cluster::session::SessionSettings;

use crate::config::{ClusterConfig, EtcdFileError};

/// Why a session cannot start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClusterStartError {
    /// A file of the configuration cannot be used.
    #[error(transparent)]
    File(#[from] EtcdFileError),
    /// The thread cannot be started.
    #[error("cannot start the thread of the session")]
    Thread(#[source] io::Error),
}

/// The settings of a session. The session reads the files each time it connects; a password that cannot be read now is an
/// error.
pub(super) fn session_settings(
    config: &ClusterConfig,
    node: ClusterName,
    epoch: String,
) -> Result<SessionSettings, ClusterStartError> {
    Ok(SessionSettings {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        scope: config.scope,
        heartbeat: config.heartbeat,
        lease: config.lease,
        evaluator: EvaluatorSettings {
            settle: config.settle,
            slow_settle: config.slow_settle,
            lease: config.lease,
            min_backups: config.min_backups,
            neutron_settle: config.neutron.as_ref().map(|neutron| neutron.settle),
            ..EvaluatorSettings::default()
        },
        ..SessionSettings::new(config.etcd_settings()?, config.domain.clone(), node, epoch)
    })
}
