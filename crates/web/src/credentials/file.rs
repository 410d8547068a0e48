// SPDX-License-Identifier: Apache-2.0
//! Reads a file of `[web]`, and refuses one that other users can change, or secrets that they can read.

use std::io;
use std::os::unix::fs::MetadataExt;

use vipwatch_linux::file::read_text_file;
use vipwatch_node::config::WebFile;

/// Maximum size of a file in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Why a file of `[web]` cannot be used. The text never contains a part of the file.
#[derive(Debug, thiserror::Error)]
#[error("web.{key} = {file}")]
pub struct WebFileError {
    key: &'static str,
    file: WebFile,
    source: FileProblem,
}

impl WebFileError {
    pub(super) fn new(key: &'static str, file: &WebFile, source: FileProblem) -> Self {
        Self { key, file: file.clone(), source }
    }

    /// What to do.
    pub fn hint(&self) -> &'static str {
        match &self.source {
            FileProblem::NoCredentials => "add LoadCredential= to the service, or set a path",
            FileProblem::Read(_) => "create the file, or correct the path",
            FileProblem::Owner => "run `chown root` on the file",
            FileProblem::Writable => "run `chmod go-w` on the file",
            FileProblem::Readable => "run `chmod 0640` on the file, or `chmod 0600`",
            FileProblem::NotPem
            | FileProblem::NoCertificate
            | FileProblem::NoKey
            | FileProblem::Tls(_)
            | FileProblem::Authority(_) => {
                "`openssl x509 -noout -text -in FILE` shows a certificate; docs/guides/web-access.md shows how to make one"
            }
            FileProblem::NoToken
            | FileProblem::ShortToken { .. }
            | FileProblem::InvalidToken { .. }
            | FileProblem::TooManyTokens => "`openssl rand -hex 32` makes a token",
        }
    }
}

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum FileProblem {
    #[error("systemd has passed no credentials to this process")]
    NoCredentials,
    #[error("cannot read it")]
    Read(#[source] io::Error),
    #[error("it belongs neither to root nor to the user of this process")]
    Owner,
    #[error("other users can write to it")]
    Writable,
    #[error("it is secret, and every user can read it")]
    Readable,
    #[error("it is not in the format PEM")]
    NotPem,
    #[error("no certificate is in it")]
    NoCertificate,
    #[error("no private key is in it, or it needs a passphrase")]
    NoKey,
    #[error("the certificate cannot be used with the key")]
    Tls(#[source] rustls::Error),
    #[error("a certificate in it is not valid")]
    Authority(#[source] rustls::Error),
    #[error("no token is in it")]
    NoToken,
    #[error("the token in line {line} has fewer than {} characters", super::tokens::MIN_LENGTH)]
    ShortToken { line: usize },
    #[error(
        "line {line} is not one token of letters, digits and -._~+/=, with at most {} characters",
        super::tokens::MAX_LENGTH
    )]
    InvalidToken { line: usize },
    #[error("it has more than {} tokens", super::tokens::MAX_TOKENS)]
    TooManyTokens,
}

/// Whether the content of a file is secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileContent {
    Secret,
    Public,
}

/// The text of a file. Root or the user of this process must own it, and other users must not be able to change it; the
/// group may read secrets.
pub(super) fn read(file: &WebFile, content: FileContent) -> Result<String, FileProblem> {
    let path = file.path().ok_or(FileProblem::NoCredentials)?;
    let read = read_text_file(&path, MAX_FILE_BYTES).map_err(FileProblem::Read)?;
    let (owner, mode) = (read.metadata.uid(), read.metadata.mode());
    if owner != 0 && owner != rustix::process::geteuid().as_raw() {
        return Err(FileProblem::Owner);
    }
    if mode & 0o022 != 0 {
        return Err(FileProblem::Writable);
    }
    if content == FileContent::Secret && mode & 0o004 != 0 {
        return Err(FileProblem::Readable);
    }
    Ok(read.text)
}
