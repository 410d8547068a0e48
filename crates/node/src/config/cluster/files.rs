// SPDX-License-Identifier: Apache-2.0
//! Checks the files of `[cluster]` for `vipwatch config check`: they can be read, and other users can neither change them
//! nor read secrets in them.

use std::io;
use std::os::unix::fs::MetadataExt;

use vipwatch_linux::file::read_text_file;

use super::{ClusterConfig, NeutronApiConfig};
use crate::config::web::WebFile;

/// Maximum size of a file in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;

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
    #[error("cannot read it")]
    Read(#[source] io::Error),
    #[error("it belongs neither to root nor to the user of this process")]
    Owner,
    #[error("other users can write to it")]
    Writable,
    #[error("it is secret, and every user can read it")]
    Readable,
    #[error("it is empty")]
    Empty,
    #[error("no {0} in the format PEM is in it")]
    NotPem(&'static str),
}

impl ClusterFileError {
    /// What to do.
    pub fn hint(&self) -> &'static str {
        match &self.source {
            ClusterFileProblem::Read(_) => "create the file, or correct the path",
            ClusterFileProblem::Owner => "run `chown root` on the file",
            ClusterFileProblem::Writable => "run `chmod go-w` on the file",
            ClusterFileProblem::Readable => "run `chmod 0640` on the file, or `chmod 0600`",
            ClusterFileProblem::Empty => "write the password or the secret to the file",
            ClusterFileProblem::NotPem(_) => {
                "`openssl x509 -noout -text -in FILE` shows a certificate, `openssl pkey -noout -text -in FILE` a key"
            }
        }
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
            let Some(path) = file.path() else {
                notes.push(format!(
                    "cluster.{key} = {file}: only the service can read its credentials, so the content is not checked"
                ));
                continue;
            };
            let failed = |source| ClusterFileError { key, file: file.clone(), source };
            check(&path, kind).map_err(failed)?;
        }
        Ok(notes)
    }
}

fn check(path: &std::path::Path, kind: ClusterFileKind) -> Result<(), ClusterFileProblem> {
    let read = read_text_file(path, MAX_FILE_BYTES).map_err(ClusterFileProblem::Read)?;
    let (owner, mode) = (read.metadata.uid(), read.metadata.mode());
    if owner != 0 && owner != rustix::process::geteuid().as_raw() {
        return Err(ClusterFileProblem::Owner);
    }
    if mode & 0o022 != 0 {
        return Err(ClusterFileProblem::Writable);
    }
    if kind != ClusterFileKind::Certificate && mode & 0o004 != 0 {
        return Err(ClusterFileProblem::Readable);
    }
    match kind {
        ClusterFileKind::Certificate if !read.text.contains("-----BEGIN CERTIFICATE-----") => {
            Err(ClusterFileProblem::NotPem("certificate"))
        }
        ClusterFileKind::Key if !read.text.contains("PRIVATE KEY-----") => {
            Err(ClusterFileProblem::NotPem("private key"))
        }
        ClusterFileKind::Password if read.text.trim().is_empty() => Err(ClusterFileProblem::Empty),
        _ => Ok(()),
    }
}
