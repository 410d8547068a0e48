// SPDX-License-Identifier: Apache-2.0
//! Finds credentials in headers of the configuration, and requests that would send credentials unencrypted.
//!
//! LIMIT: a secret in a header without one of [`SECRET_WORDS`] in its name is not recognised.

use std::net::IpAddr;

use ureq::http::Uri;

/// Words, in lower case, that mark a header as secret. Words in a name are separated by
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

/// Whether the header `name` has a secret as its value.
pub(super) fn is_secret_header(name: &str) -> bool {
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
    fn a_header_is_secret_by_a_word_in_its_name() {
        for name in ["Authorization", "X-Auth-Token", "x-api-key", "Cookie"] {
            assert!(is_secret_header(name), "{name}");
        }
        for name in ["X-Environment", "X-Author", "X-Monkey"] {
            assert!(!is_secret_header(name), "{name}");
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
