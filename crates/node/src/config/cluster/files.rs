// SPDX-License-Identifier: Apache-2.0
//! Checks the files of `[cluster]` for `vipwatch config check`: they can be read, and other users can neither change them
//! nor read secrets in them.

use super::{ClusterConfig, NeutronApiConfig};
use crate::config::protected_file::{FileContent, ProtectedFileError};
use crate::config::web::WebFile;

/// Why a file of `[cluster]` cannot be used. The text never contains a part of the file.
#[derive(Debug, thiserror::Error)]
#[error("cluster.{key} = {file}")]
pub struct ClusterFileError {
    key: &'static str,
    file: WebFile,
    source: ClusterFileProblem,
}

#[derive(Debug, thiserror::Error)]
enum ClusterFileProblem {
    #[error(transparent)]
    File(#[from] ProtectedFileError),
    #[error("it is empty")]
    Empty,
    #[error("no {0} in the format PEM is in it")]
    NotPem(&'static str),
}

impl ClusterFileError {
    /// What to do.
    pub fn hint(&self) -> String {
        let hint = match &self.source {
            ClusterFileProblem::File(error) => return error.hint(),
            ClusterFileProblem::Empty => "write the password or the secret to the file",
            ClusterFileProblem::NotPem(_) => {
                "`openssl x509 -noout -text -in FILE` shows a certificate, `openssl pkey -noout -text -in FILE` a key"
            }
        };
        hint.to_owned()
    }
}

/// What a file must contain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClusterFileKind {
    Certificate,
    Key,
    Password,
}

impl ClusterConfig {
    /// Checks that the files can be used; returns a sentence for each credential that only the service can read.
    pub fn check_files(&self) -> Result<Vec<String>, ClusterFileError> {
        if !self.is_enabled() {
            return Ok(Vec::new());
        }
        let ca = self.ca.iter().map(|file| ("ca", file, ClusterFileKind::Certificate));
        let identity = self.identity.iter().flat_map(|files| {
            let certificate = ("certificate", &files.certificate, ClusterFileKind::Certificate);
            [certificate, ("key", &files.key, ClusterFileKind::Key)]
        });
        let login = self.login.iter();
        let login = login.map(|login| ("password", &login.password, ClusterFileKind::Password));
        let neutron_ca = self.neutron.iter().flat_map(|neutron| &neutron.ca);
        let neutron_ca = neutron_ca.map(|file| ("neutron.ca", file, ClusterFileKind::Certificate));
        let secret = self.neutron.iter().filter_map(NeutronApiConfig::secret);
        let secret = secret.map(|(key, file)| (key, file, ClusterFileKind::Password));
        let mut notes = Vec::new();
        for (key, file, kind) in ca.chain(identity).chain(login).chain(neutron_ca).chain(secret) {
            if file.path().is_none() {
                notes.push(format!(
                    "cluster.{key} = {file}: only the service can read its credentials, so the content is not checked"
                ));
                continue;
            }
            let failed = |source| ClusterFileError { key, file: file.clone(), source };
            check(file, kind).map_err(failed)?;
        }
        Ok(notes)
    }
}

fn check(file: &WebFile, kind: ClusterFileKind) -> Result<(), ClusterFileProblem> {
    let content = match kind {
        ClusterFileKind::Certificate => FileContent::Public,
        ClusterFileKind::Key | ClusterFileKind::Password => FileContent::Secret,
    };
    let text = file.read(content)?;
    match kind {
        ClusterFileKind::Certificate if !text.contains("-----BEGIN CERTIFICATE-----") => {
            Err(ClusterFileProblem::NotPem("certificate"))
        }
        ClusterFileKind::Key if !text.contains("PRIVATE KEY-----") => {
            Err(ClusterFileProblem::NotPem("private key"))
        }
        ClusterFileKind::Password if text.trim().is_empty() => Err(ClusterFileProblem::Empty),
        _ => Ok(()),
    }
}
