// SPDX-License-Identifier: Apache-2.0
//! Reads a file outside the configuration that the configuration names, and refuses one that other users can change, or
//! secrets that they can read.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use vipwatch_linux::file::read_text_file;

/// Whether the content of a file is secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileContent {
    /// Other users must not be able to read it.
    Secret,
    /// Every user may read it.
    Public,
}

/// Why a file cannot be used. The text never contains a part of the file.
#[derive(Debug, thiserror::Error)]
pub enum ProtectedFileError {
    /// The variable with the directory of the credentials is not set.
    #[error(
        "systemd has passed no credentials to this process ($CREDENTIALS_DIRECTORY is not set)"
    )]
    NoCredentials,
    /// The service has other credentials.
    #[error("systemd has passed no credential {0:?} to this process")]
    NoSuchCredential(String),
    /// The file cannot be opened or read.
    #[error("cannot read it")]
    Read(#[source] io::Error),
    /// The owner of the file could change it.
    #[error("it belongs neither to root nor to the user of this process")]
    Owner,
    /// Users other than the owner could change the file.
    #[error("other users can write to it")]
    Writable,
    /// The secret is not one.
    #[error("it is secret, and every user can read it")]
    Readable,
}

impl ProtectedFileError {
    /// What to do.
    pub fn hint(&self) -> String {
        let hint = match self {
            Self::NoCredentials => "add LoadCredential= to the service, or set a value",
            Self::NoSuchCredential(name) => {
                return format!("add LoadCredential={name}:PATH to the service, and restart it");
            }
            Self::Read(_) => "create the file, or correct the path",
            Self::Owner => "run `chown root` on the file",
            Self::Writable => "run `chmod go-w` on the file",
            Self::Readable => "run `chmod 0640` on the file, or `chmod 0600`",
        };
        hint.to_owned()
    }

    pub(super) fn is_not_found(&self) -> bool {
        matches!(self, Self::Read(error) if error.kind() == io::ErrorKind::NotFound)
    }
}

/// The text of a file of at most `limit` bytes. Root or the user of this process must own it, and other users must not be
/// able to change it; the group may read secrets.
pub(super) fn read_protected(
    path: &Path,
    limit: u64,
    content: FileContent,
) -> Result<String, ProtectedFileError> {
    let read = read_text_file(path, limit).map_err(ProtectedFileError::Read)?;
    let (owner, mode) = (read.metadata.uid(), read.metadata.mode());
    if owner != 0 && owner != rustix::process::geteuid().as_raw() {
        return Err(ProtectedFileError::Owner);
    }
    if mode & 0o022 != 0 {
        return Err(ProtectedFileError::Writable);
    }
    if content == FileContent::Secret && mode & 0o004 != 0 {
        return Err(ProtectedFileError::Readable);
    }
    Ok(read.text)
}
