// SPDX-License-Identifier: Apache-2.0
//! The settings of a connection to etcd.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// How etcd is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdSettings {
    /// The URLs of the members, `https://HOST:PORT` or `http://HOST:PORT`. They are tried in turn.
    pub endpoints: Vec<String>,
    /// The file with the certificate authorities of etcd, as PEM; `None` uses the system's list.
    pub ca: Option<PathBuf>,
    /// The certificate that the client shows to etcd; `None` shows none.
    pub certificate: Option<ClientCertificate>,
    /// The user of etcd; `None` sends no password.
    pub login: Option<EtcdLogin>,
    /// The time limit of one request, and of one attempt to connect.
    pub timeout: Duration,
}

impl EtcdSettings {
    /// The time limit of a request if the configuration does not set it.
    pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(3);

    /// Settings with these endpoints, without a certificate and a password.
    pub fn new(endpoints: Vec<String>) -> Self {
        let timeout = Self::DEFAULT_TIMEOUT;
        Self { endpoints, ca: None, certificate: None, login: None, timeout }
    }
}

/// The certificate of a client. The files are read again at each attempt to connect, so that a renewed certificate is
/// used without a restart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientCertificate {
    /// The file with the certificate, as PEM.
    pub certificate: PathBuf,
    /// The file with its private key, as PEM.
    pub key: PathBuf,
}

/// A user of etcd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdLogin {
    /// The name of the user.
    pub user: String,
    /// The password.
    pub password: EtcdPassword,
}

/// A password. Its debug format does not contain it.
#[derive(Clone, PartialEq, Eq)]
pub struct EtcdPassword(String);

impl EtcdPassword {
    /// A password with this text.
    pub fn new(text: String) -> Self {
        Self(text)
    }

    pub(crate) fn text(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for EtcdPassword {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}
