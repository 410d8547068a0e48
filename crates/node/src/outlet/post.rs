//! One POST to somebody on the web.

use std::path::{Path, PathBuf};

use ureq::Agent;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

use crate::config::Target;

/// Where distributions keep the authorities they believe.
const AUTHORITIES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/// Why it was not taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PostError {
    #[error("{0}")]
    Transport(Box<ureq::Error>),
    #[error("it answered with status {0}")]
    Status(u16),
    #[error("it will not take it: status {0}")]
    Refused(u16),
    #[error("cannot use the authorities in {}", path.display())]
    Authorities { path: PathBuf, source: std::io::Error },
}

impl PostError {
    /// Whether another attempt may succeed.
    pub(crate) fn may_pass(&self) -> bool {
        !matches!(self, Self::Refused(_))
    }
}

/// Posts `body`, once.
pub(crate) fn send(target: &Target, body: &str) -> Result<(), PostError> {
    let mut request = agent(target)?.post(&target.url).content_type("application/json");
    for (name, value) in &target.headers {
        request = request.header(name, value);
    }
    let response = request.send(body);
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
fn agent(target: &Target) -> Result<Agent, PostError> {
    let mut config = Agent::config_builder()
        .timeout_global(Some(target.timeout))
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .proxy(None)
        .user_agent(concat!("vipwatch/", env!("CARGO_PKG_VERSION")));
    if target.url.starts_with("https:") {
        config = config.tls_config(TlsConfig::builder().root_certs(roots(target)?).build());
    }
    Ok(config.build().new_agent())
}

fn roots(target: &Target) -> Result<RootCerts, PostError> {
    if let Some(path) = &target.ca_file {
        return authorities(path)
            .map_err(|source| PostError::Authorities { path: path.clone(), source });
    }
    let usual = AUTHORITIES.iter().find_map(|path| authorities(Path::new(path)).ok());
    Ok(usual.unwrap_or(RootCerts::WebPki))
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

/// The name of an address: without its secrets, and with a mark that tells two secrets apart.
pub(crate) fn known_as(url: &str) -> String {
    let public = public_part(url);
    if public == url {
        return public;
    }
    // FNV-1a: enough to tell two apart, too little to tell anything else.
    let hash = url
        .bytes()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    format!("{public} ~{:04x}", hash & 0xffff)
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

    #[test]
    fn a_name_tells_secrets_apart_and_tells_none() {
        let names = ["http://h/a?token=1", "http://h/a?token=2", "http://u:p@h/a"].map(known_as);
        assert!(names.iter().all(|name| name.starts_with("http://h/a ~")), "{names:?}");
        assert!(names[0] != names[1] && names[1] != names[2], "{names:?}");
        assert_eq!(known_as("http://h/a"), "http://h/a");
    }
}
