// SPDX-License-Identifier: Apache-2.0
//! `[web]`: the TCP addresses of the API and the dashboard, and the files that protect them.
//!
//! Only the keys are checked here. The crate `web` reads the files: they may change while the node runs.

mod file;

use std::net::{IpAddr, SocketAddr};

pub use self::file::WebFile;
use super::document::{SettingErrors, Table};

/// The settings of the web server on TCP. Without an address it is off.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WebConfig {
    /// The addresses on which the server listens. The port 0 stands for a free port that the kernel chooses.
    pub listen: Vec<SocketAddr>,
    /// The names by which clients may call the server, in lower case; `localhost` and the addresses need no entry.
    pub hosts: Vec<String>,
    /// The certificate of the server with its intermediate certificates, and its private key; `None` without TLS.
    pub tls: Option<WebTlsFiles>,
    /// The tokens of clients; `None` if clients need none.
    pub token_file: Option<WebFile>,
}

/// The files for TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebTlsFiles {
    /// The certificate of the server, followed by intermediate certificates.
    pub certificate: WebFile,
    /// Its private key.
    pub key: WebFile,
    /// The authorities that sign the certificates of clients; `None` if clients need no certificate.
    pub client_ca: Option<WebFile>,
}

impl WebConfig {
    pub(super) fn read(mut table: Table<'_, '_>, errors: &mut SettingErrors<'_>) -> Self {
        let listen = read_list(&mut table, "listen", errors, parse_address);
        let hosts = read_list(&mut table, "hosts", errors, parse_host);
        let tls = read_tls(&mut table, errors);
        let token_file = table.parsed("token_file", errors, WebFile::parse);
        table.finish(errors);
        let has_clients =
            token_file.is_some() || tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
        for (offset, address) in &listen {
            if let Some(error) = missing_protection(*address, tls.is_some(), has_clients) {
                errors.add(*offset, error);
            }
        }
        Self {
            listen: listen.into_iter().map(|(_, address)| address).collect(),
            hosts: hosts.into_iter().map(|(_, host)| host).collect(),
            tls,
            token_file,
        }
    }
}

/// What an address beyond loopback needs and does not have; `None` if the server may listen on it.
fn missing_protection(address: SocketAddr, has_tls: bool, has_clients: bool) -> Option<String> {
    if address.ip().is_loopback() || (has_tls && has_clients) {
        return None;
    }
    let certificate = "certificate and key, so that the connections are encrypted";
    let clients = "token_file or client_ca, so that only your clients can read";
    let missing = match (has_tls, has_clients) {
        (false, false) => format!("{certificate}; and {clients}"),
        (false, true) => certificate.to_owned(),
        (true, _) => clients.to_owned(),
    };
    Some(format!(
        "listen: {address} is not a loopback address, so other hosts can connect. Add {missing}; or use \
         127.0.0.1 and `ssh -L`"
    ))
}

fn read_tls(table: &mut Table<'_, '_>, errors: &mut SettingErrors<'_>) -> Option<WebTlsFiles> {
    let offset = table.offset;
    let certificate = table.parsed("certificate", errors, WebFile::parse);
    let key = table.parsed("key", errors, WebFile::parse);
    let client_ca = table.parsed("client_ca", errors, WebFile::parse);
    match (certificate, key) {
        (Some(certificate), Some(key)) => Some(WebTlsFiles { certificate, key, client_ca }),
        (None, None) => {
            if client_ca.is_some() {
                errors.add(offset, "client_ca needs certificate and key");
            }
            None
        }
        (Some(_), None) => {
            errors.add(offset, "certificate needs key, the file with its private key");
            None
        }
        (None, Some(_)) => {
            errors.add(offset, "key needs certificate, the file with the certificate of the key");
            None
        }
    }
}

/// A value or a list of values, each converted by `parse` and with its position. An equal value is an error.
fn read_list<T: PartialEq>(
    table: &mut Table<'_, '_>,
    key: &'static str,
    errors: &mut SettingErrors<'_>,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Vec<(usize, T)> {
    let mut list: Vec<(usize, T)> = Vec::new();
    for (offset, text) in table.texts(key, errors).unwrap_or_default() {
        match parse(text) {
            Ok(value) if list.iter().any(|(_, known)| *known == value) => {
                errors.add(offset, format!("{key}: {text:?} is already in the list"));
            }
            Ok(value) => list.push((offset, value)),
            Err(error) => errors.add(offset, format!("{key}: {error}")),
        }
    }
    list
}

/// Parses `ADDRESS:PORT`, with an IPv6 address in brackets.
fn parse_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_error| {
        format!("{text:?} is not an address and a port, such as 127.0.0.1:9650 or [::1]:9650")
    })
}

