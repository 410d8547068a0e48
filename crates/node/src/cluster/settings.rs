// SPDX-License-Identifier: Apache-2.0
//! The configuration `[cluster]` as settings of a session.

use std::io;
use std::path::PathBuf;

use vipwatch_cluster::etcd::{ClientCertificate, EtcdLogin, EtcdPassword, EtcdSettings};
use vipwatch_cluster::findings::EvaluatorSettings;
use vipwatch_cluster::key::ClusterName;
use vipwatch_cluster::session::SessionSettings;

use crate::config::{ClusterConfig, ClusterLogin, FileContent, ProtectedFileError, WebFile};

/// Why a session cannot start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClusterStartError {
    /// A file of the configuration cannot be used.
    #[error("cluster.{key} = {file}")]
    File { key: &'static str, file: WebFile, source: ProtectedFileError },
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
    let identity = config.identity.as_ref().map(|files| {
        let certificate = path("certificate", &files.certificate)?;
        Ok(ClientCertificate { certificate, key: path("key", &files.key)? })
    });
    let etcd = EtcdSettings {
        ca: config.ca.as_ref().map(|file| path("ca", file)).transpose()?,
        certificate: identity.transpose()?,
        login: config.login.as_ref().map(login).transpose()?,
        ..EtcdSettings::new(config.endpoints.clone())
    };
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
        },
        ..SessionSettings::new(etcd, config.domain.clone(), node, epoch)
    })
}

fn path(key: &'static str, file: &WebFile) -> Result<PathBuf, ClusterStartError> {
    let source = ProtectedFileError::NoCredentials;
    file.path().ok_or_else(|| ClusterStartError::File { key, file: file.clone(), source })
}

fn login(login: &ClusterLogin) -> Result<EtcdLogin, ClusterStartError> {
    read_password(&login.password)?;
    let file = login.password.clone();
    let password = EtcdPassword::read_by(move || Ok(read_password(&file)?));
    Ok(EtcdLogin { user: login.user.clone(), password })
}

/// The password in a file, without the end of its line.
fn read_password(file: &WebFile) -> Result<String, ClusterStartError> {
    let failed = |source| ClusterStartError::File { key: "password", file: file.clone(), source };
    let text = file.read(FileContent::Secret).map_err(failed)?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}
