// SPDX-License-Identifier: Apache-2.0
//! Why a file of `[web]` cannot be used.

use vipwatch_node::config::{ProtectedFileError, WebFile};

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

    /// Whether the file was deleted, or this process has no right to read it.
    pub(super) fn is_withdrawn(&self) -> bool {
        matches!(&self.source, FileProblem::File(error) if error.is_withdrawn())
    }

    /// What to do.
    pub fn hint(&self) -> String {
        let hint = match &self.source {
            FileProblem::File(error) => return error.hint(),
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
        };
        hint.to_owned()
    }
}

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum FileProblem {
    #[error(transparent)]
    File(#[from] ProtectedFileError),
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
