// SPDX-License-Identifier: Apache-2.0
//! The headers of webhooks and of the upstream: a text, or a credential that systemd passes to the service.
//!
//! A credential is read when the configuration is checked and again for each request, so that its content is never a
//! part of the settings.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use super::document::{SettingErrors, Table};
use super::protected_file::FileContent;
use super::secret_line::{SecretError, SecretProblem, secret_line};
use super::service_credential::ServiceCredential;
use super::web::WebFile;

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

impl HeaderValue {
    /// The value of the header `name`. Reads the credential.
    pub(crate) fn read(&self, name: &str) -> Result<Cow<'_, str>, SecretError> {
        match self {
            Self::Text(text) => Ok(Cow::Borrowed(text)),
            Self::Credential(credential) => {
                let value = read_credential(credential, credential.path().as_deref());
                value.map(Cow::Owned).map_err(|source| SecretError {
                    setting: format!("header {name}"),
                    file: WebFile::Credential(credential.clone()),
                    source,
                })
            }
        }
    }
}

/// The value in the file of a credential.
fn read_credential(
    credential: &ServiceCredential,
    path: Option<&Path>,
) -> Result<String, SecretProblem> {
    secret_line(credential.read_at(path, MAX_VALUE_BYTES, FileContent::Secret))
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

#[cfg(test)]
mod tests;
