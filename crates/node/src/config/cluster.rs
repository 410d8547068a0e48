// SPDX-License-Identifier: Apache-2.0
//! `[cluster]`: the etcd of a cluster, and when its findings are opened. Without endpoints the cluster view is off.
//!
//! The files are not read here: they may change while the node runs, and a node must start without etcd.
//! `vipwatch config check` reads them ([`ClusterConfig::check_files`]).

mod connection;
mod endpoint;
mod files;
mod neutron;

use std::time::Duration;

use vipwatch_api::ClusterScope;
use vipwatch_cluster::key::ClusterName;

pub use self::connection::EtcdFileError;
pub use self::endpoint::EtcdEndpoint;
pub use self::files::ClusterFileError;
pub use self::neutron::{KeystoneConfig, KeystoneIdentity, KeystoneUser, NeutronApiConfig};
use super::document::{SettingErrors, Table, span};
use super::sections::set;
use super::web::WebFile;

/// Maximum number of endpoints. etcd recommends at most seven servers.
const MAX_ENDPOINTS: usize = 16;

/// The lease is at least this many heartbeats: one lost heartbeat and a slow answer of etcd do not end it.
const HEARTBEATS_IN_LEASE: u32 = 3;

/// The settings of the cluster view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterConfig {
    /// The URLs of the servers of etcd, which are tried in turn. Without any, the cluster view is off.
    pub endpoints: Vec<String>,
    /// Whether endpoints on other hosts may use plain HTTP.
    pub allow_unencrypted: bool,
    /// The domain: nodes of different domains do not see each other.
    pub domain: ClusterName,
    /// Which groups this node follows.
    pub scope: ClusterScope,
    /// The authorities of the servers' certificates; `None` for those of the system.
    pub ca: Option<WebFile>,
    /// The certificate and the key of this node as a client of etcd; `None` without one.
    pub identity: Option<ClusterIdentityFiles>,
    /// The user of etcd; `None` if etcd needs none.
    pub login: Option<ClusterLogin>,
    /// Time between two heartbeats.
    pub heartbeat: Duration,
    /// How long after its last heartbeat a node counts as lost; whole seconds.
    pub lease: Duration,
    /// How long a serious condition lasts before its finding is opened.
    pub settle: Duration,
    /// How long another condition lasts before its finding is opened.
    pub slow_settle: Duration,
    /// Minimum number of live backups of a group; 0 for no such finding.
    pub min_backups: u32,
    /// Neutron's API, with which the view is compared; `None` without a comparison.
    pub neutron: Option<NeutronApiConfig>,
}

/// The files with which a node identifies itself to etcd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterIdentityFiles {
    /// The certificate, followed by intermediate certificates.
    pub certificate: WebFile,
    /// Its private key.
    pub key: WebFile,
}

/// A user of etcd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterLogin {
    /// The name.
    pub user: String,
    /// The file with the password.
    pub password: WebFile,
}

impl Default for ClusterConfig {
    fn default() -> Self {
        Self {
            endpoints: Vec::new(),
            allow_unencrypted: false,
            domain: ClusterName::default_domain(),
            scope: ClusterScope::Own,
            ca: None,
            identity: None,
            login: None,
            heartbeat: Duration::from_secs(5),
            lease: Duration::from_secs(15),
            settle: Duration::from_secs(3),
            slow_settle: Duration::from_mins(1),
            min_backups: 1,
            neutron: None,
        }
    }
}

impl ClusterConfig {
    /// Whether the cluster view is on.
    pub fn is_enabled(&self) -> bool {
        !self.endpoints.is_empty()
    }

    pub(super) fn read(mut table: Table<'_, '_>, errors: &mut SettingErrors<'_>) -> Self {
        let mut config = Self { endpoints: read_endpoints(&mut table, errors), ..Self::default() };
        set(&mut config.allow_unencrypted, table.flag("allow_unencrypted", errors));
        let domain = |text: &str| text.parse::<ClusterName>().map_err(|error| error.to_string());
        set(&mut config.domain, table.parsed("domain", errors, domain));
        set(&mut config.scope, table.parsed("view", errors, parse_view));
        config.ca = table.parsed("ca", errors, WebFile::parse);
        config.identity = read_identity(&mut table, errors);
        config.login = read_login(&mut table, errors);
        config.read_times(&mut table, errors);
        let min_backups = table.number("min_backups", 0, 16, errors);
        set(&mut config.min_backups, min_backups.and_then(|count| u32::try_from(count).ok()));
        let neutron = table.table("neutron", errors);
        config.neutron = neutron.and_then(|table| NeutronApiConfig::read(table, errors));
        config.check_encryption(&table, errors);
        table.finish(errors);
        config
    }

    fn read_times(&mut self, table: &mut Table<'_, '_>, errors: &mut SettingErrors<'_>) {
        let seconds = Duration::from_secs;
        let heartbeat = parse_between(seconds(1), seconds(60), "it is 1s to 60s");
        set(&mut self.heartbeat, table.parsed("heartbeat", errors, heartbeat));
        // The default follows the heartbeat, so that a longer heartbeat alone is valid.
        self.lease = self.lease.max(self.heartbeat * HEARTBEATS_IN_LEASE);
        let lease = parse_between(seconds(3), seconds(600), "it is 3s to 10m");
        let minimum = self.heartbeat * HEARTBEATS_IN_LEASE;
        let lease = table.parsed("lease", errors, |text| {
            let lease = lease(text)?;
            if lease.subsec_millis() != 0 {
                return Err("etcd needs whole seconds".to_owned());
            }
            let error = || {
                let (heartbeat, minimum) = (self.heartbeat.as_millis(), minimum.as_millis());
                format!(
                    "it must be at least three heartbeats ({heartbeat} ms each, so {minimum} ms): a single late \
                     heartbeat would end it. Set a longer lease or a shorter heartbeat"
                )
            };
            (lease >= minimum).then_some(lease).ok_or_else(error)
        });
        set(&mut self.lease, lease);
        let settle = parse_between(Duration::ZERO, seconds(300), "it is 0s to 5m");
        set(&mut self.settle, table.parsed("settle", errors, settle));
        let slow = parse_between(Duration::ZERO, seconds(3600), "it is 0s to 1h");
        set(&mut self.slow_settle, table.parsed("slow_settle", errors, slow));
    }

