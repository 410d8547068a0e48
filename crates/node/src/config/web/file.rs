// SPDX-License-Identifier: Apache-2.0
//! A file of `[web]`: a path, or a credential that systemd passes to the service.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::config::sections::absolute;

/// The beginning of a value that names a credential of systemd.
const CREDENTIAL: &str = "credential:";

/// The variable with the directory of the credentials (`systemd.exec(5)`).
const DIRECTORY: &str = "CREDENTIALS_DIRECTORY";

/// Where the content of a certificate, a key or a list of tokens is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WebFile {
    /// An absolute path.
    Path(PathBuf),
    /// The name of a credential, which `LoadCredential=` of the service defines.
    Credential(String),
}

impl WebFile {
    /// Parses an absolute path or `credential:NAME`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let Some(name) = text.strip_prefix(CREDENTIAL) else {
            return absolute(text)
                .map(Self::Path)
                .map_err(|error| format!("{error}, and not {CREDENTIAL}NAME"));
        };
        let is_valid = |byte: u8| byte.is_ascii_graphic() && byte != b'/';
        let is_name = !name.is_empty() && name.len() <= 255 && name.bytes().all(is_valid);
        (is_name && name != "." && name != "..")
            .then(|| Self::Credential(name.to_owned()))
            .ok_or_else(|| format!("{name:?} is not the name of a credential"))
    }

    /// The path of the file; `None` for a credential in a process to which systemd has passed none.
    pub fn path(&self) -> Option<PathBuf> {
        match self {
            Self::Path(path) => Some(path.clone()),
            Self::Credential(name) => {
                let directory = std::env::var_os(DIRECTORY)?;
                Some(Path::new(&directory).join(name))
            }
        }
    }
}

/// As in the configuration.
impl fmt::Display for WebFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => path.display().fmt(f),
            Self::Credential(name) => write!(f, "{CREDENTIAL}{name}"),
        }
    }
}
