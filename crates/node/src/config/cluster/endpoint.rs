// SPDX-License-Identifier: Apache-2.0
//! The URL of a server of etcd, in the configuration or on the command line.

use std::fmt;

use ureq::http::Uri;

use crate::config::credentials;

/// The URL of a server of etcd: `http://HOST:PORT` or `https://HOST:PORT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdEndpoint(Uri);

impl EtcdEndpoint {
    /// Parses a URL; the error is a sentence. A text with a user is not repeated, because it may have a password.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.contains('@') {
            return Err("a URL has no user here; set user and password".to_owned());
        }
        let invalid = || {
            format!(
                "{text:?} is not a URL of etcd, such as https://10.0.0.1:2379 or https://[::1]:2379"
            )
        };
        let lower = text.trim_end_matches('/').to_ascii_lowercase();
        let uri: Uri = lower.parse().map_err(|_error| invalid())?;
        let is_scheme = matches!(uri.scheme_str(), Some("http" | "https"));
        let has_host = uri.host().is_some_and(|host| !host.is_empty());
        if !is_scheme || !has_host || uri.query().is_some() || !matches!(uri.path(), "" | "/") {
            return Err(invalid());
        }
        if uri.port_u16().is_none_or(|port| port == 0) {
            return Err(format!("{text:?} has no port; etcd listens on 2379 by default"));
        }
        Ok(Self(uri))
    }

    /// Whether the connection uses TLS.
    pub fn is_encrypted(&self) -> bool {
        self.0.scheme_str() == Some("https")
    }

    /// Whether others can read a password in transit: the URL is that of another host, without TLS.
    pub fn is_readable_in_transit(&self) -> bool {
        credentials::is_readable_in_transit(&self.0)
    }
}

impl fmt::Display for EtcdEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = self.0.scheme_str().unwrap_or_default();
        let authority = self.0.authority().map_or("", |authority| authority.as_str());
        write!(f, "{scheme}://{authority}")
    }
}
