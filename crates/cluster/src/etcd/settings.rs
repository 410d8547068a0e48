// SPDX-License-Identifier: Apache-2.0
//! The settings of a connection to etcd.

use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::EtcdError;

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
    /// An etcd in the memory of the test, instead of the endpoints.
    #[cfg(test)]
    pub(crate) simulated: Option<crate::simulation::EtcdLink>,
}

impl EtcdSettings {
    /// The time limit of a request if the configuration does not set it.
    pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(3);

    /// Settings with these endpoints, without a certificate and a password.
    pub fn new(endpoints: Vec<String>) -> Self {
        let timeout = Self::DEFAULT_TIMEOUT;
        Self {
            endpoints,
            ca: None,
            certificate: None,
            login: None,
            timeout,
            #[cfg(test)]
            simulated: None,
        }
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
pub struct EtcdPassword(PasswordSource);

/// The reason why a password cannot be read.
pub type PasswordError = Box<dyn std::error::Error + Send + Sync>;

type PasswordReader = dyn Fn() -> Result<String, PasswordError> + Send + Sync;

#[derive(Clone)]
enum PasswordSource {
    Text(String),
    Reader(Arc<PasswordReader>),
}

impl PartialEq for PasswordSource {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Text(one), Self::Text(other)) => one == other,
            (Self::Reader(one), Self::Reader(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }
}

impl Eq for PasswordSource {}

impl EtcdPassword {
    /// A password with this text.
    pub fn new(text: String) -> Self {
        Self(PasswordSource::Text(text))
    }

    /// A password that is read at each login, so that a changed one is used without a restart.
    pub fn read_by(
        read: impl Fn() -> Result<String, PasswordError> + Send + Sync + 'static,
    ) -> Self {
        Self(PasswordSource::Reader(Arc::new(read)))
    }

    pub(crate) fn text(&self) -> Result<Cow<'_, str>, EtcdError> {
        match &self.0 {
            PasswordSource::Text(text) => Ok(Cow::Borrowed(text)),
            PasswordSource::Reader(read) => {
                read().map(Cow::Owned).map_err(|source| EtcdError::Password { source })
            }
        }
    }
}

impl fmt::Debug for EtcdPassword {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}
