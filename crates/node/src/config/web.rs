//! `[web]`: the TCP addresses of the API and the dashboard.

use std::net::{IpAddr, SocketAddr};

use super::document::{SettingErrors, Table};

/// The settings of the web server on TCP. Without an address it is off.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WebConfig {
    /// The addresses on which the server listens. The port 0 stands for a free port that the kernel chooses.
    pub listen: Vec<SocketAddr>,
    /// The names by which clients may call the server, in lower case; `localhost` and the addresses need no entry.
    pub hosts: Vec<String>,
}

impl WebConfig {
    pub(super) fn read(mut table: Table<'_, '_>, errors: &mut SettingErrors<'_>) -> Self {
        let listen = read_list(&mut table, "listen", errors, parse_address);
        let hosts = read_list(&mut table, "hosts", errors, parse_host);
        table.finish(errors);
        Self { listen, hosts }
    }
}

/// A value or a list of values, each converted by `parse`. An equal value is an error.
fn read_list<T: PartialEq>(
    table: &mut Table<'_, '_>,
    key: &'static str,
    errors: &mut SettingErrors<'_>,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Vec<T> {
    let mut list = Vec::new();
    for (offset, text) in table.texts(key, errors).unwrap_or_default() {
        match parse(text) {
            Ok(value) if list.contains(&value) => {
                errors.add(offset, format!("{key}: {text:?} is already in the list"));
            }
            Ok(value) => list.push(value),
            Err(error) => errors.add(offset, format!("{key}: {error}")),
        }
    }
    list
}

/// Parses `ADDRESS:PORT`, with an IPv6 address in brackets.
fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let address: SocketAddr = text.parse().map_err(|_error| {
        format!("{text:?} is not an address and a port, such as 127.0.0.1:9650 or [::1]:9650")
    })?;
    if !address.ip().is_loopback() {
        return Err(format!("{text} is not a loopback address"));
    }
    Ok(address)
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
        assert!(
            errors("[web]\nlisten = \"192.0.2.1:9650\"\n")[0].contains("not a loopback address")
        );
    }
}
