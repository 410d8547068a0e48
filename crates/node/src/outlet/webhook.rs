//! Posts a change to an address on the web, until it is taken.
//!
//! An answer of the 2xx kind takes it. Of the 4xx kind, most mean that it will never be taken, and
//! it is given up; everything else is tried again, later and later.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ureq::Agent;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use vipwatch_core::{Backoff, Dice};
use vipwatch_history::{Latencies, Stage};

use super::{Report, Tray};
use crate::config::Webhook;
use crate::lane::Next;
use crate::transition::Transition;

/// Between two attempts, at first and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_mins(1);

/// Where distributions keep the authorities they believe.
const AUTHORITIES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/// One change for one address.
#[derive(Debug)]
pub(crate) struct Job {
    transition: Arc<Transition>,
    node: Arc<str>,
    backoff: Backoff,
    dice: Dice,
    /// The failure that was said last.
    failing: Option<String>,
}

impl Job {
    pub(crate) fn new(transition: Arc<Transition>, node: Arc<str>) -> Self {
        let dice = Dice::new(u64::try_from(transition.seq).unwrap_or(0));
        let backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        Self { transition, node, backoff, dice, failing: None }
    }
}

/// Why it was not taken.
#[derive(Debug, thiserror::Error)]
enum PostError {
    #[error("{0}")]
    Transport(Box<ureq::Error>),
    #[error("it answered with status {0}")]
    Status(u16),
    #[error("it will not take it: status {0}")]
    Refused(u16),
    #[error("cannot use the authorities in {}", path.display())]
    Authorities { path: PathBuf, source: std::io::Error },
}

/// One address, and how to reach it.
#[derive(Debug)]
pub(crate) struct Poster {
    webhook: Arc<Webhook>,
    tray: Tray,
}

impl Poster {
    pub(crate) fn new(webhook: Arc<Webhook>, tray: Tray) -> Self {
        Self { webhook, tray }
    }

    /// Posts once, and reports what is news.
    pub(crate) fn work(&self, job: &mut Job) -> Next {
        let outcome = self.post(job);
        let is_final = !matches!(
            outcome,
            Err(PostError::Transport(_) | PostError::Status(_) | PostError::Authorities { .. })
        );
        let outcome = outcome.map_err(|error| vipwatch_core::Chain(&error).to_string());
        let is_news = outcome.as_ref().err() != job.failing.as_ref() || is_final;
        job.failing = outcome.as_ref().err().cloned();
        if is_news {
            let whom = public_part(&self.webhook.url);
            let mut report = Report::new(&job.transition, Stage::Webhook, &whom);
            (report.outcome, report.is_final) = (outcome, is_final);
            self.tray.leave(report);
        }
        if is_final { Next::Done } else { Next::Again(job.backoff.fail(&mut job.dice)) }
    }

    fn post(&self, job: &Job) -> Result<(), PostError> {
        let change = job.transition.json(&job.node, &Latencies::default()).to_string();
        let mut request = self.agent()?.post(&self.webhook.url).content_type("application/json");
        for (name, value) in &self.webhook.headers {
            request = request.header(name, value);
        }
        let response = request.send(change.as_str());
        let response = response.map_err(|error| PostError::Transport(Box::new(error)))?;
        match response.status().as_u16() {
            200..=299 => Ok(()),
            // It had no time, or is asked too often: that passes.
            status @ (408 | 425 | 429) => Err(PostError::Status(status)),
            status @ 400..=499 => Err(PostError::Refused(status)),
            status => Err(PostError::Status(status)),
        }
    }

    /// Made for each attempt: authorities are replaced while we run, and changes are rare.
    fn agent(&self) -> Result<Agent, PostError> {
        let mut config = Agent::config_builder()
            .timeout_global(Some(self.webhook.timeout))
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .proxy(None)
            .user_agent(concat!("vipwatch/", env!("CARGO_PKG_VERSION")));
        if self.webhook.url.starts_with("https:") {
            config = config.tls_config(TlsConfig::builder().root_certs(self.roots()?).build());
        }
        Ok(config.build().new_agent())
    }

    fn roots(&self) -> Result<RootCerts, PostError> {
        if let Some(path) = &self.webhook.ca_file {
            return authorities(path)
                .map_err(|source| PostError::Authorities { path: path.clone(), source });
        }
        let usual = AUTHORITIES.iter().find_map(|path| authorities(Path::new(path)).ok());
        Ok(usual.unwrap_or(RootCerts::WebPki))
    }
}

fn authorities(path: &Path) -> std::io::Result<RootCerts> {
    let text = std::fs::read(path)?;
    let certificates: Vec<Certificate<'static>> = parse_pem(&text)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    if certificates.is_empty() {
        return Err(std::io::Error::other("there is no certificate in it"));
    }
    Ok(RootCerts::from(certificates))
}

/// An address without what may be secret in it.
pub(crate) fn public_part(url: &str) -> String {
    let end = url.find(['?', '#']).unwrap_or(url.len());
    let (scheme, rest) = url[..end].split_once("://").unwrap_or(("", &url[..end]));
    let (host, path) = rest.split_once('/').map_or((rest, ""), |(host, path)| (host, path));
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    format!("{scheme}://{host}/{path}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_secret_in_an_address_is_not_shown() {
        let shown = public_part("https://user:pass@host:8443/a/b?token=x#y");
        assert_eq!(shown, "https://host:8443/a/b");
        assert_eq!(public_part("http://host"), "http://host/");
    }
}
