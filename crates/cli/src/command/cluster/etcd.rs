// SPDX-License-Identifier: Apache-2.0
//! etcd as the source of an answer: the settings from the command line, and errors with hints.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use vipwatch_cluster::etcd::{
    ClientCertificate, EtcdError, EtcdErrorKind, EtcdLogin, EtcdPassword, EtcdSettings,
};
use vipwatch_cluster::key::ClusterName;
use vipwatch_cluster::reader::{EtcdReader, ReadError, domains};
use vipwatch_core::ErrorChain;

use crate::args::EtcdOptions;
use crate::failure::{CommandError, ExitStatus};

/// The domain of nodes that do not set it in their configuration.
const DEFAULT_DOMAIN: &str = "default";

/// Maximum size of a file with a password, in bytes.
const MAX_PASSWORD_BYTES: u64 = 4096;

/// Maximum number of domains that an error lists.
const MAX_DOMAINS: usize = 20;

/// Connects to etcd, and reads the domain. An empty domain is an error that lists the domains that exist.
pub(super) fn open(options: &EtcdOptions) -> Result<EtcdReader, CommandError> {
    let (settings, domain) = settings(options)?;
    let opened = EtcdReader::open(settings.clone(), domain.clone());
    let reader = opened.map_err(|error| read_error(&error, &domain))?;
    let is_empty = reader.view().nodes().next().is_none() && reader.view().role_count() == 0;
    if is_empty {
        let found = domains(&settings, MAX_DOMAINS);
        return Err(empty_domain(&domain, found));
    }
    Ok(reader)
}

/// The settings and the domain.
fn settings(options: &EtcdOptions) -> Result<(EtcdSettings, ClusterName), CommandError> {
    let domain = options.domain.as_deref().unwrap_or(DEFAULT_DOMAIN);
    let domain = domain.parse().map_err(|error| usage(format!("--domain: {error}")))?;
    let has_http = options.etcd.iter().any(|url| url.starts_with("http://"));
    let has_https = options.etcd.iter().any(|url| url.starts_with("https://"));
    if has_http && has_https {
        return Err(usage("--etcd has addresses with http:// and with https://")
            .hint("use one of them for all addresses"));
    }
    let mut settings = EtcdSettings::new(options.etcd.iter().map(|url| endpoint(url)).collect());
    settings.ca.clone_from(&options.etcd_ca);
    settings.certificate = match (&options.etcd_cert, &options.etcd_key) {
        (Some(certificate), Some(key)) => {
            Some(ClientCertificate { certificate: certificate.clone(), key: key.clone() })
        }
        (None, None) => None,
        (Some(_), None) => return Err(usage("--etcd-cert needs --etcd-key")),
        (None, Some(_)) => return Err(usage("--etcd-key needs --etcd-cert")),
    };
    settings.login = match (&options.etcd_user, &options.etcd_password_file) {
        (Some(user), Some(file)) => {
            Some(EtcdLogin { user: user.clone(), password: password(file)? })
        }
        (None, None) => None,
        (Some(_), None) => return Err(usage("--etcd-user needs --etcd-password-file")),
        (None, Some(_)) => return Err(usage("--etcd-password-file needs --etcd-user")),
    };
    Ok((settings, domain))
}

/// An address without a scheme is a frequent mistake: `10.0.0.1:2379` is `http://10.0.0.1:2379`, as for `etcdctl`.
fn endpoint(url: &str) -> String {
    let url = url.trim().trim_end_matches('/');
    if url.contains("://") { url.to_owned() } else { format!("http://{url}") }
}

fn usage(message: impl std::fmt::Display) -> CommandError {
    CommandError::new(ExitStatus::Usage, message)
}

/// The password in a file, which other users must not be able to read. A line break at its end is not part of it.
fn password(file: &Path) -> Result<EtcdPassword, CommandError> {
    let unreadable = |error: std::io::Error| {
        let code = match error.kind() {
            std::io::ErrorKind::PermissionDenied => ExitStatus::NotPermitted,
            _ => ExitStatus::Missing,
        };
        CommandError::new(code, format!("cannot read the password in {}: {error}", file.display()))
    };
    let opened = std::fs::File::open(file).map_err(unreadable)?;
    let metadata = opened.metadata().map_err(unreadable)?;
    if metadata.is_file() && metadata.permissions().mode() & 0o077 != 0 {
        let message = format!("other users can read the password in {}", file.display());
        let hint = format!("run `chmod 600 {}`", file.display());
        return Err(CommandError::new(ExitStatus::NotPermitted, message).hint(hint));
    }
    let mut text = String::new();
    opened.take(MAX_PASSWORD_BYTES).read_to_string(&mut text).map_err(unreadable)?;
    let text = text.trim_end_matches(['\r', '\n']);
    if text.is_empty() {
        let message = format!("the file {} has no password", file.display());
        return Err(CommandError::new(ExitStatus::Missing, message));
    }
    Ok(EtcdPassword::new(text.to_owned()))
}

