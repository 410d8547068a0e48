// SPDX-License-Identifier: Apache-2.0
//! The errors of etcd. A gRPC status is translated here, and nowhere else: etcd uses one code for several errors, so
//! some of them differ only by their text (`api/v3rpc/rpctypes/error.go` of etcd).

use std::error::Error as StdError;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use strum::{IntoStaticStr, VariantArray};
use tonic::Code;
use vipwatch_core::escape_untrusted_within;
use vipwatch_linux::protected_file::FileProtectionError;

use super::PasswordError;

/// The maximum length of a text of etcd in an error.
const MAX_TEXT: usize = 200;

/// The reason why a request of etcd failed.
#[derive(Debug, thiserror::Error)]
pub enum EtcdError {
    /// A file of the settings cannot be read, or other users can read or change it.
    #[error("cannot use {path}")]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: FileProtectionError,
    },
    /// A file of the settings has something else than a certificate or a key.
    #[error("no {content} in the format PEM is in {path}")]
    NotPem {
        /// The file.
        path: PathBuf,
        /// What the file should have.
        content: &'static str,
    },
    /// The password cannot be read.
    #[error("cannot read the password")]
    Password {
        /// The cause.
        source: PasswordError,
    },
    /// No endpoint is configured.
    #[error("no endpoint of etcd is configured")]
    NoEndpoint,
    /// An endpoint is not a URL.
    #[error("invalid endpoint {endpoint:?} of etcd")]
    Endpoint {
        /// The endpoint.
        endpoint: String,
    },
    /// A certificate or a key of the settings cannot be used.
    #[error("cannot use the certificate or the key for etcd")]
    TlsSettings(#[source] tonic::transport::Error),
    /// No connection.
    #[error("cannot connect to {endpoint}")]
    Connect {
        /// The endpoint.
        endpoint: String,
        /// The cause.
        source: tonic::transport::Error,
    },
    /// The certificate of etcd is not accepted, or etcd does not accept that of this node.
    #[error("cannot connect to {endpoint}: TLS failed")]
    Tls {
        /// The endpoint.
        endpoint: String,
        /// The cause.
        source: rustls::Error,
    },
    /// etcd closed the connection before its first answer. With TLS 1.3, a client learns in this way that etcd does not
    /// accept its certificate.
    #[error("{endpoint} closed the connection after the TLS handshake")]
    ClosedAfterTls {
        /// The endpoint.
        endpoint: String,
    },
    /// No answer in time.
    #[error("no answer of etcd to {request} within {} ms", limit.as_millis())]
    Timeout {
        /// The request.
        request: &'static str,
        /// The time limit.
        limit: Duration,
    },
    /// The connection ended during a request.
    #[error("the connection to etcd ended during {request}: {text}")]
    Disconnected {
        /// The request.
        request: &'static str,
        /// The cause.
        text: String,
    },
    /// The member has no leader, or lost it during the request.
    #[error("etcd cannot answer {request}: {text}")]
    Unavailable {
        /// The request.
        request: &'static str,
        /// The text of etcd.
        text: String,
    },
    /// The user or the password is wrong, or etcd no longer accepts the token of the login.
    #[error("etcd rejects the login: {text}")]
    Login {
        /// The text of etcd.
        text: String,
    },
    /// The user may not do this.
    #[error("etcd does not permit {request}: {text}")]
    Permission {
        /// The request.
        request: &'static str,
        /// The text of etcd.
        text: String,
    },
    /// The database of etcd is full.
    #[error("the database of etcd is full: etcd rejects {request}")]
    NoSpace {
        /// The request.
        request: &'static str,
    },
    /// The lease does not exist, or has ended.
    #[error("{} has ended", lease_name(*lease))]
    LeaseEnded {
        /// The id of the lease; 0 if etcd did not name it.
        lease: i64,
    },
    /// The revision is no longer in etcd.
    #[error("etcd has compacted the revision")]
    Compacted,
    /// An answer is longer than this client accepts.
    #[error("the answer of etcd to {request} is too long")]
    TooLong {
        /// The request.
        request: &'static str,
    },
    /// etcd cancelled a watch.
    #[error("etcd cancelled a watch: {text}")]
    WatchCancelled {
        /// The text of etcd.
        text: String,
    },
    /// Any other status of etcd.
    #[error("etcd rejects {request}: {text} ({code:?})")]
    Rejected {
        /// The request.
        request: &'static str,
        /// The gRPC code.
        code: Code,
        /// The text of etcd.
        text: String,
    },
}

