// SPDX-License-Identifier: Apache-2.0
//! The files of `[web]`: the certificate and the key of the server, the authorities of its clients, and tokens.
//!
//! ```text
//!                      valid
//!   InUse ◀──────────────────────────────┐
//!     │ changed, not valid               │
//!     ▼                                  │
//!   FailedOnce ──────────────────────▶ Rejected: log line and finding
//!               next check, not valid
//! ```
//!
//! While a file is not valid, the content that was read before stays in use. Certificate and key are two files that are
//! seldom replaced at the same moment, so that the first failure is not reported.
//!
//! A file that was deleted, or that this process may no longer read, is `Withdrawn` at once, with a log line and a finding;
//! then no token of a token file is valid.

mod file;
mod tls;
mod tokens;
mod watched;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::sync::Notify;
use tokio::time::timeout;
use vipwatch_core::ErrorChain;
use vipwatch_core::FindingKind;
use vipwatch_node::config::{WebConfig, WebFile};
use vipwatch_node::view::ApiContext;

pub use self::file::WebFileError;
use self::tls::ClientCertificates;
pub(crate) use self::tls::TlsMaterial;
pub(crate) use self::tokens::{Token, TokenSet};
use self::watched::WatchedFiles;
use crate::connection::{ClientIdentity, ConnectionTable};
use crate::limited_log::LimitedLog;
use crate::work::on_file_thread;

/// Time between two checks of the files.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// The content of the files that is in use.
#[derive(Debug)]
pub(crate) struct CredentialStore {
    config: WebConfig,
    tls: Mutex<Option<Arc<TlsMaterial>>>,
    tokens: Mutex<Option<Arc<TokenSet>>>,
    watched: Mutex<WatchedCredentials>,
    check_requested: Notify,
    /// Log lines about TLS handshakes that failed.
    pub(crate) handshake_log: LimitedLog,
    /// Log lines about requests without a valid token.
    pub(crate) token_log: LimitedLog,
}

#[derive(Debug)]
struct WatchedCredentials {
    tls: WatchedFiles,
    tokens: WatchedFiles,
}

/// The problems of the files, as texts of findings.
#[derive(Debug, Default, PartialEq, Eq)]
struct FileProblems {
    files: Option<String>,
    certificate: Option<String>,
}

impl CredentialStore {
    /// Reads the files; `None` if the configuration has none.
    pub(crate) fn open(config: &WebConfig) -> Result<Option<Self>, WebFileError> {
        if config.tls.is_none() && config.token_file.is_none() {
            return Ok(None);
        }
        // ORDER: the stamps of the files are taken before the files are read. A change in between is noticed later.
        let watched = WatchedCredentials {
            tls: WatchedFiles::new(tls_files(config).cloned().collect()),
            tokens: WatchedFiles::new(config.token_file.iter().cloned().collect()),
        };
        let tls = read_tls(config)?;
        let tokens = read_tokens(config)?;
        if let (Some(file), Some(tokens)) = (&config.token_file, &tokens) {
            tokens.check_not_empty(file)?;
        }
        Ok(Some(Self {
            config: config.clone(),
            tls: Mutex::new(tls.map(Arc::new)),
            tokens: Mutex::new(tokens.map(Arc::new)),
            watched: Mutex::new(watched),
            check_requested: Notify::new(),
            handshake_log: LimitedLog::default(),
            token_log: LimitedLog::default(),
        }))
    }

