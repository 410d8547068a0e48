// SPDX-License-Identifier: Apache-2.0
//! The headers of webhooks and of the upstream: a text, or a credential that systemd passes to the service.
//!
//! A credential is read when the configuration is checked and again for each request, so that its content is never a
//! part of the settings.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use vipwatch_core::ErrorChain;

use super::document::{SettingErrors, Table};
use super::protected_file::{FileContent, ProtectedFileError};
use super::service_credential::ServiceCredential;
use super::{Config, ConfigError, ReceiverConfig, Target};

/// Maximum size of a credential in bytes. Common web servers refuse longer headers.
const MAX_VALUE_BYTES: u64 = 16 << 10;

/// The value of a header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeaderValue {
    /// A value of the configuration file; it may be secret.
    Text(String),
    /// The whole value is in a credential of the service.
    Credential(ServiceCredential),
}

/// A credential that cannot be the value of a header. The text never contains a part of it.
#[derive(Debug, thiserror::Error)]
#[error("header {header} = {credential}")]
pub struct HeaderError {
    header: String,
    credential: ServiceCredential,
    source: HeaderProblem,
}

#[derive(Debug, thiserror::Error)]
enum HeaderProblem {
    #[error(transparent)]
    File(ProtectedFileError),
    #[error("it is empty")]
    Empty,
    #[error("it contains a line break before its end")]
    LineBreak,
    #[error("it contains a control character, or a character that is not ASCII")]
    NotPrintable,
}

impl HeaderError {
    /// What to do.
    pub fn hint(&self) -> String {
        let hint = match &self.source {
            HeaderProblem::File(error) => return error.hint(),
            HeaderProblem::Empty => "write the whole value of the header to the file",
            HeaderProblem::LineBreak | HeaderProblem::NotPrintable => {
                "the file is one line of printable ASCII characters, for example: Bearer TOKEN"
            }
        };
        hint.to_owned()
    }
}

impl HeaderValue {
    /// The value of the header `name`. Reads the credential.
    pub(crate) fn read(&self, name: &str) -> Result<Cow<'_, str>, HeaderError> {
        match self {
            Self::Text(text) => Ok(Cow::Borrowed(text)),
            Self::Credential(credential) => {
                let value = read_credential(credential, credential.path().as_deref());
                value.map(Cow::Owned).map_err(|source| HeaderError {
                    header: name.to_owned(),
                    credential: credential.clone(),
                    source,
                })
            }
        }
    }
}

/// The value in the file of a credential, without the line break at its end.
fn read_credential(
    credential: &ServiceCredential,
    path: Option<&Path>,
) -> Result<String, HeaderProblem> {
    let text = credential.read_at(path, MAX_VALUE_BYTES, FileContent::Secret);
    let text = text.map_err(HeaderProblem::File)?;
    let value = text.strip_suffix('\n').unwrap_or(&text);
    if value.trim().is_empty() {
        return Err(HeaderProblem::Empty);
    }
    if value.contains(['\n', '\r']) {
        return Err(HeaderProblem::LineBreak);
    }
    if !value.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
        return Err(HeaderProblem::NotPrintable);
    }
    Ok(value.to_owned())
}

/// Reads the table `headers`.
pub(super) fn read_headers(
    table: &mut Table<'_, '_>,
    errors: &mut SettingErrors<'_>,
) -> BTreeMap<String, HeaderValue> {
    let mut headers = BTreeMap::new();
    let Some(value) = table.take("headers") else { return headers };
    let Some(table) = value.get_ref().as_table() else {
        errors.add(value.span().start, "headers is a table of strings");
        return headers;
    };
    for (name, value) in table {
        let name = name.get_ref();
        let text = value.get_ref().as_str().filter(|text| is_header(name, text));
        let Some(text) = text else {
            errors.add(value.span().start, "a header is a line of text");
            continue;
        };
        match ServiceCredential::parse(text) {
            None => {
                headers.insert(name.to_string(), HeaderValue::Text(text.to_owned()));
            }
            Some(Ok(credential)) => {
                headers.insert(name.to_string(), HeaderValue::Credential(credential));
            }
            Some(Err(error)) => errors.add(value.span().start, format!("headers: {error}")),
        }
    }
    headers
}

/// Whether the name is a token of RFC 9110 §5.6.2 and the value is printable ASCII.
fn is_header(name: &str, value: &str) -> bool {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !name.is_empty()
        && name.bytes().all(is_token)
        && value.bytes().all(|byte| byte == b'\t' || (b' '..=b'~').contains(&byte))
}

/// A webhook or the upstream, for messages about its headers.
struct HttpTarget<'c> {
    kind: &'static str,
    name: &'c str,
    target: &'c Target,
}

/// A target, and a credential in one of its headers that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{kind} {target:?}")]
pub struct TargetHeaderError {
    kind: &'static str,
    target: String,
    source: HeaderError,
}

impl TargetHeaderError {
    /// What to do.
    pub fn hint(&self) -> String {
        self.source.hint()
    }

    pub(super) fn list(errors: &[Self]) -> String {
        errors.iter().map(|error| ErrorChain(error).to_string()).collect::<Vec<_>>().join("\n")
    }
}

impl Config {
    /// Reads the credentials in headers of all webhooks and of the upstream as a node does, and fails if one cannot be
    /// used.
    pub fn check_header_credentials(&self) -> Result<(), ConfigError> {
        check(self.http_targets())
    }

    /// The credentials in headers, once each, as in the configuration.
    pub fn header_credentials(&self) -> Vec<String> {
        let headers = self.http_targets().flat_map(|one| one.target.headers.values());
        let mut names = Vec::new();
        for header in headers {
            let HeaderValue::Credential(credential) = header else { continue };
            let name = credential.to_string();
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    /// Whether a webhook or the upstream has a secret in its URL or headers, and so in the configuration file.
    pub(super) fn has_credentials(&self) -> bool {
        self.http_targets().any(|one| one.target.has_credentials)
    }

    fn http_targets(&self) -> impl Iterator<Item = HttpTarget<'_>> {
        let of_rules = self.rules.iter().flat_map(|rule| &rule.webhooks);
        let of_rules = of_rules.map(|webhook| HttpTarget {
            kind: "webhook",
            name: &webhook.name,
            target: &webhook.target,
        });
        of_rules.chain(self.receiver.iter().flat_map(ReceiverConfig::http_targets))
    }
}

impl ReceiverConfig {
    /// As [`Config::check_header_credentials`], for the targets of the receiver alone.
    pub fn check_header_credentials(&self) -> Result<(), ConfigError> {
        check(self.http_targets())
    }

    fn http_targets(&self) -> impl Iterator<Item = HttpTarget<'_>> {
        let webhooks = self.webhooks.iter().map(|webhook| HttpTarget {
            kind: "webhook",
            name: &webhook.name,
            target: &webhook.target,
        });
        webhooks.chain(self.upstream.iter().map(|upstream| HttpTarget {
            kind: "upstream",
            name: &upstream.name,
            target: &upstream.target,
        }))
    }
}

fn check<'c>(targets: impl Iterator<Item = HttpTarget<'c>>) -> Result<(), ConfigError> {
    let mut errors = Vec::new();
    for HttpTarget { kind, name, target } in targets {
        for (header, value) in &target.headers {
            let failed = |source| TargetHeaderError { kind, target: name.to_owned(), source };
            errors.extend(value.read(header).map_err(failed).err());
        }
    }
    if errors.is_empty() { Ok(()) } else { Err(ConfigError::Headers(errors)) }
}

#[cfg(test)]
mod tests;
