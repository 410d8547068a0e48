// SPDX-License-Identifier: Apache-2.0
//! The URL of a webhook or of the upstream. Everything but its scheme, host and port may be secret, as in the webhooks of
//! most chat servers, and is never shown.

use std::borrow::Cow;
use std::fmt;

use ureq::http::Uri;

use super::credentials::is_readable_in_transit;
use super::document::{SettingErrors, Table};
use super::protected_file::FileContent;
use super::secret_line::{SecretError, SecretProblem, secret_line};
use super::service_credential::ServiceCredential;
use super::web::WebFile;

/// Where a request goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TargetUrl {
    /// The configuration has the URL.
    Text(HttpUrl),
    /// A file, or a credential of the service, has the URL. It is read when the configuration is checked and again for
    /// each request.
    File(WebFile),
}

/// A URL with `http://` or `https://` and a host. `Debug` and `Display` show only these.
#[derive(Clone, PartialEq, Eq)]
pub struct HttpUrl(Uri);

impl HttpUrl {
    /// `None` for another text.
    fn parse(text: &str) -> Option<Self> {
        let uri: Uri = text.parse().ok()?;
        let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
        let has_host = uri.host().is_some_and(|host| !host.is_empty());
        (is_http && has_host).then_some(Self(uri))
    }

    /// The whole URL, for the request.
    pub(crate) fn secret(&self) -> &Uri {
        &self.0
    }

    /// Whether the request uses TLS.
    pub(crate) fn is_encrypted(&self) -> bool {
        self.0.scheme_str() == Some("https")
    }

    /// Whether the URL has more than a scheme, host and port.
    pub(super) fn has_secret(&self) -> bool {
        let authority = self.0.authority().map_or("", |authority| authority.as_str());
        authority.contains('@') || self.0.path_and_query().is_some_and(|path| path.as_str() != "/")
    }

    /// Whether others can read the URL in transit.
    pub(super) fn is_readable_in_transit(&self) -> bool {
        is_readable_in_transit(&self.0)
    }

    /// The host, with the port if the URL has one.
    fn host(&self) -> &str {
        let authority = self.0.authority().map_or("", |authority| authority.as_str());
        authority.rsplit_once('@').map_or(authority, |(_, host)| host)
    }
}

/// Shows `…` in place of the secret.
impl fmt::Display for HttpUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rest = if self.has_secret() { "…" } else { "" };
        write!(f, "{}://{}/{rest}", self.0.scheme_str().unwrap_or_default(), self.host())
    }
}

impl fmt::Debug for HttpUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl TargetUrl {
    /// Reads `url` or `url_file`. `owner` is the subject of the message if both or neither is there.
    pub(super) fn read_setting(
        owner: &str,
        table: &mut Table<'_, '_>,
        errors: &mut SettingErrors<'_>,
    ) -> Option<Self> {
        let keys = [table.take("url"), table.take("url_file")];
        let url = table.parsed("url", errors, parse_url);
        let file = table.parsed("url_file", errors, WebFile::parse);
        match keys {
            [None, None] => {
                errors.add(table.offset, format!("{owner} needs url = \"https://…\", or url_file"));
                None
            }
            [Some(_), Some(_)] => {
                errors.add(table.offset, format!("{owner} needs url or url_file, and not both"));
                None
            }
            _ => url.or_else(|| file.map(Self::File)),
        }
    }

    /// The URL of the next request; an error if `is_refused` is true for the one in the file.
    pub(super) fn read(
        &self,
        is_refused: impl Fn(&HttpUrl) -> bool,
    ) -> Result<Cow<'_, HttpUrl>, SecretError> {
        let file = match self {
            Self::Text(url) => return Ok(Cow::Borrowed(url)),
            Self::File(file) => file,
        };
        let read = || {
            let line = secret_line(file.read(FileContent::Secret))?;
            let url = HttpUrl::parse(&line).ok_or(SecretProblem::NotUrl)?;
            if is_refused(&url) {
                return Err(SecretProblem::Unencrypted);
            }
            Ok(Cow::Owned(url))
        };
        let failed = |source| {
            let setting = if matches!(file, WebFile::Path(_)) { "url_file" } else { "url" };
            SecretError { setting: setting.to_owned(), file: file.clone(), source }
        };
        read().map_err(failed)
    }

    /// The name of a target without the key `name`: the host, or the path of the file or name of the credential.
    pub(super) fn default_name(&self) -> String {
        match self {
            Self::Text(url) => url.host().to_owned(),
            Self::File(file) => file.to_string(),
        }
    }
}

/// The message does not repeat the text, which may be secret.
fn parse_url(text: &str) -> Result<TargetUrl, String> {
    if let Some(credential) = ServiceCredential::parse(text) {
        return credential.map(WebFile::Credential).map(TargetUrl::File);
    }
    let expected = "expected a URL that begins with http:// or https://, or credential:NAME";
    HttpUrl::parse(text).map(TargetUrl::Text).ok_or_else(|| expected.to_owned())
}