/// The kind of an error, for counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub enum EtcdErrorKind {
    /// Wrong settings: files, endpoints.
    Settings,
    /// No connection, or a lost one.
    Connection,
    /// TLS.
    Tls,
    /// No answer in time.
    Timeout,
    /// No leader.
    Unavailable,
    /// User, password or permission.
    Access,
    /// The database is full.
    NoSpace,
    /// A lease has ended.
    Lease,
    /// The revision is compacted.
    Compacted,
    /// Any other error.
    Rejected,
}

impl EtcdErrorKind {
    /// All kinds.
    pub const ALL: [Self; 10] = *Self::VARIANTS.as_array().unwrap();

    /// The kind as a label of metrics.
    pub fn word(self) -> &'static str {
        self.into()
    }
}

impl EtcdError {
    /// The kind.
    pub fn kind(&self) -> EtcdErrorKind {
        match self {
            Self::File { .. }
            | Self::NotPem { .. }
            | Self::Password { .. }
            | Self::NoEndpoint
            | Self::Endpoint { .. }
            | Self::TlsSettings(_) => EtcdErrorKind::Settings,
            Self::Connect { .. } | Self::Disconnected { .. } => EtcdErrorKind::Connection,
            Self::Tls { .. } | Self::ClosedAfterTls { .. } => EtcdErrorKind::Tls,
            Self::Timeout { .. } => EtcdErrorKind::Timeout,
            Self::Unavailable { .. } => EtcdErrorKind::Unavailable,
            Self::Login { .. } | Self::Permission { .. } => EtcdErrorKind::Access,
            Self::NoSpace { .. } => EtcdErrorKind::NoSpace,
            Self::LeaseEnded { .. } => EtcdErrorKind::Lease,
            Self::Compacted => EtcdErrorKind::Compacted,
            Self::TooLong { .. } | Self::WatchCancelled { .. } | Self::Rejected { .. } => {
                EtcdErrorKind::Rejected
            }
        }
    }

