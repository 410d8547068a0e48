// SPDX-License-Identifier: Apache-2.0
//! `[cluster.neutron]`: Neutron's API, with which the reporter compares the view. Without the table nothing is compared.

use std::time::Duration;

use ureq::http::Uri;

use super::parse_between;
use crate::config::credentials::is_readable_in_transit;
use crate::config::document::{SettingErrors, Table};
use crate::config::sections::set;
use crate::config::web::WebFile;

/// The domain of users and projects in a Keystone without others.
const DEFAULT_DOMAIN: &str = "Default";

/// The settings of the comparison with Neutron.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NeutronApiConfig {
    /// The address of Neutron's API without the version, for example `https://neutron.example:9696`.
    pub url: String,
    /// The authorities of the certificates of Neutron and of Keystone; `None` for those of the system.
    pub ca: Option<WebFile>,
    /// How tokens are requested; `None` for a Neutron that needs none.
    pub keystone: Option<KeystoneConfig>,
    /// Minimum time between the beginnings of two comparisons of all routers.
    pub interval: Duration,
    /// How long both sides must be unchanged before a difference counts.
    pub settle: Duration,
}

/// Keystone, which issues the tokens for Neutron.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeystoneConfig {
    /// The address of the API with the version 3, for example `https://keystone.example:5000/v3`.
    pub url: String,
    /// How this node identifies itself.
    pub identity: KeystoneIdentity,
}

/// How a node identifies itself to Keystone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeystoneIdentity {
    /// An application credential. It belongs to one project.
    ApplicationCredential {
        /// Its id.
        id: String,
        /// The file with its secret.
        secret: WebFile,
    },
    /// A user and a password.
    Password(KeystoneUser),
}

/// A user of Keystone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeystoneUser {
    /// The name.
    pub name: String,
    /// The name of the user's domain.
    pub domain: String,
    /// The file with the password.
    pub password: WebFile,
    /// The name of the project for which the token is valid.
    pub project: String,
    /// The name of the project's domain.
    pub project_domain: String,
}

impl NeutronApiConfig {
    /// `None` after an error without which there would be a URL.
    pub(super) fn read(mut table: Table<'_, '_>, errors: &mut SettingErrors<'_>) -> Option<Self> {
        let has_url = table.take("url").is_some();
        let url = table.parsed("url", errors, parse_neutron_url);
        if !has_url {
            errors.add(table.offset, "neutron needs url, the address of Neutron's API");
        }
        let ca = table.parsed("ca", errors, WebFile::parse);
        let keystone = read_keystone(&mut table, errors);
        let seconds = Duration::from_secs;
        let (mut interval, mut settle) = (seconds(60), seconds(60));
        let between = parse_between(seconds(1), seconds(3600), "it is 1s to 1h");
        set(&mut interval, table.parsed("interval", errors, &between));
        set(&mut settle, table.parsed("settle", errors, &between));
        let config = url.map(|url| Self { url, ca, keystone, interval, settle });
        if let Some(config) = &config {
            config.check_encryption(&table, errors);
        }
        table.finish(errors);
        config
    }

    /// The file with the secret, with its key; `None` without Keystone.
    pub(super) fn secret(&self) -> Option<(&'static str, &WebFile)> {
        match &self.keystone.as_ref()?.identity {
            KeystoneIdentity::ApplicationCredential { secret, .. } => {
                Some(("neutron.application_credential_secret", secret))
            }
            KeystoneIdentity::Password(user) => Some(("neutron.password", &user.password)),
        }
    }

    /// A secret or a token is not sent to another host without encryption, and TLS needs `https://`.
    fn check_encryption(&self, table: &Table<'_, '_>, errors: &mut SettingErrors<'_>) {
        let Self { url, keystone, .. } = self;
        let urls: Vec<(&str, &String)> = std::iter::once(("url", url))
            .chain(keystone.iter().map(|keystone| ("auth_url", &keystone.url)))
            .collect();
        let is_exposed = |url: &str| url.parse().is_ok_and(|uri: Uri| is_readable_in_transit(&uri));
        for (key, url) in urls.iter().filter(|(_, url)| keystone.is_some() && is_exposed(url)) {
            let text =
                format!("{key}: a secret would be sent to {url} without encryption; use https://");
            errors.add(table.offset, text);
        }
        if self.ca.is_some() && urls.iter().all(|(_, url)| url.starts_with("http://")) {
            errors.add(table.offset, "ca needs a url with https://");
        }
    }
}

