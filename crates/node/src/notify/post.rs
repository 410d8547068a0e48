// SPDX-License-Identifier: Apache-2.0
//! Sends POST requests to one address, over connections that stay open.

pub(crate) mod ca_bundle;

use std::io::{self, Read};
use std::sync::Mutex;
use std::time::Duration;

use ureq::Agent;
use ureq::tls::{RootCerts, TlsConfig};

use self::ca_bundle::CaBundle;
use crate::config::{SecretError, Target};

/// Maximum number of bytes of an answer that are read. The connection of a longer answer is closed.
const MAX_ANSWER_BYTES: u64 = 64 << 10;

/// The 4xx that are about the whole address, whatever the content is: a wrong token, path or method, a server that has
/// not loaded its routes yet, a proxy, or a server that is in a state in which it accepts nothing.
const ABOUT_TARGET: [u16; 6] = [401, 403, 404, 405, 407, 409];

/// Why a request was not accepted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PostError {
    #[error("{0}")]
    Transport(Box<ureq::Error>),
    #[error("the server answered with status {0}")]
    Status(u16),
    #[error("the server rejected the request with status {0}")]
    Refused(u16),
    #[error("cannot read the CA bundle")]
    CaBundle(#[source] io::Error),
    #[error(transparent)]
    Secret(#[from] SecretError),
}

impl PostError {
    /// Whether another attempt may succeed.
    pub(crate) fn may_pass(&self) -> bool {
        !matches!(self, Self::Refused(_))
    }

    /// Whether the server has rejected the content of the request, for example with 400 (bad request), 413 (too large)
    /// or 422 (cannot be processed). Other content may be accepted. [`ABOUT_TARGET`] has the exceptions.
    pub(crate) fn is_about_content(&self) -> bool {
        matches!(self, Self::Refused(status) if !ABOUT_TARGET.contains(status))
    }
}

/// Posts to one address. Connections and CA certificates are kept from one request to the next.
#[derive(Debug, Default)]
pub(crate) struct PostClient(Mutex<Option<Prepared>>);

/// The HTTP client for one version of the settings.
#[derive(Debug)]
struct Prepared {
    target: Target,
    agent: Agent,
    /// `None` without TLS.
    bundle: Option<CaBundle>,
}

impl PostClient {
    /// Posts `body` in one attempt.
    pub(crate) fn send(&self, target: &Target, body: &str) -> Result<(), PostError> {
        let url = target.read_url()?;
        let agent = self.agent(target, url.is_encrypted())?;
        let mut request = agent.post(url.secret()).content_type("application/json");
        for (name, value) in &target.headers {
            request = request.header(name, value.read(name)?.as_ref());
        }
        let response = request.send(body);
        let mut response = response.map_err(|error| PostError::Transport(Box::new(error)))?;
        // A connection is kept only if its answer was read to the end.
        let mut answer = response.body_mut().as_reader().take(MAX_ANSWER_BYTES);
        let _ = io::copy(&mut answer, &mut io::sink());
        match response.status().as_u16() {
            200..=299 => Ok(()),
            // Request timeout, too early, too many requests: another attempt may succeed.
            status @ (408 | 425 | 429) => Err(PostError::Status(status)),
            status @ 400..=499 => Err(PostError::Refused(status)),
            status => Err(PostError::Status(status)),
        }
    }

    /// Creates the HTTP agent for these settings before the first request.
    pub(crate) fn prepare(&self, target: &Target) -> Result<(), PostError> {
        self.agent(target, target.read_url()?.is_encrypted()).map(drop)
    }

    /// The HTTP agent for these settings. A new one is created when the settings or the CA bundle have changed.
    fn agent(&self, target: &Target, is_encrypted: bool) -> Result<Agent, PostError> {
        let mut known = self.0.lock().expect("no thread panics while it holds the lock");
        let is_same = |prepared: &&mut Prepared| {
            prepared.target == *target && prepared.bundle.is_some() == is_encrypted
        };
        if let Some(prepared) = known.as_mut().filter(is_same) {
            if let Some(certificates) = prepared.bundle.as_mut().and_then(CaBundle::changed) {
                prepared.agent = http_agent(target.timeout, Some(certificates));
            }
            return Ok(prepared.agent.clone());
        }
        let (bundle, certificates) = if is_encrypted {
            let opened = CaBundle::open(target.ca_file.as_deref());
            let (bundle, certificates) = opened.map_err(PostError::CaBundle)?;
            (Some(bundle), Some(certificates))
        } else {
            (None, None)
        };
        let agent = http_agent(target.timeout, certificates);
        *known = Some(Prepared { target: target.clone(), agent: agent.clone(), bundle });
        Ok(agent)
    }
}

/// An HTTP client without redirections and proxies. `timeout` limits a request with its answer; `certificates` are the
/// authorities for TLS.
pub(crate) fn http_agent(timeout: Duration, certificates: Option<RootCerts>) -> Agent {
    let mut config = Agent::config_builder()
        .timeout_global(Some(timeout))
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .proxy(None)
        .user_agent(concat!("vipwatch/", env!("CARGO_PKG_VERSION")));
    if let Some(certificates) = certificates {
        config = config.tls_config(TlsConfig::builder().root_certs(certificates).build());
    }
    config.build().new_agent()
}
