// SPDX-License-Identifier: Apache-2.0
//! Finds credentials in URLs and headers of the configuration, and requests that would send them unencrypted.
//!
//! LIMIT: a secret in the path of a URL, or under a name without one of [`SECRET_WORDS`], is not recognised.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ureq::http::Uri;

use super::header::HeaderValue;

/// Words, in lower case, that mark a header or a query parameter as secret. Words in a name are separated by
/// characters other than letters and digits.
const SECRET_WORDS: [&str; 16] = [
    "auth",
    "authorization",
    "token",
    "accesstoken",
    "key",
    "apikey",
    "secret",
    "password",
    "passwd",
    "passwort",
    "pwd",
    "cookie",
    "credential",
    "credentials",
    "sig",
    "signature",
];

/// Whether the configuration of a request to `uri` with `headers` contains credentials: a header or a query parameter
/// with the name of a secret, or a user name or password in the URL. A header with a credential of the service contains
/// only its name.
pub(super) fn has_credentials(uri: &Uri, headers: &BTreeMap<String, HeaderValue>) -> bool {
    let has_user = uri.authority().is_some_and(|authority| authority.as_str().contains('@'));
    let parameters = uri.query().unwrap_or_default().split('&');
    let has_parameter = parameters
        .filter_map(|parameter| parameter.split_once('='))
        .any(|(name, value)| is_secret(name) && !value.is_empty());
    let is_text = |value: &HeaderValue| matches!(value, HeaderValue::Text(_));
    let has_header = headers.iter().any(|(name, value)| is_secret(name) && is_text(value));
    has_user || has_parameter || has_header
}

fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let mut words = name.split(|c: char| !c.is_ascii_alphanumeric());
    words.any(|word| SECRET_WORDS.contains(&word))
}

/// Whether others can read a request to `uri` in transit: `http://` to another host. A host name other than
/// `localhost` counts as another host, whatever it resolves to.
pub(super) fn is_readable_in_transit(uri: &Uri) -> bool {
    uri.scheme_str() == Some("http") && !is_loopback(uri.host().unwrap_or_default())
}

fn is_loopback(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    if let Ok(address) = host.parse::<IpAddr>() {
        return address.is_loopback();
    }
    let name = host.trim_end_matches('.').to_ascii_lowercase();
    name == "localhost" || name.ends_with(".localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uri(text: &str) -> Uri {
        text.parse().unwrap()
    }

    #[test]
    fn credentials_are_found_in_headers_in_the_query_and_before_the_host() {
        let none = BTreeMap::new();
        for text in
            ["https://h/?access_token=x", "https://u:p@h/", "https://u@h/", "http://h?sig=1"]
        {
            assert!(has_credentials(&uri(text), &none), "{text}");
        }
        for text in ["https://h/", "https://h/a@b", "https://h/?page=1&token=", "https://h/?x"] {
            assert!(!has_credentials(&uri(text), &none), "{text}");
        }
        for (name, expected) in [
            ("Authorization", true),
            ("X-Auth-Token", true),
            ("x-api-key", true),
            ("Cookie", true),
            ("X-Environment", false),
            ("X-Author", false),
            ("X-Monkey", false),
        ] {
            let value = HeaderValue::Text("x".to_owned());
            let headers = BTreeMap::from([(name.to_owned(), value)]);
            assert_eq!(has_credentials(&uri("https://h/"), &headers), expected, "{name}");
        }
    }

    #[test]
    fn only_plain_http_to_another_host_is_readable_in_transit() {
        for text in ["http://192.0.2.1/", "http://example.net:80/", "http://localhost.example.net/"]
        {
            assert!(is_readable_in_transit(&uri(text)), "{text}");
        }
        for text in [
            "https://192.0.2.1/",
            "http://127.0.0.1:9000/",
            "http://127.1.2.3/",
            "http://[::1]:80/",
            "http://localhost/",
            "http://LOCALHOST./",
        ] {
            assert!(!is_readable_in_transit(&uri(text)), "{text}");
        }
    }
}
