// SPDX-License-Identifier: Apache-2.0
//! Errors of etcd as errors of a command, with hints.

use vipwatch_cluster::etcd::{EtcdError, EtcdErrorKind};
use vipwatch_cluster::key::ClusterName;
use vipwatch_cluster::reader::ReadError;
use vipwatch_core::ErrorChain;
use vipwatch_linux::protected_file::FileProtectionError;
use vipwatch_node::config::{EtcdFileError, ProtectedFileError};

use crate::failure::{CommandError, ExitStatus};

/// Where the settings of etcd are from, which decides what a hint names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SettingsOrigin {
    /// The options of the command, and their variables.
    Options,
    /// `[cluster]` in the configuration of the node.
    Configuration,
}

/// The error and hint for an etcd that cannot be read.
pub(super) fn read_error(
    error: &ReadError,
    domain: &ClusterName,
    origin: SettingsOrigin,
) -> CommandError {
    let ReadError::Etcd(etcd) = error else {
        return CommandError::new(ExitStatus::No, ErrorChain(error));
    };
    let code = match etcd.kind() {
        EtcdErrorKind::Settings => match etcd {
            EtcdError::File { source, .. } => file_status(source),
            _ => ExitStatus::Usage,
        },
        EtcdErrorKind::Access => ExitStatus::NotPermitted,
        EtcdErrorKind::Connection
        | EtcdErrorKind::Tls
        | EtcdErrorKind::Timeout
        | EtcdErrorKind::Unavailable
        | EtcdErrorKind::NoSpace
        | EtcdErrorKind::Lease
        | EtcdErrorKind::Compacted
        | EtcdErrorKind::Rejected => ExitStatus::NotReachable,
    };
    let failure = CommandError::new(code, ErrorChain(error));
    let hint = match origin {
        SettingsOrigin::Options => hint(etcd, domain),
        // The hints of the library name keys of the node's configuration.
        SettingsOrigin::Configuration => etcd.hint().map(str::to_owned),
    };
    match hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

/// The exit code for a file that is missing, unreadable or refused.
fn file_status(error: &FileProtectionError) -> ExitStatus {
    match error.io_kind() {
        Some(std::io::ErrorKind::PermissionDenied) => ExitStatus::NotPermitted,
        _ => ExitStatus::NotFound,
    }
}

/// The error for a file of `[cluster]` that this command cannot use.
pub(super) fn file_error(error: &EtcdFileError) -> CommandError {
    let code = match &error.source {
        ProtectedFileError::File(source) => file_status(source),
        ProtectedFileError::NoCredentials | ProtectedFileError::NoSuchCredential(_) => {
            ExitStatus::NotFound
        }
    };
    let failure = CommandError::new(code, ErrorChain(error));
    match &error.source {
        ProtectedFileError::NoCredentials | ProtectedFileError::NoSuchCredential(_) => failure.hint(
            "only the service can read its credentials: give --etcd, and the files with the options after it",
        ),
        ProtectedFileError::File(_) if code == ExitStatus::NotPermitted => {
            failure.hint("run it as root, or give --etcd, and the files with the options after it")
        }
        ProtectedFileError::File(source) => failure.hint(source.hint()),
    }
}

/// What to do about an error with settings of the options.
fn hint(error: &EtcdError, domain: &ClusterName) -> Option<String> {
    let text = match error {
        EtcdError::File { .. } => "check --etcd-ca, --etcd-cert and --etcd-key",
        EtcdError::Password { .. } => "check --etcd-password-file",
        EtcdError::NotPem { .. } | EtcdError::TlsSettings(_) => {
            "the files of --etcd-ca, --etcd-cert and --etcd-key must be PEM, and the key must fit"
        }
        EtcdError::NoEndpoint | EtcdError::Endpoint { .. } => {
            "--etcd takes `https://HOST:2379` or `http://HOST:2379`"
        }
        EtcdError::Connect { .. } | EtcdError::Timeout { .. } | EtcdError::Disconnected { .. } => {
            "check that etcd runs there, and that --etcd has its client URL: with `https://` if etcd uses TLS, else with `http://`"
        }
        EtcdError::Tls { .. } => {
            "check --etcd-ca and --etcd against the certificate of etcd, and whether a certificate has expired"
        }
        EtcdError::ClosedAfterTls { .. } => {
            "etcd may require a client certificate: check --etcd-cert and --etcd-key, and whether it has expired"
        }
        EtcdError::Login { .. } => {
            "check --etcd-user and --etcd-password-file, and whether etcd has authentication enabled"
        }
        EtcdError::Permission { .. } => {
            return Some(format!(
                "use --etcd-user, or grant its role the right: \
                 `etcdctl role grant-permission ROLE --prefix=true read /vipwatch/v1/{domain}/`"
            ));
        }
        EtcdError::Unavailable { .. }
        | EtcdError::NoSpace { .. }
        | EtcdError::LeaseEnded { .. }
        | EtcdError::Compacted
        | EtcdError::TooLong { .. }
        | EtcdError::WatchCancelled { .. }
        | EtcdError::Rejected { .. } => return error.hint().map(str::to_owned),
    };
    Some(text.to_owned())
}

/// The error for a domain without nodes and roles.
pub(super) fn empty_domain(
    domain: &ClusterName,
    found: Result<Vec<ClusterName>, ReadError>,
    origin: SettingsOrigin,
) -> CommandError {
    let failure = CommandError::new(
        ExitStatus::NotFound,
        format!("no node has published in the domain {domain} of this etcd"),
    );
    let other = match origin {
        SettingsOrigin::Options => "--domain chooses another one",
        SettingsOrigin::Configuration => "`domain` in [cluster] of the configuration chooses it",
    };
    failure.hint(match found {
        Ok(names) if names.is_empty() => {
            "there is no other domain either: start `vipwatch node` with these `endpoints` in [cluster] of its configuration".to_owned()
        }
        Ok(names) => {
            let names: Vec<String> = names.iter().map(ToString::to_string).collect();
            format!("{other}; there are: {}", names.join(", "))
        }
        Err(error) => {
            format!("{other}; the domains cannot be listed: {}", ErrorChain(&error))
        }
    })
}
