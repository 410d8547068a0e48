// SPDX-License-Identifier: Apache-2.0
//! `[cluster.neutron]` of the settings in force. Files with secrets are shown by name only.

use serde::Serialize;

use super::span_text;
use crate::config::{KeystoneIdentity, NeutronApiConfig};

#[derive(Debug, Serialize)]
pub(super) struct NeutronSection<'c> {
    url: &'c str,
    ca: Option<String>,
    auth_url: Option<&'c str>,
    application_credential_id: Option<&'c str>,
    application_credential_secret: Option<String>,
    user: Option<&'c str>,
    user_domain: Option<&'c str>,
    password: Option<String>,
    project: Option<&'c str>,
    project_domain: Option<&'c str>,
    interval: String,
    settle: String,
}

impl<'c> NeutronSection<'c> {
    pub(super) fn of(neutron: &'c NeutronApiConfig) -> Self {
        let identity = neutron.keystone.as_ref().map(|keystone| &keystone.identity);
        let (credential, user) = match identity {
            None => (None, None),
            Some(KeystoneIdentity::ApplicationCredential { id, secret }) => {
                (Some((id, secret)), None)
            }
            Some(KeystoneIdentity::Password(user)) => (None, Some(user)),
        };
        Self {
            url: &neutron.url,
            ca: neutron.ca.as_ref().map(ToString::to_string),
            auth_url: neutron.keystone.as_ref().map(|keystone| keystone.url.as_str()),
            application_credential_id: credential.map(|(id, _)| id.as_str()),
            application_credential_secret: credential.map(|(_, secret)| secret.to_string()),
            user: user.map(|user| user.name.as_str()),
            user_domain: user.map(|user| user.domain.as_str()),
            password: user.map(|user| user.password.to_string()),
            project: user.map(|user| user.project.as_str()),
            project_domain: user.map(|user| user.project_domain.as_str()),
            interval: span_text(neutron.interval),
            settle: span_text(neutron.settle),
        }
    }
}
