// SPDX-License-Identifier: Apache-2.0
//! Which requests are accepted over TCP, and the headers that browsers need to keep other pages out.
//!
//! A web browser on this machine, or in its network, shows pages of strangers that can send requests to any address.
//! Three checks keep such a page from reading an answer:
//!
//! - `Host` must be a name of this server. With DNS rebinding, the name of a foreign page leads to this address, but it is
//!   not a name of this server.
//! - `Origin` and `Sec-Fetch-Site`, which browsers set, must not name another page. A link to this server is accepted,
//!   because the page with the link does not see the answer.
//! - Only requests that read are accepted, so that a request without a readable answer has no effect.
//!
//! Which clients may read is decided here too: with `web.token_file`, a request needs a token, unless the client has a
//! certificate of `web.client_ca`. Without `web.token_file`, TLS has refused clients without such a certificate.
//!
//! There is no header `Strict-Transport-Security`: a browser applies it to all ports of a host, so that it would make other
//! services of this host unreachable that use HTTP without TLS.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use axum::Router;
use axum::extract::{Extension, Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use axum::middleware::{self, Next};
use axum::response::Response;
use vipwatch_api::{ErrorCode, ProblemDocument};
use vipwatch_node::state::StateStore;

use crate::connection::RequestPeer;
use crate::credentials::CredentialStore;
use crate::reply;
use crate::socket::{Transport, WebClient};

/// The headers of every answer over TCP. They allow the dashboard to use its own files only, and other pages to use
/// nothing of this server.
const SECURITY_HEADERS: [(HeaderName, &str); 5] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
         connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
];

/// The rules for requests over TCP.
#[derive(Debug, Default)]
pub(crate) struct AccessRules {
    /// The names of this server from the configuration, in lower case.
    pub(crate) hosts: Vec<String>,
    /// `None` if neither TLS nor tokens are configured.
    pub(crate) credentials: Option<Arc<CredentialStore>>,
    pub(crate) store: Arc<StateStore>,
}

/// Whether a request for this path needs no token: the files of the dashboard, which are the same on every node. The
/// dashboard sends the token with its requests for data.
fn is_public(path: &str) -> bool {
    let is_plain = !path.contains("..") && !path.contains('%') && !path.contains("//");
    is_plain && (matches!(path, "/" | "/favicon.svg") || path.starts_with("/assets/"))
}

/// The routes of `router` for requests over TCP.
pub(crate) fn guarded(router: Router, rules: AccessRules) -> Router {
    router.layer(middleware::from_fn_with_state(Arc::new(rules), check_request))
}