/// The error and hint for an etcd that cannot be read.
fn read_error(error: &ReadError, domain: &ClusterName) -> CommandError {
    let ReadError::Etcd(etcd) = error else {
        return CommandError::new(ExitStatus::Missing, ErrorChain(error));
    };
    let code = match etcd.kind() {
        EtcdErrorKind::Settings => match etcd {
            EtcdError::File { source, .. }
                if source.kind() == std::io::ErrorKind::PermissionDenied =>
            {
                ExitStatus::NotPermitted
            }
            EtcdError::File { .. } => ExitStatus::Missing,
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
        | EtcdErrorKind::Rejected => ExitStatus::Missing,
    };
    let failure = CommandError::new(code, ErrorChain(error));
    match hint(etcd, domain) {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

/// What the user of the command can do. The hints of the library name keys of the node's configuration.
fn hint(error: &EtcdError, domain: &ClusterName) -> Option<String> {
    let text = match error {
        EtcdError::File { .. } => "check --etcd-ca, --etcd-cert and --etcd-key",
        EtcdError::Password { .. } => "check --etcd-password-file",
        EtcdError::TlsSettings(_) => {
            "the files of --etcd-ca, --etcd-cert and --etcd-key must be PEM, and the key must fit"
        }
        EtcdError::NoEndpoint | EtcdError::Endpoint { .. } => {
            "--etcd takes `https://HOST:2379` or `http://HOST:2379`"
        }
        EtcdError::Connect { .. } | EtcdError::Timeout { .. } | EtcdError::Disconnected { .. } => {
            "check that etcd runs there, that --etcd has its client URL, and that it has `https://` if etcd uses TLS"
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
fn empty_domain(domain: &ClusterName, found: Result<Vec<ClusterName>, ReadError>) -> CommandError {
    let failure = CommandError::new(
        ExitStatus::Missing,
        format!("no node has published in the domain {domain} of this etcd"),
    );
    failure.hint(match found {
        Ok(names) if names.is_empty() => {
            "there is no other domain either: set `endpoints` in [cluster] of each node's configuration".to_owned()
        }
        Ok(names) => {
            let names: Vec<String> = names.iter().map(ToString::to_string).collect();
            format!("--domain chooses another one; there are: {}", names.join(", "))
        }
        Err(error) => {
            format!("--domain chooses another one; the domains cannot be listed: {}", ErrorChain(&error))
        }
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::OpenOptionsExt;

    use super::*;

    fn options() -> EtcdOptions {
        EtcdOptions { etcd: vec!["https://10.0.0.1:2379".to_owned()], ..EtcdOptions::default() }
    }

    fn message(options: &EtcdOptions) -> String {
        let error = settings(options).unwrap_err();
        format!("exit {}: {}", error.code as u8, error.message)
    }

    #[test]
    fn the_default_domain_and_the_scheme_can_be_left_out() {
        let (settings, domain) =
            settings(&EtcdOptions { etcd: vec!["localhost:2379/".to_owned()], ..options() })
                .unwrap();
        assert_eq!(settings.endpoints, ["http://localhost:2379"]);
        assert_eq!(domain.as_str(), "default");
    }

    #[test]
    fn options_that_need_another_one_are_wrong_usage() {
        let file = || Some("x".into());
        let cases = [
            EtcdOptions { etcd_cert: file(), ..options() },
            EtcdOptions { etcd_key: file(), ..options() },
            EtcdOptions { etcd_user: Some("x".to_owned()), ..options() },
            EtcdOptions { etcd_password_file: file(), ..options() },
            EtcdOptions { domain: Some("a/b".to_owned()), ..options() },
            EtcdOptions {
                etcd: vec!["http://a:1".to_owned(), "https://b:1".to_owned()],
                ..options()
            },
        ];
        insta::assert_snapshot!(cases.iter().map(message).collect::<Vec<_>>().join("\n"), @r#"
        exit 2: --etcd-cert needs --etcd-key
        exit 2: --etcd-key needs --etcd-cert
        exit 2: --etcd-user needs --etcd-password-file
        exit 2: --etcd-password-file needs --etcd-user
        exit 2: --domain: invalid name "a/b": use 1 to 64 letters, digits, '-', '_' and '.'
        exit 2: --etcd has addresses with http:// and with https://
        "#);
    }

    #[test]
    fn a_password_is_read_without_its_line_break_and_only_from_a_private_file() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("password");
        let mut create = std::fs::OpenOptions::new();
        let mut written = create.write(true).create_new(true).mode(0o600).open(&file).unwrap();
        std::io::Write::write_all(&mut written, b"secret\n").unwrap();
        assert_eq!(password(&file).unwrap(), EtcdPassword::new("secret".to_owned()));
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o640)).unwrap();
        let error = password(&file).unwrap_err();
        assert_eq!(error.code, ExitStatus::NotPermitted);
        assert!(error.hint.unwrap().starts_with("run `chmod 600"));
        let error = password(&directory.path().join("none")).unwrap_err();
        assert_eq!(error.code, ExitStatus::Missing);
    }
}