/// Parses a name or an address of a URL, without a port.
fn parse_host(text: &str) -> Result<String, String> {
    let is_name = |name: &str| {
        let is_valid =
            |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
        !name.is_empty() && name.bytes().all(is_valid)
    };
    let address = text.trim_start_matches('[').trim_end_matches(']');
    match address.parse::<IpAddr>() {
        Ok(IpAddr::V6(address)) => Ok(format!("[{address}]")),
        Ok(IpAddr::V4(address)) => Ok(address.to_string()),
        Err(_) if is_name(text) => Ok(text.trim_end_matches('.').to_ascii_lowercase()),
        Err(_) => Err(format!("{text:?} is not a host name: write it without a scheme and a port")),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::config::Config;

    fn errors(text: &str) -> Vec<String> {
        let errors = Config::parse(Path::new("v.toml"), text).unwrap_err();
        errors.iter().map(|error| error.text.clone()).collect()
    }

    #[test]
    fn the_server_listens_on_one_address_or_on_several() {
        let web = |text: &str| Config::parse(Path::new("v.toml"), text).unwrap().web;
        assert!(web("").listen.is_empty(), "off unless configured");
        let one = web("[web]\nlisten = \"127.0.0.1:9650\"\n");
        assert_eq!(one.listen, ["127.0.0.1:9650".parse().unwrap()]);
        let two = web("[web]\nlisten = [\"127.0.0.1:9650\", \"[::1]:9650\"]\n\
                       hosts = [\"Node1.Example.\", \"2001:DB8::1\"]\n");
        assert_eq!(two.listen[1], "[::1]:9650".parse().unwrap());
        assert_eq!(two.hosts, ["node1.example", "[2001:db8::1]"]);
    }

    #[test]
    fn wrong_addresses_and_hosts_are_named() {
        for listen in ["localhost:9650", "127.0.0.1", "9650", "::1:9650", "127.0.0.1:70000", ""] {
            let errors = errors(&format!("[web]\nlisten = {listen:?}\n"));
            assert!(errors[0].contains("is not an address and a port"), "{errors:?}");
        }
        let twice = errors("[web]\nlisten = [\"[::1]:1\", \"[0::1]:1\"]\n");
        assert_eq!(twice, ["listen: \"[0::1]:1\" is already in the list"]);
        for host in ["http://a", "a:80", "a b", "", "ü.example"] {
            let errors = errors(&format!("[web]\nhosts = {host:?}\n"));
            assert!(errors[0].contains("is not a host name"), "{errors:?}");
        }
    }

    #[test]
    fn an_address_beyond_loopback_needs_encryption_and_known_clients() {
        const TLS: &str = "certificate = \"/c.pem\"\nkey = \"credential:key\"\n";
        const TOKENS: &str = "token_file = \"/tokens\"\n";
        const CLIENTS: &str = "client_ca = \"/ca.pem\"\n";
        for address in ["192.0.2.1:9650", "0.0.0.0:9650", "[::]:0", "[::ffff:127.0.0.1]:1"] {
            let listen = format!("[web]\nlisten = [\"127.0.0.1:1\", \"{address}\"]\n");
            for (more, missing, present) in [
                ("", "certificate and key", "token_file or client_ca"),
                (TOKENS, "certificate and key", "or use"),
                (TLS, "token_file or client_ca", "or use"),
            ] {
                let errors = errors(&format!("{listen}{more}"));
                assert_eq!(errors.len(), 1, "{errors:?}");
                let text = &errors[0];
                assert!(text.contains("is not a loopback address"), "{text}");
                assert!(text.contains(missing) && text.contains(present), "{text}");
            }
            for more in [[TLS, TOKENS, ""], [TLS, CLIENTS, ""], [TLS, TOKENS, CLIENTS]] {
                let text = format!("{listen}{}", more.concat());
                assert_eq!(Config::parse(Path::new("v"), &text).unwrap().web.listen.len(), 2);
            }
        }
        for more in [TLS, TOKENS] {
            Config::parse(Path::new("v"), &format!("[web]\nlisten = \"[::1]:1\"\n{more}")).unwrap();
        }
    }

    #[test]
    fn the_settings_of_the_guide_are_valid() {
        let guide = include_str!("../../../../docs/guides/web-access.md");
        let blocks = guide.split("```toml\n").skip(1).filter_map(|text| text.split("```").next());
        let blocks: Vec<&str> = blocks.filter(|block| block.starts_with("[web]")).collect();
        assert_eq!(blocks.len(), 2);
        for block in blocks {
            Config::parse(Path::new("guide"), block).unwrap();
        }
        let example = crate::config::EXAMPLE.replace("\n# certificate =", "\ncertificate =");
        let example = example.replace("\n# key =", "\nkey =").replace("\n# token", "\ntoken");
        let example = example.replace("\n# client_ca", "\nclient_ca");
        let web = Config::parse(Path::new("example"), &example).unwrap().web;
        assert!(web.token_file.is_some() && web.tls.unwrap().client_ca.is_some());
    }

    #[test]
    fn a_part_of_the_tls_keys_is_an_error() {
        let one = |line: &str| errors(&format!("[web]\n{line}\n")).join("\n");
        assert!(one("certificate = \"/c\"").contains("certificate needs key"));
        assert!(one("key = \"/k\"").contains("key needs certificate"));
        assert!(one("client_ca = \"/k\"").contains("client_ca needs certificate and key"));
        assert!(one("token_file = \"tokens\"").contains("not an absolute path"));
        assert!(one("token_file = \"credential:../x\"").contains("not the name of a credential"));
        assert!(
            one("token = \"0123456789abcdef\"").contains("there is no key token"),
            "only files have tokens"
        );
    }
}