async fn check_request(
    State(rules): State<Arc<AccessRules>>,
    Extension(peer): Extension<RequestPeer>,
    request: Request,
    next: Next,
) -> Response {
    let mut response = match rules.check(&peer, &request) {
        Ok(()) => next.run(request).await,
        Err(problem) => refusal(&problem),
    };
    let headers = response.headers_mut();
    for (name, value) in SECURITY_HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

fn refusal(problem: &ProblemDocument) -> Response {
    let mut response = reply::problem(problem);
    if problem.code == ErrorCode::ReadOnly {
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET,HEAD"));
    }
    if problem.code == ErrorCode::Unauthorized {
        let scheme = HeaderValue::from_static("Bearer realm=\"vipwatch\"");
        response.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
    }
    response
}

impl AccessRules {
    fn check(&self, peer: &RequestPeer, request: &Request) -> Result<(), ProblemDocument> {
        let host = self.check_host(peer.client, request)?;
        check_origin(&host, peer.client.transport(), request.headers())?;
        self.check_identity(peer, request)?;
        check_method(request.method())
    }

    /// Refuses a request without a valid token, if it needs one.
    fn check_identity(&self, peer: &RequestPeer, request: &Request) -> Result<(), ProblemDocument> {
        let Some(credentials) = &self.credentials else { return Ok(()) };
        let Some(tokens) = credentials.tokens() else { return Ok(()) };
        if is_public(request.uri().path()) || peer.has_certificate() {
            return Ok(());
        }
        if let Some(token) = tokens.of_request(request.headers()) {
            peer.set_token(token);
            return Ok(());
        }
        self.store.counters.web_unauthorized.fetch_add(1, Ordering::Relaxed);
        if let (Some(left_out), WebClient::Network { peer, .. }) =
            (credentials.token_log.count(Instant::now()), peer.client)
        {
            tracing::warn!(%peer, left_out, "request without a valid token refused");
        }
        let detail = "the request has no valid token";
        let hint = "send the header Authorization: Bearer TOKEN, with a token of web.token_file";
        Err(ProblemDocument::new(ErrorCode::Unauthorized, detail).with_hint(hint))
    }

    /// The host of the request, if it is a name of this server.
    fn check_host(
        &self,
        client: WebClient,
        request: &Request,
    ) -> Result<Authority, ProblemDocument> {
        let mut hosts = request.headers().get_all(header::HOST).iter();
        let (Some(host), None) = (hosts.next(), hosts.next()) else {
            let detail = "a request has exactly one header Host";
            return Err(ProblemDocument::new(ErrorCode::InvalidRequest, detail));
        };
        let host = authority(host);
        // A request with a complete URL names the host twice.
        let in_url = request.uri().authority().is_none_or(|url| Some(url) == host.as_ref());
        host.filter(|host| in_url && self.is_own_name(client, host.host())).ok_or_else(|| {
            let detail = "the header Host is not a name of this server";
            let hint = "use the address of web.listen, or add the name to web.hosts";
            ProblemDocument::new(ErrorCode::UnknownHost, detail).with_hint(hint)
        })
    }

    fn is_own_name(&self, client: WebClient, host: &str) -> bool {
        let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        if let Ok(address) = address {
            let is_server =
                matches!(client, WebClient::Network { server, .. } if server == address);
            let is_localhost = ["127.0.0.1", "::1"].contains(&address.to_string().as_str());
            return is_server || is_localhost || self.hosts.iter().any(|name| name == host);
        }
        let name = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
        name == "localhost" || self.hosts.contains(&name)
    }
}

/// A host with an optional port; `None` for anything else.
fn authority(value: &HeaderValue) -> Option<Authority> {
    let authority = Authority::try_from(value.as_bytes()).ok()?;
    (!authority.as_str().contains('@')).then_some(authority)
}

/// Refuses a request that a page of another server makes. With TLS, a page of `http://` is another server: the network
/// may have changed it. Without TLS, a page of `https://` comes from a proxy in front of this server.
fn check_origin(
    host: &Authority,
    transport: Transport,
    headers: &HeaderMap,
) -> Result<(), ProblemDocument> {
    let is_own = |origin: &HeaderValue| {
        let (scheme, name) = origin.as_bytes().split_at_checked(7).unwrap_or_default();
        let name = match (scheme, transport) {
            (b"https:/", _) => name.strip_prefix(b"/"),
            (b"http://", Transport::Plain) => Some(name),
            _ => None,
        };
        name.is_some_and(|name| name.eq_ignore_ascii_case(host.as_str().as_bytes()))
    };
    let is_value = |name: &str, values: &[&str]| {
        headers.get_all(name).iter().all(|value| values.iter().any(|one| value == one))
    };
    let has_own_origin = headers.get_all(header::ORIGIN).iter().all(is_own);
    let is_from_own_page = is_value("sec-fetch-site", &["same-origin", "none"]);
    let is_link = headers.contains_key("sec-fetch-mode")
        && is_value("sec-fetch-mode", &["navigate"])
        && headers.contains_key("sec-fetch-dest")
        && is_value("sec-fetch-dest", &["document"]);
    if has_own_origin && (is_from_own_page || is_link) {
        return Ok(());
    }
    let detail = "a page of another server must not read this one";
    let hint = "open the dashboard at this address instead of requesting it from another page";
    Err(ProblemDocument::new(ErrorCode::ForeignOrigin, detail).with_hint(hint))
}

fn check_method(method: &Method) -> Result<(), ProblemDocument> {
    if matches!(*method, Method::GET | Method::HEAD) {
        return Ok(());
    }
    let name: String = method.as_str().chars().take(20).collect();
    let detail = format!("{name} is not possible over TCP, which is read-only");
    let hint = "use the node's unix socket, for example with the command `vipwatch`";
    Err(ProblemDocument::new(ErrorCode::ReadOnly, detail).with_hint(hint))
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use vipwatch_node::config::{WebConfig, WebFile};

    use super::*;
    use crate::connection::{ConnectionTable, TableKind};

    const HOSTS: [&str; 2] = ["node1.example", "[2001:db8::1]"];

    fn rules(credentials: Option<CredentialStore>) -> AccessRules {
        let credentials = credentials.map(Arc::new);
        AccessRules { hosts: HOSTS.map(str::to_owned).to_vec(), credentials, store: Arc::default() }
    }

    /// The code of the problem with a request over a connection without TLS; `None` if it is accepted.
    fn checked(method: &str, uri: &str, headers: &[(&str, &str)]) -> Option<ErrorCode> {
        checked_by(&rules(None), Transport::Plain, (method, uri), headers)
    }

    fn checked_by(
        rules: &AccessRules,
        transport: Transport,
        (method, uri): (&str, &str),
        headers: &[(&str, &str)],
    ) -> Option<ErrorCode> {
        let client = WebClient::Network {
            peer: IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 9)),
            server: IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1)),
            transport,
        };
        let table = Arc::new(ConnectionTable::new(TableKind::Tcp, Arc::default()));
        let place = table.admit_at_once(client).unwrap();
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::empty()).unwrap();
        let checked = rules.check(&RequestPeer::of(&place), &request);
        checked.err().map(|problem| problem.code)
    }

    #[test]
    fn only_names_of_this_server_are_accepted_as_host() {
        let with_host = |host: &str| checked("GET", "/v1/status", &[("host", host)]);
        for host in [
            "localhost",
            "LOCALHOST:9650",
            "127.0.0.1",
            "127.0.0.1:9650",
            "[::1]:9650",
            "192.0.2.1:9650",
            "node1.example:443",
            "Node1.Example.",
            "[2001:db8::1]",
        ] {
            assert_eq!(with_host(host), None, "{host}");
        }
        for host in [
            "rebound.example",
            "rebound.example:9650",
            "192.0.2.2",
            "127.0.0.1.nip.example",
            "localhost.example",
            "a.localhost",
            "x@localhost",
            "",
            "2130706433",
            "[::ffff:127.0.0.1]",
        ] {
            assert_eq!(with_host(host), Some(ErrorCode::UnknownHost), "{host}");
        }
    }

    #[test]
    fn the_host_is_named_once() {
        let invalid = Some(ErrorCode::InvalidRequest);
        assert_eq!(checked("GET", "/", &[]), invalid);
        assert_eq!(checked("GET", "/", &[("host", "localhost"), ("host", "localhost")]), invalid);
        let foreign = Some(ErrorCode::UnknownHost);
        assert_eq!(checked("GET", "http://rebound.example/", &[("host", "localhost")]), foreign);
        assert_eq!(checked("GET", "http://localhost/", &[("host", "rebound.example")]), foreign);
        assert_eq!(checked("GET", "http://localhost/", &[("host", "localhost")]), None);
    }

    #[test]
    fn a_page_of_another_server_cannot_read() {
        let with = |headers: &[(&str, &str)]| {
            checked("GET", "/v1/status", &[&[("host", "localhost:9650")], headers].concat())
        };
        let foreign = Some(ErrorCode::ForeignOrigin);
        assert_eq!(with(&[("origin", "http://localhost:9650")]), None);
        assert_eq!(with(&[("sec-fetch-site", "same-origin")]), None);
        assert_eq!(with(&[("sec-fetch-site", "none")]), None);
        for origin in
            ["http://other.example", "http://localhost:8080", "http://localhost", "null", ""]
        {
            assert_eq!(with(&[("origin", origin)]), foreign, "{origin}");
        }
        for site in ["cross-site", "same-site", "", "SAME-ORIGIN"] {
            assert_eq!(with(&[("sec-fetch-site", site)]), foreign, "{site}");
            let fetch = [("sec-fetch-site", site), ("sec-fetch-mode", "no-cors")];
            assert_eq!(with(&fetch), foreign, "{site}");
        }
        let navigation = |destination| {
            with(&[
                ("sec-fetch-site", "cross-site"),
                ("sec-fetch-mode", "navigate"),
                ("sec-fetch-dest", destination),
            ])
        };
        assert_eq!(navigation("document"), None, "a link");
        assert_eq!(navigation("iframe"), foreign);
        let both = [("origin", "http://localhost:9650"), ("sec-fetch-site", "cross-site")];
        assert_eq!(with(&both), foreign);
    }

    #[test]
    fn with_tls_only_a_page_of_https_is_a_page_of_this_server() {
        let with_origin = |transport, origin| {
            let headers = [("host", "node1.example:9650"), ("origin", origin)];
            checked_by(&rules(None), transport, ("GET", "/v1/status"), &headers)
        };
        let (http, https) = ("http://node1.example:9650", "https://node1.example:9650");
        assert_eq!(with_origin(Transport::Tls, https), None);
        assert_eq!(with_origin(Transport::Tls, http), Some(ErrorCode::ForeignOrigin));
        assert_eq!(with_origin(Transport::Plain, http), None);
        assert_eq!(with_origin(Transport::Plain, https), None, "from a proxy");
        for origin in ["https://node1.example", "https:/node1.example:9650", "https", "ftp://x"] {
            assert_eq!(with_origin(Transport::Tls, origin), Some(ErrorCode::ForeignOrigin));
        }
    }

    #[test]
    fn every_path_but_the_files_of_the_dashboard_needs_a_token() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("tokens");
        crate::credentials::write_secret(&file, "0123456789abcdef\n");
        let config = WebConfig { token_file: Some(WebFile::Path(file)), ..WebConfig::default() };
        let rules = rules(CredentialStore::open(&config).unwrap());
        let with = |path: &str, token: Option<&str>| {
            let token = token.map(|token| format!("Bearer {token}"));
            let token = token.as_deref().map(|token| ("authorization", token));
            let headers: Vec<_> = [("host", "localhost")].into_iter().chain(token).collect();
            checked_by(&rules, Transport::Plain, ("GET", path), &headers)
        };
        let refused = Some(ErrorCode::Unauthorized);
        for path in ["/", "/favicon.svg", "/assets/app.js", "/?role=fault"] {
            assert_eq!(with(path, None), None, "{path}");
        }
        for path in [
            "/v1/status",
            "/v1/config",
            "/metrics",
            "/healthz",
            "/readyz",
            "/unknown",
            "/assets",
            "//",
            "/assets/../v1/status",
            "/assets/%2e%2e/v1/status",
            "/assets//v1/status",
            "/favicon.svg/x",
        ] {
            assert_eq!(with(path, None), refused, "{path}");
            assert_eq!(with(path, Some("0123456789abcdeX")), refused, "{path}");
            assert_eq!(with(path, Some("0123456789abcdef")), None, "{path}");
        }
        assert_eq!(rules.store.counters.web_unauthorized.load(Ordering::Relaxed), 24);
        let post = [("host", "localhost")];
        let post = checked_by(&rules, Transport::Plain, ("POST", "/v1/audit"), &post);
        assert_eq!(post, refused, "a client without a token learns nothing about methods");
    }

    #[test]
    fn only_requests_that_read_are_accepted() {
        let with_method = |method| checked(method, "/v1/silences", &[("host", "localhost")]);
        for method in ["GET", "HEAD"] {
            assert_eq!(with_method(method), None);
        }
        for method in ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE", "X"] {
            assert_eq!(with_method(method), Some(ErrorCode::ReadOnly), "{method}");
        }
    }
}
