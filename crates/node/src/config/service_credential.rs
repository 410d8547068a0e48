// SPDX-License-Identifier: Apache-2.0
//! A credential that systemd passes to the service: a file in `$CREDENTIALS_DIRECTORY`, by the name in `LoadCredential=`.
//!
//! The files of `[web]` and the headers of webhooks and of the upstream can name one. Only the name is in the
//! configuration; [`ServiceCredential::read`] reads the content.

use std::ffi::OsString;
use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use vipwatch_linux::protected_file::read_protected;

use super::protected_file::{FileContent, ProtectedFileError};

/// The beginning of a value that names a credential of systemd.
const PREFIX: &str = "credential:";

/// The variable with the directory of the credentials (`systemd.exec(5)`).
const DIRECTORY: &str = "CREDENTIALS_DIRECTORY";

/// The name of a credential, which `LoadCredential=` of the service defines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceCredential(String);

impl ServiceCredential {
    /// Parses `credential:NAME`; `None` for a text that names no credential.
    pub fn parse(text: &str) -> Option<Result<Self, String>> {
        let name = text.strip_prefix(PREFIX)?;
        let is_valid = |byte: u8| byte.is_ascii_graphic() && byte != b'/';
        let is_name = !name.is_empty() && name.len() <= 255 && name.bytes().all(is_valid);
        let is_name = is_name && name != "." && name != "..";
        Some(if is_name {
            Ok(Self(name.to_owned()))
        } else {
            Err(format!("{name:?} is not the name of a credential"))
        })
    }

    /// Whether systemd has passed credentials to this process.
    pub fn are_passed() -> bool {
        directory().is_some()
    }

    /// The path of the file; `None` in a process to which systemd has passed no credentials.
    pub fn path(&self) -> Option<PathBuf> {
        directory().map(|directory| Path::new(&directory).join(&self.0))
    }

    /// The content of the file, of at most `limit` bytes.
    pub fn read(&self, limit: u64, content: FileContent) -> Result<String, ProtectedFileError> {
        self.read_at(self.path().as_deref(), limit, content)
    }

    /// As [`Self::read`], with the path of the file.
    pub(super) fn read_at(
        &self,
        path: Option<&Path>,
        limit: u64,
        content: FileContent,
    ) -> Result<String, ProtectedFileError> {
        let path = path.ok_or(ProtectedFileError::NoCredentials)?;
        read_protected(path, limit, content).map_err(|error| match error.io_kind() {
            Some(ErrorKind::NotFound) => ProtectedFileError::NoSuchCredential(self.0.clone()),
            _ => error.into(),
        })
    }
}

fn directory() -> Option<OsString> {
    std::env::var_os(DIRECTORY).filter(|directory| !directory.is_empty())
}

/// As in the configuration.
impl fmt::Display for ServiceCredential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", self.0)
    }
}