    /// What the user can do; `None` if that is not known.
    pub fn hint(&self) -> Option<&'static str> {
        Some(match self {
            Self::File { .. } => {
                "check `ca`, `certificate` and `key`, and the permissions of these files"
            }
            Self::NotPem { .. } => {
                "`openssl x509 -noout -text -in FILE` shows a certificate, `openssl pkey -noout -text -in FILE` a key"
            }
            Self::Password { .. } => "check `password`, and the permissions of its file",
            Self::NoEndpoint | Self::Endpoint { .. } => {
                "use `https://HOST:2379` or `http://HOST:2379`"
            }
            Self::TlsSettings(_) => {
                "the files of `ca`, `certificate` and `key` must be PEM, and the key must fit"
            }
            Self::Connect { .. } => {
                "check that etcd runs there, and that its client URL is the endpoint"
            }
            Self::Tls { .. } => {
                "check `ca` and the endpoint against the certificate of etcd, and whether a certificate has expired"
            }
            Self::ClosedAfterTls { .. } => {
                "etcd may require a client certificate: check `certificate` and `key`, and whether it has expired"
            }
            Self::Login { .. } => {
                "check the user and the password, and whether etcd has authentication enabled"
            }
            Self::Permission { .. } => {
                "grant the user a role with readwrite access to the prefix /vipwatch/"
            }
            Self::NoSpace { .. } => "compact and defragment etcd, then `etcdctl alarm disarm`",
            Self::Unavailable { .. } => "check that a majority of the members of etcd runs",
            _ => return None,
        })
    }

    /// The error of an attempt to connect.
    pub(crate) fn connect(endpoint: &str, source: tonic::transport::Error) -> Self {
        let endpoint = endpoint.to_owned();
        match tls_cause(&source) {
            Some(source) => Self::Tls { endpoint, source },
            None => Self::Connect { endpoint, source },
        }
    }

    /// The error of a request.
    pub(crate) fn request(request: &'static str, endpoint: &str, status: &tonic::Status) -> Self {
        let text = plain(status.message());
        let says = |part: &str| status.message().contains(part);
        if let Some(source) = tls_cause(status) {
            return Self::Tls { endpoint: endpoint.to_owned(), source };
        }
        // A status of etcd has no source: this one was made from an error of the connection.
        if status.source().is_some() {
            return Self::Disconnected { request, text: cause_text(status) };
        }
        match status.code() {
            Code::OutOfRange if says("compacted") => Self::Compacted,
            // tonic's own error for a message above the limit.
            Code::OutOfRange if says("decoded message length") => Self::TooLong { request },
            Code::NotFound if says("lease not found") => Self::LeaseEnded { lease: 0 },
            Code::ResourceExhausted if says("space exceeded") => Self::NoSpace { request },
            Code::PermissionDenied => Self::Permission { request, text },
            Code::Unauthenticated => Self::Login { text },
            // The last one: a user or a role has changed since the login, and the token has the form of a JWT.
            Code::InvalidArgument
                if says("authentication failed")
                    || says("user name is empty")
                    || says("revision of auth store is old") =>
            {
                Self::Login { text }
            }
            Code::FailedPrecondition if says("authentication is not enabled") => {
                Self::Login { text }
            }
            Code::Unavailable => Self::Unavailable { request, text },
            Code::DeadlineExceeded if says("etcdserver:") => Self::Unavailable { request, text },
            code => Self::Rejected { request, code, text },
        }
    }

    /// The error of a connection's first request.
    pub(crate) fn first(self, endpoint: &str) -> Self {
        match self {
            Self::Disconnected { .. } if endpoint.starts_with("https://") => {
                Self::ClosedAfterTls { endpoint: endpoint.to_owned() }
            }
            error => error,
        }
    }

    /// etcd has ended a watch. The reason is the text of a gRPC status.
    pub(crate) fn watch_cancelled(reason: &str) -> Self {
        let text = plain(reason);
        if reason.contains("permission denied") {
            return Self::Permission { request: "a watch", text };
        }
        Self::WatchCancelled { text }
    }
}

/// The error of TLS that caused an error, if there is one.
fn tls_cause(error: &(dyn StdError + 'static)) -> Option<rustls::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<rustls::Error>() {
            return Some(error.clone());
        }
        // An io::Error does not give its inner error as the source, but the source of that.
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        let inner = inner.map(|inner| inner as &(dyn StdError + 'static));
        next = inner.or_else(|| error.source());
    }
    None
}

/// A lease in a sentence; etcd does not name the one of a transaction.
fn lease_name(lease: i64) -> String {
    if lease == 0 { "a lease".to_owned() } else { format!("the lease {lease:x}") }
}

/// The text of the first cause.
fn cause_text(error: &dyn StdError) -> String {
    let mut last = error.source();
    while let Some(next) = last.and_then(StdError::source) {
        last = Some(next);
    }
    plain(&last.map_or_else(|| error.to_string(), ToString::to_string))
}

/// A text of etcd, short and without control characters.
fn plain(text: &str) -> String {
    escape_untrusted_within(text, MAX_TEXT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_a_full_database_is_a_sentence() {
        let status = tonic::Status::resource_exhausted("etcdserver: mvcc: database space exceeded");
        let error = EtcdError::request("a transaction", "http://127.0.0.1:2379", &status);
        assert_eq!(error.to_string(), "the database of etcd is full: etcd rejects a transaction");
        assert_eq!(error.kind(), EtcdErrorKind::NoSpace);
    }
}
