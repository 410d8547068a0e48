// SPDX-License-Identifier: Apache-2.0
//! Why Neutron could not be asked.

use std::io;

use strum::{IntoStaticStr, VariantArray};

use crate::config::{ProtectedFileError, WebFile};

/// Why a request failed. The text never contains a secret or a token.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NeutronError {
    #[error("cannot read the authorities of {url}")]
    Authorities { url: String, source: io::Error },
    #[error("cannot read {file}")]
    Secret { file: WebFile, source: ProtectedFileError },
    #[error("{url} does not answer")]
    Transport { url: String, source: Box<ureq::Error> },
    #[error("Keystone rejects the login with status {0}")]
    Login(u16),
    #[error("Neutron rejects the token with status 401")]
    Token,
    #[error("Neutron does not permit to list the agents of a router: status {0}")]
    Access(u16),
    #[error("{url} answers with status {status}")]
    Status { url: String, status: u16 },
    #[error("the answer of {url} cannot be used: {reason}")]
    Answer { url: String, reason: &'static str },
}

/// The kinds of errors in the metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub(crate) enum NeutronErrorKind {
    Settings,
    Connection,
    Timeout,
    Login,
    Access,
    Status,
    Answer,
}

impl NeutronErrorKind {
    pub(crate) const ALL: [Self; 7] = *Self::VARIANTS.as_array().unwrap();

    pub(crate) fn word(self) -> &'static str {
        self.into()
    }
}

impl NeutronError {
    pub(crate) fn kind(&self) -> NeutronErrorKind {
        match self {
            Self::Authorities { .. } | Self::Secret { .. } => NeutronErrorKind::Settings,
            Self::Transport { source, .. } => match **source {
                ureq::Error::Timeout(_) => NeutronErrorKind::Timeout,
                _ => NeutronErrorKind::Connection,
            },
            Self::Login(_) | Self::Token => NeutronErrorKind::Login,
            Self::Access(_) => NeutronErrorKind::Access,
            Self::Status { .. } => NeutronErrorKind::Status,
            Self::Answer { .. } => NeutronErrorKind::Answer,
        }
    }

    /// What to do.
    pub(super) fn hint(&self) -> String {
        let hint = match self.kind() {
            NeutronErrorKind::Settings => match self {
                Self::Secret { source, .. } => return source.hint(),
                _ => "correct cluster.neutron.ca",
            },
            NeutronErrorKind::Connection | NeutronErrorKind::Timeout => {
                "check cluster.neutron.url and auth_url, the network, and cluster.neutron.ca for https://"
            }
            NeutronErrorKind::Login => {
                "check the application credential and its access rules, or user, password and project"
            }
            NeutronErrorKind::Access => {
                "Neutron's policy get_l3-agents asks for the role admin by default; an access rule must permit GET \
                 /v2.0/routers/*/l3-agents"
            }
            NeutronErrorKind::Status | NeutronErrorKind::Answer => {
                "check that cluster.neutron.url is the address of Neutron, and read Neutron's log"
            }
        };
        hint.to_owned()
    }
}
