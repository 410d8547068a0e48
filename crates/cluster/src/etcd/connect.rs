// SPDX-License-Identifier: Apache-2.0
//! A connection to one endpoint of etcd.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tonic::Status;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};
use vipwatch_linux::protected_file::{FileContent, read_protected};

use super::grpc::GrpcClient;
use super::messages::EtcdRequest;
use super::{EtcdError, EtcdLogin, EtcdSettings};

/// The number of bytes that etcd may send on one stream before the client has read them. The default of the library is
/// 2 MiB.
const STREAM_WINDOW: u32 = 256 * 1024;

/// The same for the whole connection, which has few streams. The library ends a connection with many small frames that
/// are not read: each counts as 256 bytes, and half of this window may be used. All frames of at least 8 bytes that fit into
/// the window of a stream are allowed.
const CONNECTION_WINDOW: u32 = 16 * 1024 * 1024;

/// The number of requests that can wait for the connection.
const REQUEST_BUFFER: usize = 16;

/// The time without an answer after which the connection is tested. etcd ends connections that are tested more often than
/// every five seconds.
const PING_INTERVAL: Duration = Duration::from_secs(10);

/// The files with the certificate authorities of the system: Debian, Red Hat.
const SYSTEM_AUTHORITIES: [&str; 2] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt"];

/// Maximum size of a file with certificates or a key, in bytes.
const MAX_PEM_BYTES: u64 = 4 << 20;

/// A connection to one endpoint.
pub struct EtcdConnection {
    endpoint: String,
    timeout: Duration,
    client: GrpcClient,
    /// Whether etcd has answered a request.
    has_answered: AtomicBool,
}

impl EtcdConnection {
    /// Connects to an endpoint, with TLS and a login if the settings have them.
    pub async fn open(settings: &EtcdSettings, endpoint: &str) -> Result<Self, EtcdError> {
        #[cfg(test)]
        if let Some(link) = &settings.simulated {
            return Self::simulated(link, settings, endpoint).await;
        }
        let timeout = settings.timeout;
        let channel = transport(settings, endpoint)?;
        let connect =
            async { channel.connect().await.map_err(|error| EtcdError::connect(endpoint, error)) };
        let channel = limited(timeout, "the attempt to connect", connect).await?;
        let mut client = GrpcClient::new(channel);
        if let Some(EtcdLogin { user, password }) = &settings.login {
            let (user, password) = (user.clone(), password.text()?.into_owned());
            let login = async {
                let done = client.log_in(user, password).await;
                done.map_err(|status| {
                    EtcdError::request("the login", endpoint, &status).first(endpoint)
                })
            };
            limited(timeout, "the login", login).await?;
        }
        let has_answered = AtomicBool::new(false);
        Ok(Self { endpoint: endpoint.to_owned(), timeout, client, has_answered })
    }

    /// Connects to an etcd in the memory of the test.
    #[cfg(test)]
    async fn simulated(
        link: &crate::simulation::EtcdLink,
        settings: &EtcdSettings,
        endpoint: &str,
    ) -> Result<Self, EtcdError> {
        let (timeout, request) = (settings.timeout, "the attempt to connect");
        let connect = async {
            link.connect().await.map_err(|status| EtcdError::request(request, endpoint, &status))
        };
        let client = GrpcClient::simulated(limited(timeout, request, connect).await?);
        let has_answered = AtomicBool::new(false);
        Ok(Self { endpoint: endpoint.to_owned(), timeout, client, has_answered })
    }

    /// The endpoint.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Sends a request, and waits for its answer up to the time limit. Errors have the `name` of the request.
    pub async fn call<R: EtcdRequest>(
        &self,
        name: &'static str,
        request: R,
    ) -> Result<R::Answer, EtcdError> {
        self.answer(name, self.client.call(request)).await
    }

    pub(crate) fn client(&self) -> &GrpcClient {
        &self.client
    }

    /// Waits for the answer to a request, up to the time limit.
    pub(crate) async fn answer<T>(
        &self,
        request: &'static str,
        answer: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, EtcdError> {
        let translated = async {
            answer.await.map_err(|status| EtcdError::request(request, &self.endpoint, &status))
        };
        let result = limited(self.timeout, request, translated).await;
        if result.is_ok() {
            self.has_answered.store(true, Ordering::Relaxed);
        } else if !self.has_answered.load(Ordering::Relaxed) {
            return result.map_err(|error| error.first(&self.endpoint));
        }
        result
    }
}

/// Waits for a result, up to a time limit.
async fn limited<T>(
    limit: Duration,
    request: &'static str,
    result: impl Future<Output = Result<T, EtcdError>>,
) -> Result<T, EtcdError> {
    match tokio::time::timeout(limit, result).await {
        Ok(result) => result,
        Err(_) => Err(EtcdError::Timeout { request, limit }),
    }
}

/// The transport to an endpoint, not connected yet.
fn transport(settings: &EtcdSettings, endpoint: &str) -> Result<Endpoint, EtcdError> {
    let invalid = |_| EtcdError::Endpoint { endpoint: endpoint.to_owned() };
    let is_tls = endpoint.starts_with("https://");
    if !is_tls && !endpoint.starts_with("http://") {
        return Err(EtcdError::Endpoint { endpoint: endpoint.to_owned() });
    }
    let mut transport = Endpoint::from_shared(endpoint.to_owned())
        .map_err(invalid)?
        .connect_timeout(settings.timeout)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .buffer_size(REQUEST_BUFFER)
        // A dead peer is noticed although no request is running.
        .http2_keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(settings.timeout)
        .keep_alive_while_idle(true);
    if is_tls {
        transport = transport.tls_config(tls(settings)?).map_err(EtcdError::TlsSettings)?;
    }
    Ok(transport)
}

/// The certificates, read from their files.
fn tls(settings: &EtcdSettings) -> Result<ClientTlsConfig, EtcdError> {
    let system = || SYSTEM_AUTHORITIES.map(PathBuf::from).into_iter().find(|path| path.is_file());
    let mut config = ClientTlsConfig::new().timeout(settings.timeout);
    if let Some(path) = settings.ca.clone().or_else(system) {
        config = config.ca_certificate(Certificate::from_pem(read_certificate(&path)?));
    }
    if let Some(files) = &settings.certificate {
        let key = read_pem(&files.key, FileContent::Secret, "PRIVATE KEY-----", "private key")?;
        config = config.identity(Identity::from_pem(read_certificate(&files.certificate)?, key));
    }
    Ok(config)
}

fn read_certificate(path: &Path) -> Result<String, EtcdError> {
    read_pem(path, FileContent::Public, "-----BEGIN CERTIFICATE-----", "certificate")
}

/// Reads a file that must contain `mark`. The TLS library takes a file without it for an empty list, and the error would be
/// that etcd is not trusted.
fn read_pem(
    path: &Path,
    protection: FileContent,
    mark: &str,
    content: &'static str,
) -> Result<String, EtcdError> {
    let failed = |source| EtcdError::File { path: path.to_owned(), source };
    let text = read_protected(path, MAX_PEM_BYTES, protection).map_err(failed)?;
    let text = Some(text).filter(|text| text.contains(mark));
    text.ok_or_else(|| EtcdError::NotPem { path: path.to_owned(), content })
}
