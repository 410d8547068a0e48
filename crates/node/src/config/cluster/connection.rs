// SPDX-License-Identifier: Apache-2.0
//! `[cluster]` as settings of a connection to etcd, for the node and for a command that reads etcd without a node.

use std::path::PathBuf;

use vipwatch_cluster::etcd::{ClientCertificate, EtcdLogin, EtcdPassword, EtcdSettings};

use super::{ClusterConfig, ClusterLogin};
use crate::config::protected_file::{FileContent, ProtectedFileError};
use crate::config::web::WebFile;

/// A file of `[cluster]` cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cluster.{key} = {file}")]
pub struct EtcdFileError {
    /// The key of the configuration.
    pub key: &'static str,
    /// The file.
    pub file: WebFile,
    /// The cause.
    pub source: ProtectedFileError,
}

impl ClusterConfig {
    /// The settings of a connection, which reads the files when it is opened. A password that cannot be read now is an error.
    pub fn etcd_settings(&self) -> Result<EtcdSettings, EtcdFileError> {
        let identity = self.identity.as_ref().map(|files| {
            let certificate = path("certificate", &files.certificate)?;
            Ok(ClientCertificate { certificate, key: path("key", &files.key)? })
        });
        Ok(EtcdSettings {
            ca: self.ca.as_ref().map(|file| path("ca", file)).transpose()?,
            certificate: identity.transpose()?,
            login: self.login.as_ref().map(login).transpose()?,
            ..EtcdSettings::new(self.endpoints.clone())
        })
    }
}

fn path(key: &'static str, file: &WebFile) -> Result<PathBuf, EtcdFileError> {
    let source = ProtectedFileError::NoCredentials;
    file.path().ok_or_else(|| EtcdFileError { key, file: file.clone(), source })
}

fn login(login: &ClusterLogin) -> Result<EtcdLogin, EtcdFileError> {
    read_password(&login.password)?;
    let file = login.password.clone();
    let password = EtcdPassword::read_by(move || Ok(read_password(&file)?));
    Ok(EtcdLogin { user: login.user.clone(), password })
}

/// The password in a file, without the end of its line.
fn read_password(file: &WebFile) -> Result<String, EtcdFileError> {
    let failed = |source| EtcdFileError { key: "password", file: file.clone(), source };
    let text = file.read(FileContent::Secret).map_err(failed)?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}
