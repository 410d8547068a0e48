// SPDX-License-Identifier: Apache-2.0
//! HTTP requests to Neutron and Keystone, over connections that stay open, each with a time limit.

use std::io::Read;
use std::path::PathBuf;
use std::time::Duration;

use ureq::Agent;
use ureq::http::Response;
use vipwatch_linux::worker::beat_every;

use super::error::NeutronError;
use crate::config::{NeutronApiConfig, WebFile};
use crate::notify::post::ca_bundle::CaBundle;
use crate::notify::post::http_agent;

/// The maximum time of one request.
const MAX_REQUEST_TIME: Duration = Duration::from_secs(10);

/// The maximum size of an answer in bytes. An agent has about 1 KiB.
const MAX_ANSWER_BYTES: u64 = 1 << 20;

/// An answer.
pub(super) struct HttpAnswer {
    pub(super) status: u16,
    pub(super) body: String,
    /// The header in which Keystone returns a token; `None` if it is missing or not text.
    pub(super) token: Option<String>,
}

/// Sends requests. The authorities are read again when their file changes.
pub(super) struct HttpClient {
    agent: Agent,
    /// `None` without TLS.
    bundle: Option<CaBundle>,
}

impl HttpClient {
    pub(super) fn new(config: &NeutronApiConfig) -> Result<Self, NeutronError> {
        let keystone = config.keystone.as_ref().map(|keystone| &keystone.url);
        let mut urls = std::iter::once(&config.url).chain(keystone);
        let Some(url) = urls.find(|url| url.starts_with("https://")) else {
            return Ok(Self { agent: http_agent(request_timeout(), None), bundle: None });
        };
        // A credential of a process without credentials has no path; the error names the credential.
        let path = |file: &WebFile| file.path().unwrap_or_else(|| PathBuf::from(file.to_string()));
        let opened = CaBundle::open(config.ca.as_ref().map(path).as_deref());
        let failed = |source| NeutronError::Authorities { url: url.clone(), source };
        let (bundle, certificates) = opened.map_err(failed)?;
        let agent = http_agent(request_timeout(), Some(certificates));
        Ok(Self { agent, bundle: Some(bundle) })
    }

    pub(super) fn get(
        &mut self,
        url: &str,
        token: Option<&str>,
    ) -> Result<HttpAnswer, NeutronError> {
        let mut request = self.agent().get(url).header("accept", "application/json");
        if let Some(token) = token {
            request = request.header("x-auth-token", token);
        }
        read(url, request.call())
    }

    pub(super) fn post(&mut self, url: &str, body: &str) -> Result<HttpAnswer, NeutronError> {
        let request = self.agent().post(url).content_type("application/json");
        read(url, request.send(body))
    }

    fn agent(&mut self) -> &Agent {
        if let Some(certificates) = self.bundle.as_mut().and_then(CaBundle::changed) {
            self.agent = http_agent(request_timeout(), Some(certificates));
        }
        &self.agent
    }
}

/// The time limit of one request. A router needs at most four requests between two heartbeats of the thread, so they must
/// end within half the period of the watchdog.
fn request_timeout() -> Duration {
    MAX_REQUEST_TIME.min(beat_every() / 2)
}

/// The scheme, the host and the port of a URL: an error of the server does not differ from router to router.
pub(super) fn server_of(url: &str) -> String {
    let host = url.find("://").map_or(0, |scheme| scheme + 3);
    let end = url[host..].find('/').map_or(url.len(), |path| host + path);
    url[..end].to_owned()
}

fn read(
    url: &str,
    response: Result<Response<ureq::Body>, ureq::Error>,
) -> Result<HttpAnswer, NeutronError> {
    let failed = |source: ureq::Error| NeutronError::Transport {
        url: server_of(url),
        source: Box::new(source),
    };
    let mut response = response.map_err(failed)?;
    let token = response.headers().get("x-subject-token");
    let token = token.and_then(|value| value.to_str().ok()).map(str::to_owned);
    let mut body = Vec::new();
    let mut reader = response.body_mut().as_reader().take(MAX_ANSWER_BYTES);
    reader.read_to_end(&mut body).map_err(|error| failed(ureq::Error::from(error)))?;
    let body = String::from_utf8_lossy(&body).into_owned();
    Ok(HttpAnswer { status: response.status().as_u16(), body, token })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_server_without_the_path() {
        let url = "https://n.example:9696/v2.0/routers/r1/l3-agents";
        assert_eq!(server_of(url), "https://n.example:9696");
        assert_eq!(server_of("http://[::1]:5000"), "http://[::1]:5000");
    }
}
