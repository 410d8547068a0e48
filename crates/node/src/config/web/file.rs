// SPDX-License-Identifier: Apache-2.0
//! A file of `[web]`: a path, or a credential that systemd passes to the service.

use std::fmt;
use std::path::PathBuf;

use vipwatch_linux::protected_file::read_protected;

use crate::config::protected_file::{FileContent, ProtectedFileError};
use crate::config::sections::absolute;
use crate::config::service_credential::ServiceCredential;

/// Maximum size of a file in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Where the content of a certificate, a key or a list of tokens is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WebFile {
    /// An absolute path.
    Path(PathBuf),
    /// A credential of the service.
    Credential(ServiceCredential),
}

impl WebFile {
    /// Parses an absolute path or `credential:NAME`.
    pub(in crate::config) fn parse(text: &str) -> Result<Self, String> {
        match ServiceCredential::parse(text) {
            Some(credential) => credential.map(Self::Credential),
            None => absolute(text)
                .map(Self::Path)
                .map_err(|error| format!("{error}, and not credential:NAME")),
        }
    }

    /// The path of the file; `None` for a credential in a process to which systemd has passed none.
    pub fn path(&self) -> Option<PathBuf> {
        match self {
            Self::Path(path) => Some(path.clone()),
            Self::Credential(credential) => credential.path(),
        }
    }

    /// The text of the file.
    pub fn read(&self, content: FileContent) -> Result<String, ProtectedFileError> {
        match self {
            Self::Path(path) => Ok(read_protected(path, MAX_FILE_BYTES, content)?),
            Self::Credential(credential) => credential.read(MAX_FILE_BYTES, content),
        }
    }
}

/// As in the configuration.
impl fmt::Display for WebFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => path.display().fmt(f),
            Self::Credential(credential) => credential.fmt(f),
        }
    }
}
