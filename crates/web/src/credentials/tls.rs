// SPDX-License-Identifier: Apache-2.0
//! The TLS settings of the server: its certificate, its key and the authorities of its clients.
//!
//! LIMIT: revocation lists are not read. To withdraw a client certificate before it expires, replace the authority.
//! LIMIT: a connection that is open when its client certificate expires stays open.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::{CertificateError, RootCertStore, ServerConfig};
use vipwatch_node::config::{FileContent, WebFile, WebTlsFiles};
use vipwatch_node::event::time;

use super::file::{FileProblem, WebFileError};

/// How long before its end a certificate is reported.
const EXPIRY_NOTICE: Duration = Duration::from_hours(14 * 24);

/// The TLS settings for new connections.
#[derive(Debug)]
pub(crate) struct TlsMaterial {
    pub(crate) config: Arc<ServerConfig>,
    /// `None` if clients need no certificate.
    client_verifier: Option<Arc<dyn ClientCertVerifier>>,
    /// The end of the first certificate; `None` if it cannot be read.
    expires_at: Option<SystemTime>,
}

/// Whether clients need a certificate, if there is a `client_ca`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClientCertificates {
    /// A client without one is refused.
    Required,
    /// A client without one needs a token. A certificate of another authority is refused.
    Optional,
}

impl TlsMaterial {
    pub(super) fn read(
        files: &WebTlsFiles,
        clients: ClientCertificates,
    ) -> Result<Self, WebFileError> {
        let provider = Arc::new(ring::default_provider());
        let of_certificate =
            |problem| WebFileError::new("certificate", &files.certificate, problem);
        let chain = read_certificates(&files.certificate).map_err(of_certificate)?;
        let key = read_key(&files.key)
            .map_err(|problem| WebFileError::new("key", &files.key, problem))?;
        let client_verifier = match &files.client_ca {
            None => None,
            Some(file) => {
                let failed = |problem| WebFileError::new("client_ca", file, problem);
                Some(client_verifier(file, clients, &provider).map_err(failed)?)
            }
        };
        let expires_at = chain.first().and_then(|first| expires_at(first, &provider));
        let config = server_config(provider, client_verifier.clone(), chain, key)
            .map_err(|error| of_certificate(FileProblem::Tls(error)))?;
        Ok(Self { config: Arc::new(config), client_verifier, expires_at })
    }

    /// Whether a client with this certificate, followed by intermediate ones, is accepted now.
    pub(super) fn trusts_client(&self, chain: &[CertificateDer<'static>]) -> bool {
        let (Some(verifier), Some((first, others))) = (&self.client_verifier, chain.split_first())
        else {
            return false;
        };
        verifier.verify_client_cert(first, others, UnixTime::now()).is_ok()
    }

    /// That the certificate expires soon, or has expired.
    pub(super) fn expiry(&self, file: &WebFile, now: SystemTime) -> Option<String> {
        let expires_at = self.expires_at?;
        let left = expires_at.duration_since(now);
        let word = match left {
            Ok(left) if left >= EXPIRY_NOTICE => return None,
            Ok(_) => "expires",
            Err(_) => "has expired",
        };
        Some(format!("web.certificate = {file}: the certificate {word} at {}", time(expires_at)))
    }
}

fn server_config(
    provider: Arc<CryptoProvider>,
    client_verifier: Option<Arc<dyn ClientCertVerifier>>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<ServerConfig, rustls::Error> {
    let builder =
        ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let builder = match client_verifier {
        Some(verifier) => builder.with_client_cert_verifier(verifier),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    // No session is resumed: each connection verifies the client, and the server keeps no memory for sessions.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

fn read_certificates(file: &WebFile) -> Result<Vec<CertificateDer<'static>>, FileProblem> {
    let text = file.read(FileContent::Public)?;
    let certificates =
        CertificateDer::pem_slice_iter(text.as_bytes()).collect::<Result<Vec<_>, _>>();
    // The error quotes the file, so that it is not shown.
    let certificates = certificates.map_err(|_error| FileProblem::NotPem)?;
    if certificates.is_empty() {
        return Err(FileProblem::NoCertificate);
    }
    Ok(certificates)
}

fn read_key(file: &WebFile) -> Result<PrivateKeyDer<'static>, FileProblem> {
    let text = file.read(FileContent::Secret)?;
    // The error quotes the file, so that it is not shown.
    PrivateKeyDer::from_pem_slice(text.as_bytes()).map_err(|_error| FileProblem::NoKey)
}

fn client_verifier(
    file: &WebFile,
    clients: ClientCertificates,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, FileProblem> {
    let mut authorities = RootCertStore::empty();
    for certificate in read_certificates(file)? {
        authorities.add(certificate).map_err(FileProblem::Authority)?;
    }
    let builder =
        WebPkiClientVerifier::builder_with_provider(Arc::new(authorities), Arc::clone(provider));
    let builder = match clients {
        ClientCertificates::Required => builder,
        ClientCertificates::Optional => builder.allow_unauthenticated(),
    };
    // It fails only without an authority.
    builder.build().map_err(|_error| FileProblem::NoCertificate)
}

/// The end of a certificate. rustls checks the time before the signature, and its error has the end of the certificate: so
/// a verification in the distant future returns it, without a second parser of certificates.
fn expires_at(certificate: &CertificateDer<'_>, provider: &CryptoProvider) -> Option<SystemTime> {
    let certificate = ParsedCertificate::try_from(certificate).ok()?;
    let distant = UnixTime::since_unix_epoch(Duration::from_secs(u64::MAX));
    let algorithms = provider.signature_verification_algorithms.all;
    let no_authority = RootCertStore::empty();
    let verified = verify_server_cert_signed_by_trust_anchor(
        &certificate,
        &no_authority,
        &[],
        distant,
        algorithms,
    );
    match verified {
        Err(rustls::Error::InvalidCertificate(CertificateError::ExpiredContext {
            not_after,
            ..
        })) => SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(not_after.as_secs())),
        _ => None,
    }
}