fn read_keystone(
    table: &mut Table<'_, '_>,
    errors: &mut SettingErrors<'_>,
) -> Option<KeystoneConfig> {
    let offset = table.offset;
    let has_url = table.take("auth_url").is_some();
    let url = table.parsed("auth_url", errors, parse_keystone_url);
    let before = errors.list.len();
    let identity = read_identity(table, errors);
    match (url, identity) {
        (Some(url), Some(identity)) => Some(KeystoneConfig { url, identity }),
        (None, Some(_)) if !has_url => {
            errors.add(offset, "auth_url is missing: the address of Keystone");
            None
        }
        (Some(_), None) if errors.list.len() == before => {
            let text = "auth_url needs application_credential_id and application_credential_secret, or user, password \
                        and project";
            errors.add(offset, text);
            None
        }
        _ => None,
    }
}

fn read_identity(
    table: &mut Table<'_, '_>,
    errors: &mut SettingErrors<'_>,
) -> Option<KeystoneIdentity> {
    let offset = table.offset;
    let id = table.parsed("application_credential_id", errors, not_empty);
    let secret = table.parsed("application_credential_secret", errors, parse_secret);
    let name = table.parsed("user", errors, not_empty);
    let password = table.parsed("password", errors, parse_secret);
    let project = table.parsed("project", errors, not_empty);
    let domain = || DEFAULT_DOMAIN.to_owned();
    let (mut user_domain, mut project_domain) = (domain(), domain());
    set(&mut user_domain, table.parsed("user_domain", errors, not_empty));
    set(&mut project_domain, table.parsed("project_domain", errors, not_empty));
    let has_user = name.is_some() || password.is_some() || project.is_some();
    match (id, secret, name, password, project) {
        (Some(_), ..) | (_, Some(_), ..) if has_user => {
            errors.add(offset, "use an application credential, or user and password, and not both");
            None
        }
        (Some(id), Some(secret), ..) => {
            Some(KeystoneIdentity::ApplicationCredential { id, secret })
        }
        (None, None, Some(name), Some(password), Some(project)) => {
            let domain = user_domain;
            let user = KeystoneUser { name, domain, password, project, project_domain };
            Some(KeystoneIdentity::Password(user))
        }
        (None, None, None, None, None) => None,
        (None, None, ..) => {
            errors.add(offset, "user, password and project need each other");
            None
        }
        _ => {
            let text =
                "application_credential_id and application_credential_secret need each other";
            errors.add(offset, text);
            None
        }
    }
}

fn not_empty(text: &str) -> Result<String, String> {
    (!text.is_empty()).then(|| text.to_owned()).ok_or_else(|| "it is empty".to_owned())
}

/// The message does not repeat the text, which may be the secret.
fn parse_secret(text: &str) -> Result<WebFile, String> {
    let error = "it is the absolute path of a file with the secret, or credential:NAME";
    WebFile::parse(text).map_err(|_error| error.to_owned())
}

/// Parses the address of Neutron, and removes its version.
fn parse_neutron_url(text: &str) -> Result<String, String> {
    let url = parse_url(text, "https://neutron.example:9696")?;
    Ok(url.trim_end_matches("/v2.0").trim_end_matches('/').to_owned())
}

/// Parses the address of Keystone, and adds its version.
fn parse_keystone_url(text: &str) -> Result<String, String> {
    let url = parse_url(text, "https://keystone.example:5000/v3")?;
    Ok(if url.ends_with("/v3") { url } else { format!("{url}/v3") })
}

/// A URL without a slash at its end. A text with a user is not repeated, because it may have a password.
fn parse_url(text: &str, example: &str) -> Result<String, String> {
    if text.contains('@') {
        return Err("a URL has no user here; set user and password".to_owned());
    }
    let invalid = || format!("{text:?} is not a URL such as {example}");
    let uri: Uri = text.parse().map_err(|_error| invalid())?;
    let is_scheme = matches!(uri.scheme_str(), Some("http" | "https"));
    let has_host = uri.host().is_some_and(|host| !host.is_empty());
    if !is_scheme || !has_host || uri.query().is_some() {
        return Err(invalid());
    }
    Ok(text.trim_end_matches('/').to_owned())
}

#[cfg(test)]
mod tests;
