// SPDX-License-Identifier: Apache-2.0
//! etcd as the source of an answer: the settings from the command line or the configuration.

mod error;

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use vipwatch_cluster::etcd::{ClientCertificate, EtcdLogin, EtcdPassword, EtcdSettings};
use vipwatch_cluster::key::ClusterName;
use vipwatch_cluster::reader::{EtcdReader, domains};
use vipwatch_node::config::{ClusterConfig, EtcdEndpoint};

use self::error::{SettingsOrigin, empty_domain, file_error, read_error};
use crate::args::EtcdOptions;
use crate::failure::{CommandError, ExitStatus};

/// The domain of nodes that do not set it in their configuration.
const DEFAULT_DOMAIN: &str = "default";

/// Maximum size of a file with a password, in bytes.
const MAX_PASSWORD_BYTES: u64 = 4096;

/// Maximum number of domains that an error lists.
const MAX_DOMAINS: usize = 20;

/// Connects to etcd with the options of the command, and reads the domain.
pub(super) fn open(options: &EtcdOptions) -> Result<EtcdReader, CommandError> {
    let (settings, domain) = settings(options)?;
    read(&settings, &domain, SettingsOrigin::Options)
}

/// Connects to etcd as a node with this configuration does, and reads its domain.
pub(super) fn open_configured(config: &ClusterConfig) -> Result<EtcdReader, CommandError> {
    let settings = config.etcd_settings().map_err(|error| file_error(&error))?;
    read(&settings, &config.domain, SettingsOrigin::Configuration)
}

/// An empty domain is an error that lists the domains that exist.
fn read(
    settings: &EtcdSettings,
    domain: &ClusterName,
    origin: SettingsOrigin,
) -> Result<EtcdReader, CommandError> {
    let opened = EtcdReader::open(settings.clone(), domain.clone());
    let reader = opened.map_err(|error| read_error(&error, domain, origin))?;
    let is_empty = reader.view().nodes().next().is_none() && reader.view().role_count() == 0;
    if is_empty {
        return Err(empty_domain(domain, domains(settings, MAX_DOMAINS), origin));
    }
    Ok(reader)
}

/// The settings and the domain.
pub(crate) fn settings(options: &EtcdOptions) -> Result<(EtcdSettings, ClusterName), CommandError> {
    let domain = options.domain.as_deref().unwrap_or(DEFAULT_DOMAIN);
    let domain = domain.parse().map_err(|error| usage(format!("--domain: {error}")))?;
    let endpoints =
        options.etcd.iter().map(|url| endpoint(url)).collect::<Result<Vec<_>, CommandError>>()?;
    check_encryption(&endpoints, options)?;
    let mut settings = EtcdSettings::new(endpoints.iter().map(ToString::to_string).collect());
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
fn endpoint(url: &str) -> Result<EtcdEndpoint, CommandError> {
    let url = url.trim();
    let parsed = if url.contains("://") {
        EtcdEndpoint::parse(url)
    } else {
        EtcdEndpoint::parse(&format!("http://{url}"))
    };
    parsed.map_err(|error| {
        usage(format!("--etcd: {error}")).hint(
            "--etcd takes `https://HOST:2379` or `http://HOST:2379`; --etcd-user names a user",
        )
    })
}

/// The options of TLS need `https://`, and a password is not sent to another host without encryption.
fn check_encryption(endpoints: &[EtcdEndpoint], options: &EtcdOptions) -> Result<(), CommandError> {
    let plain: Vec<&EtcdEndpoint> = endpoints.iter().filter(|one| !one.is_encrypted()).collect();
    let Some(first) = plain.first() else { return Ok(()) };
    if plain.len() < endpoints.len() {
        return Err(usage("--etcd has addresses with http:// and with https://")
            .hint("use one of them for all addresses"));
    }
    let has_files =
        [&options.etcd_ca, &options.etcd_cert, &options.etcd_key].into_iter().any(Option::is_some);
    if has_files {
        let message =
            format!("--etcd-ca, --etcd-cert and --etcd-key need https://, and --etcd has {first}");
        return Err(usage(message).hint("write `https://` before the address"));
    }
    let exposed = plain.iter().find(|one| one.is_readable_in_transit());
    match exposed.filter(|_| options.etcd_user.is_some()) {
        None => Ok(()),
        Some(exposed) => {
            let message = format!("the password would be sent to {exposed} without encryption");
            Err(usage(message).hint("write `https://` before the address, and give --etcd-ca"))
        }
    }
}

fn usage(message: impl std::fmt::Display) -> CommandError {
    CommandError::new(ExitStatus::Usage, message)
}

/// The password in a file, which other users must not be able to read. A line break at its end is not part of it.
fn password(file: &Path) -> Result<EtcdPassword, CommandError> {
    let unreadable = |error: std::io::Error| {
        let code = match error.kind() {
            std::io::ErrorKind::PermissionDenied => ExitStatus::NotPermitted,
            _ => ExitStatus::NotFound,
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
        return Err(CommandError::new(ExitStatus::NotFound, message));
    }
    Ok(EtcdPassword::new(text.to_owned()))
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
    fn an_address_that_cannot_be_right_is_wrong_usage() {
        let cases = ["https://10.0.0.1", "ftp://a:1", "https://user:word@a:2379"];
        let message = |url: &str| message(&EtcdOptions { etcd: vec![url.to_owned()], ..options() });
        insta::assert_snapshot!(cases.map(message).join("\n"), @r#"
        exit 2: --etcd: "https://10.0.0.1" has no port; etcd listens on 2379 by default
        exit 2: --etcd: "ftp://a:1" is not a URL of etcd, such as https://10.0.0.1:2379 or https://[::1]:2379
        exit 2: --etcd: a URL has no user here; set user and password
        "#);
    }

    #[test]
    fn a_password_and_certificates_need_encryption() {
        let file = || Some("x".into());
        let plain = |url: &str| EtcdOptions { etcd: vec![url.to_owned()], ..options() };
        let login = |options| EtcdOptions {
            etcd_user: Some("x".to_owned()),
            etcd_password_file: file(),
            ..options
        };
        let both = vec!["http://127.0.0.1:2379".to_owned(), "http://10.0.0.2:2379".to_owned()];
        let cases = [
            login(plain("10.0.0.1:2379")),
            login(EtcdOptions { etcd: both, ..options() }),
            EtcdOptions { etcd_ca: file(), ..plain("10.0.0.1:2379") },
        ];
        insta::assert_snapshot!(cases.iter().map(message).collect::<Vec<_>>().join("\n"), @r"
        exit 2: the password would be sent to http://10.0.0.1:2379 without encryption
        exit 2: the password would be sent to http://10.0.0.2:2379 without encryption
        exit 2: --etcd-ca, --etcd-cert and --etcd-key need https://, and --etcd has http://10.0.0.1:2379
        ");
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
        assert_eq!(error.code, ExitStatus::NotFound);
    }
}
