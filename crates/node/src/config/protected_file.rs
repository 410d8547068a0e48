// SPDX-License-Identifier: Apache-2.0
//! Why a file outside the configuration, or a credential of the service, cannot be used.

use std::io;

pub use vipwatch_linux::protected_file::FileContent;
use vipwatch_linux::protected_file::FileProtectionError;

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
    /// The file cannot be read, or other users can read or change it.
    #[error(transparent)]
    File(#[from] FileProtectionError),
}

impl ProtectedFileError {
    /// What to do.
    pub fn hint(&self) -> String {
        match self {
            Self::NoCredentials => "add LoadCredential= to the service, or set a value".to_owned(),
            Self::NoSuchCredential(name) => {
                format!("add LoadCredential={name}:PATH to the service, and restart it")
            }
            Self::File(error) => error.hint().to_owned(),
        }
    }

    /// Whether the file does not exist, or this process has no right to read it. An administrator withdraws its content in
    /// this way; a process without a free file descriptor cannot read it either, but its content is valid.
    pub fn is_withdrawn(&self) -> bool {
        use io::ErrorKind::{NotADirectory, NotFound, PermissionDenied};
        match self {
            Self::NoCredentials | Self::NoSuchCredential(_) => true,
            Self::File(error) => {
                matches!(error.io_kind(), Some(NotFound | NotADirectory | PermissionDenied))
            }
        }
    }
}
