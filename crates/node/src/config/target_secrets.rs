// SPDX-License-Identifier: Apache-2.0
//! The secrets of webhooks and of the upstream: which are in the configuration file, and whether those outside of it can be
//! read.

use vipwatch_core::ErrorChain;

use super::header::HeaderValue;
use super::secret_line::SecretError;
use super::service_credential::ServiceCredential;
use super::target_url::TargetUrl;
use super::web::WebFile;
use super::{Config, ConfigError, ReceiverConfig, Target};

/// A webhook or the upstream, for messages about its secrets.
struct HttpTarget<'c> {
    kind: &'static str,
    name: &'c str,
    target: &'c Target,
}

/// A target, and a secret outside the configuration that it cannot use.
#[derive(Debug, thiserror::Error)]
#[error("{kind} {target:?}")]
pub struct TargetSecretError {
    kind: &'static str,
    target: String,
    source: SecretError,
}

impl TargetSecretError {
    /// What to do.
    pub fn hint(&self) -> String {
        self.source.hint()
    }

    pub(super) fn list(errors: &[Self]) -> String {
        errors.iter().map(|error| ErrorChain(error).to_string()).collect::<Vec<_>>().join("\n")
    }
}

impl Config {
    /// Reads the secrets outside the configuration that webhooks and the upstream need, as a node does, and fails if one
    /// cannot be used.
    pub fn check_target_secrets(&self) -> Result<(), ConfigError> {
        check(self.http_targets().flat_map(HttpTarget::secrets))
    }

    /// As [`Self::check_target_secrets`], for a process without the credentials of the service: returns those that were not
    /// checked, once each, as in the configuration.
    pub fn check_target_files(&self) -> Result<Vec<String>, ConfigError> {
        let secrets = || self.http_targets().flat_map(HttpTarget::secrets);
        check(secrets().filter(|secret| secret.credential().is_none()))?;
        let mut names = Vec::new();
        for name in secrets().filter_map(|secret| secret.credential().map(ToString::to_string)) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        Ok(names)
    }

    /// Whether the configuration file has a secret of a webhook or of the upstream.
    pub(super) fn has_credentials(&self) -> bool {
        self.http_targets().any(|one| one.target.has_credentials())
    }

    fn http_targets(&self) -> impl Iterator<Item = HttpTarget<'_>> {
        let of_rules = self.rules.iter().flat_map(|rule| &rule.webhooks);
        let of_rules = of_rules.map(|webhook| HttpTarget {
            kind: "webhook",
            name: &webhook.name,
            target: &webhook.target,
        });
        of_rules.chain(self.receiver.iter().flat_map(ReceiverConfig::http_targets))
    }
}

impl ReceiverConfig {
    /// As [`Config::check_target_secrets`], for the targets of the receiver alone.
    pub fn check_target_secrets(&self) -> Result<(), ConfigError> {
        check(self.http_targets().flat_map(HttpTarget::secrets))
    }

    fn http_targets(&self) -> impl Iterator<Item = HttpTarget<'_>> {
        let webhooks = self.webhooks.iter().map(|webhook| HttpTarget {
            kind: "webhook",
            name: &webhook.name,
            target: &webhook.target,
        });
        webhooks.chain(self.upstream.iter().map(|upstream| HttpTarget {
            kind: "upstream",
            name: &upstream.name,
            target: &upstream.target,
        }))
    }
}

/// A setting of a target; its value may be outside the configuration.
struct TargetSecret<'c> {
    kind: &'static str,
    name: &'c str,
    setting: SecretSetting<'c>,
}

enum SecretSetting<'c> {
    Url(&'c Target),
    Header(&'c str, &'c HeaderValue),
}

impl<'c> HttpTarget<'c> {
    fn secrets(self) -> impl Iterator<Item = TargetSecret<'c>> {
        let Self { kind, name, target } = self;
        let headers = target.headers.iter();
        let headers = headers.map(|(header, value)| SecretSetting::Header(header, value));
        let settings = std::iter::once(SecretSetting::Url(target)).chain(headers);
        settings.map(move |setting| TargetSecret { kind, name, setting })
    }
}

impl TargetSecret<'_> {
    /// The credential of the service that has the value; `None` for a value elsewhere.
    fn credential(&self) -> Option<&ServiceCredential> {
        match self.setting {
            SecretSetting::Url(Target {
                url: TargetUrl::File(WebFile::Credential(one)), ..
            })
            | SecretSetting::Header(_, HeaderValue::Credential(one)) => Some(one),
            SecretSetting::Url(_) | SecretSetting::Header(..) => None,
        }
    }

    fn check(&self) -> Result<(), TargetSecretError> {
        let read = match self.setting {
            SecretSetting::Url(target) => target.read_url().map(drop),
            SecretSetting::Header(header, value) => value.read(header).map(drop),
        };
        let (kind, target) = (self.kind, self.name);
        read.map_err(|source| TargetSecretError { kind, target: target.to_owned(), source })
    }
}

fn check<'c>(secrets: impl Iterator<Item = TargetSecret<'c>>) -> Result<(), ConfigError> {
    let errors: Vec<TargetSecretError> =
        secrets.filter_map(|secret| secret.check().err()).collect();
    if errors.is_empty() { Ok(()) } else { Err(ConfigError::TargetSecrets(errors)) }
}