    /// The TLS settings for new connections; `None` without TLS.
    pub(crate) fn tls(&self) -> Option<Arc<TlsMaterial>> {
        self.tls.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The tokens that are valid now; `None` if requests need no token.
    pub(crate) fn tokens(&self) -> Option<Arc<TokenSet>> {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Has the files checked now.
    pub(crate) fn request_check(&self) {
        self.check_requested.notify_one();
    }

    /// Checks the files again and again; never returns. Connections of clients that are no longer known are closed.
    pub(crate) async fn follow(self: Arc<Self>, table: Arc<ConnectionTable>, context: ApiContext) {
        loop {
            let credentials = Arc::clone(&self);
            let check = move || credentials.check(SystemTime::now());
            // The log has the message of a panic. The next check repeats its work.
            if let Ok((has_changed, problems)) = on_file_thread(&context.store, check).await {
                if has_changed {
                    table.close_unauthorized(|identity| self.is_known(identity));
                }
                publish(&context, problems);
            }
            let _ = timeout(CHECK_INTERVAL, self.check_requested.notified()).await;
        }
    }

    /// Reads the files that have changed. Returns whether new content is in use, and the problems.
    fn check(&self, now: SystemTime) -> (bool, FileProblems) {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let tls = watched.tls.changed_content(|| read_tls(&self.config));
        let mut tokens = watched.tokens.changed_content(|| read_tokens(&self.config));
        if watched.tokens.are_withdrawn() && self.tokens().is_some_and(|valid| !valid.is_empty()) {
            tokens = Some(Some(TokenSet::default()));
        }
        let has_changed = tls.is_some() || tokens.is_some();
        if let Some(tls) = tls {
            *self.tls.lock().unwrap_or_else(PoisonError::into_inner) = tls.map(Arc::new);
        }
        if let Some(tokens) = tokens {
            *self.tokens.lock().unwrap_or_else(PoisonError::into_inner) = tokens.map(Arc::new);
        }
        let without_token = match (&self.config.token_file, self.tokens()) {
            (Some(file), Some(tokens)) => tokens.check_not_empty(file).err(),
            _ => None,
        };
        let without_token =
            without_token.map(|error| format!("{}: all requests are refused", ErrorChain(&error)));
        let rejected = [watched.tls.rejection(), watched.tokens.rejection()].into_iter().flatten();
        let files: Vec<String> = rejected.map(str::to_owned).chain(without_token).collect();
        let expiry = self.config.tls.as_ref().zip(self.tls());
        let problems = FileProblems {
            files: (!files.is_empty()).then(|| files.join("; ")),
            certificate: expiry.and_then(|(files, tls)| tls.expiry(&files.certificate, now)),
        };
        (has_changed, problems)
    }

    /// Whether the client of an open connection would be accepted now.
    pub(crate) fn is_known(&self, identity: &ClientIdentity) -> bool {
        match identity {
            ClientIdentity::Token(token) => {
                self.tokens().is_some_and(|tokens| tokens.contains(token))
            }
            ClientIdentity::Certificate(chain) => {
                self.tls().is_some_and(|tls| tls.trusts_client(chain))
            }
        }
    }
}

/// Publishes the problems as findings. Each is logged when it begins or changes, and when it ends.
fn publish(context: &ApiContext, problems: FileProblems) {
    let FileProblems { files, certificate } = problems;
    let mut is_changed = false;
    for (kind, problem) in
        [(FindingKind::NodeWebFiles, files), (FindingKind::NodeWebCertificate, certificate)]
    {
        let known = context.store.health_problem(kind);
        if known == problem {
            continue;
        }
        is_changed = true;
        match (kind, &problem) {
            (FindingKind::NodeWebCertificate, Some(problem)) => {
                tracing::warn!(problem, "certificate of the web server must be replaced");
            }
            (_, Some(problem)) => {
                tracing::warn!(problem, "files of the web server are not valid");
            }
            (_, None) => {
                tracing::info!(finding = kind.name(), "problem of the web server is over");
            }
        }
        context.store.set_health(kind, problem);
    }
    if let (true, Some(audit)) = (is_changed, &context.audit_requests) {
        audit.compare_findings();
    }
}

fn tls_files(config: &WebConfig) -> impl Iterator<Item = &WebFile> {
    let files = config.tls.iter();
    files.flat_map(|tls| [&tls.certificate, &tls.key].into_iter().chain(&tls.client_ca))
}

fn read_tls(config: &WebConfig) -> Result<Option<TlsMaterial>, WebFileError> {
    let clients = match config.token_file {
        None => ClientCertificates::Required,
        Some(_) => ClientCertificates::Optional,
    };
    config.tls.as_ref().map(|files| TlsMaterial::read(files, clients)).transpose()
}

fn read_tokens(config: &WebConfig) -> Result<Option<TokenSet>, WebFileError> {
    config.token_file.as_ref().map(TokenSet::read).transpose()
}

/// Reads the files of `[web]` as a node does at its start. Returns warnings.
pub fn check_web_files(config: &WebConfig) -> Result<Vec<String>, WebFileError> {
    let files = tls_files(config).chain(&config.token_file);
    let unknown: Vec<&WebFile> = files.filter(|file| file.path().is_none()).collect();
    if !unknown.is_empty() {
        let names: Vec<String> = unknown.iter().map(ToString::to_string).collect();
        let names = names.join(", ");
        return Ok(vec![format!(
            "the files of [web] are not checked: only the service has {names}"
        )]);
    }
    let Some(credentials) = CredentialStore::open(config)? else { return Ok(Vec::new()) };
    let (_, problems) = credentials.check(SystemTime::now());
    Ok(problems.certificate.into_iter().collect())
}

/// Writes a file that only its owner can read.
#[cfg(test)]
pub(crate) fn write_secret(path: &std::path::Path, text: &str) {
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;
    std::fs::File::create(path).unwrap().write_all(text.as_bytes()).unwrap();
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o600)).unwrap();
}

#[cfg(test)]
mod tests;
