// SPDX-License-Identifier: Apache-2.0
//! Reads a file that a configuration names, and refuses one that other users can change, or secrets that they can read.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::file::read_text_file;

/// Whether the content of a file is secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileContent {
    /// Other users must not be able to read it.
    Secret,
    /// Every user may read it.
    Public,
}

/// Why a file is refused. The text never contains a part of the file.
#[derive(Debug, thiserror::Error)]
pub enum FileProtectionError {
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

impl FileProtectionError {
    /// What to do.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Read(_) => "create the file, or correct the path",
            Self::Owner => "run `chown root` on the file",
            Self::Writable => "run `chmod go-w` on the file",
            Self::Readable => "run `chmod 0640` on the file, or `chmod 0600`",
        }
    }

    /// The error of the system; `None` if the file can be read and is refused.
    pub fn io_kind(&self) -> Option<io::ErrorKind> {
        match self {
            Self::Read(error) => Some(error.kind()),
            Self::Owner | Self::Writable | Self::Readable => None,
        }
    }
}

/// The text of a file of at most `limit` bytes. Root or the user of this process must own it, and other users must not be
/// able to change it; the group may read secrets.
pub fn read_protected(
    path: &Path,
    limit: u64,
    content: FileContent,
) -> Result<String, FileProtectionError> {
    let read = read_text_file(path, limit).map_err(FileProtectionError::Read)?;
    let (owner, mode) = (read.metadata.uid(), read.metadata.mode());
    if owner != 0 && owner != rustix::process::geteuid().as_raw() {
        return Err(FileProtectionError::Owner);
    }
    if mode & 0o022 != 0 {
        return Err(FileProtectionError::Writable);
    }
    if content == FileContent::Secret && mode & 0o004 != 0 {
        return Err(FileProtectionError::Readable);
    }
    Ok(read.text)
}