    /// Another host needs `https://` or consent, a password is not sent there without encryption, and TLS needs `https://`.
    fn check_encryption(&mut self, table: &Table<'_, '_>, errors: &mut SettingErrors<'_>) {
        let endpoints = || self.endpoints.iter().filter_map(|text| EtcdEndpoint::parse(text).ok());
        let plain: Vec<EtcdEndpoint> = endpoints().filter(|one| !one.is_encrypted()).collect();
        let Some(first) = plain.first() else { return };
        if plain.len() < self.endpoints.len() {
            errors.add(table.offset, "endpoints: use https:// for all of them, or http:// for all");
        }
        if self.ca.is_some() || self.identity.is_some() {
            let text = format!("ca, certificate and key need endpoints with https://, not {first}");
            errors.add(table.offset, text);
        }
        let exposed = plain.iter().find(|one| one.is_readable_in_transit());
        if let (Some(exposed), false) = (exposed, self.allow_unencrypted) {
            let text = format!(
                "endpoints: {exposed} is another host, and its records could be read and changed in transit; use \
                 https://, or set allow_unencrypted = true"
            );
            errors.add(table.offset, text);
        }
        if let (Some(_), Some(exposed)) = (&self.login, exposed) {
            let text = format!(
                "endpoints: the password would be sent to {exposed} without encryption; use https://"
            );
            errors.add(table.offset, text);
            // A command that uses the valid settings of a file with errors must not send it either.
            self.login = None;
        }
    }
}

fn read_endpoints(table: &mut Table<'_, '_>, errors: &mut SettingErrors<'_>) -> Vec<String> {
    let mut endpoints: Vec<String> = Vec::new();
    for (offset, text) in table.texts("endpoints", errors).unwrap_or_default() {
        match EtcdEndpoint::parse(text).map(|endpoint| endpoint.to_string()) {
            Ok(endpoint) if endpoints.contains(&endpoint) => {
                errors.add(offset, format!("endpoints: {text:?} is already in the list"));
            }
            Ok(_) if endpoints.len() == MAX_ENDPOINTS => {
                errors.add(offset, format!("endpoints: more than {MAX_ENDPOINTS}"));
            }
            Ok(endpoint) => endpoints.push(endpoint),
            Err(error) => errors.add(offset, format!("endpoints: {error}")),
        }
    }
    endpoints
}

fn parse_view(word: &str) -> Result<ClusterScope, String> {
    match word {
        "own" => Ok(ClusterScope::Own),
        "full" => Ok(ClusterScope::Full),
        _ => Err(format!("it is \"own\" or \"full\", not {word:?}")),
    }
}

fn read_identity(
    table: &mut Table<'_, '_>,
    errors: &mut SettingErrors<'_>,
) -> Option<ClusterIdentityFiles> {
    let certificate = table.parsed("certificate", errors, WebFile::parse);
    let key = table.parsed("key", errors, WebFile::parse);
    match (certificate, key) {
        (Some(certificate), Some(key)) => Some(ClusterIdentityFiles { certificate, key }),
        (None, None) => None,
        (Some(_), None) => {
            errors.add(table.offset, "certificate needs key, the file with its private key");
            None
        }
        (None, Some(_)) => {
            let text = "key needs certificate, the file with the certificate of the key";
            errors.add(table.offset, text);
            None
        }
    }
}

fn read_login(table: &mut Table<'_, '_>, errors: &mut SettingErrors<'_>) -> Option<ClusterLogin> {
    let user = table.parsed("user", errors, |text| match text {
        "" => Err("it is empty".to_owned()),
        text => Ok(text.to_owned()),
    });
    // An invalid value is an error of its own.
    let (has_user, has_password) = (table.take("user").is_some(), table.take("password").is_some());
    let password = table.parsed("password", errors, |text| {
        // The message does not repeat the text, which may be a password.
        let error = "it is the absolute path of a file with the password, or credential:NAME";
        WebFile::parse(text).map_err(|_error| error.to_owned())
    });
    match (user, password) {
        (Some(user), Some(password)) => Some(ClusterLogin { user, password }),
        (Some(_), None) if !has_password => {
            errors.add(table.offset, "user needs password, the file with the password of the user");
            None
        }
        (None, Some(_)) if !has_user => {
            errors.add(table.offset, "password needs user");
            None
        }
        _ => None,
    }
}

fn parse_between(
    least: Duration,
    greatest: Duration,
    error: &'static str,
) -> impl Fn(&str) -> Result<Duration, String> {
    move |text| {
        let parsed = span(text)?;
        let is_valid = (least..=greatest).contains(&parsed);
        is_valid.then_some(parsed).ok_or_else(|| error.to_owned())
    }
}

#[cfg(test)]
mod tests;
