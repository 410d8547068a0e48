// SPDX-License-Identifier: Apache-2.0
//! `[cluster.neutron]` of the configuration.

use std::path::Path;

use super::*;
use crate::config::Config;

fn parse(lines: &str) -> Result<NeutronApiConfig, Vec<String>> {
    let text =
        format!("[cluster]\nendpoints = \"http://127.0.0.1:2379\"\n[cluster.neutron]\n{lines}\n");
    let config = Config::parse(Path::new("v.toml"), &text);
    let config = config.map_err(|errors| errors.iter().map(|one| one.text.clone()).collect());
    config.map(|config: Config| config.cluster.neutron.unwrap())
}

fn errors(lines: &str) -> String {
    parse(lines).unwrap_err().join("\n")
}

#[test]
fn a_neutron_without_keystone_needs_only_its_url() {
    let config = parse("url = \"http://10.0.0.1:9696/v2.0/\"").unwrap();
    assert_eq!((config.url.as_str(), config.keystone), ("http://10.0.0.1:9696", None));
    assert_eq!((config.interval, config.settle), (Duration::from_mins(1), Duration::from_mins(1)));
    let path = parse("url = \"https://cloud.example/networking/\"\ninterval = \"5m\"").unwrap();
    assert_eq!(path.url, "https://cloud.example/networking");
    assert_eq!(path.interval, Duration::from_mins(5));
    assert!(errors("interval = \"60s\"").contains("neutron needs url"));
    assert!(errors("url = \"neutron:9696\"").contains("is not a URL such as https://"));
    assert!(errors("url = \"https://a\"\nsettle = \"0s\"").contains("settle: it is 1s to 1h"));
    assert!(errors("uri = \"https://a\"").contains("did you mean url?"));
}

#[test]
fn a_token_is_requested_with_an_application_credential_or_a_password() {
    let url = "url = \"https://n:9696\"\nauth_url = \"https://k:5000\"\n";
    let credential = "application_credential_id = \"1f\"\napplication_credential_secret = \"credential:neutron\"\n";
    let user = "user = \"vipwatch\"\npassword = \"/etc/vipwatch/neutron\"\nproject = \"service\"\n";
    let keystone = parse(&format!("{url}{credential}")).unwrap().keystone.unwrap();
    assert_eq!(keystone.url, "https://k:5000/v3");
    let KeystoneIdentity::ApplicationCredential { id, secret } = keystone.identity else {
        panic!("{keystone:?}")
    };
    assert_eq!((id.as_str(), secret.to_string().as_str()), ("1f", "credential:neutron"));
    let keystone = parse(&format!("{url}{user}project_domain = \"ops\"\n")).unwrap().keystone;
    let KeystoneIdentity::Password(user_of) = keystone.unwrap().identity else { panic!() };
    assert_eq!((user_of.domain.as_str(), user_of.project_domain.as_str()), ("Default", "ops"));
    let both = errors(&format!("{url}{credential}{user}"));
    assert!(both.contains("and not both"), "{both}");
}

#[test]
fn a_part_of_the_credentials_is_an_error_that_does_not_show_a_secret() {
    let with = |lines: &str| errors(&format!("url = \"https://n\"\n{lines}"));
    assert!(with("auth_url = \"https://k\"").contains("auth_url needs application_credential_id"));
    let id = "application_credential_id = \"1f\"";
    assert!(with(id).contains("application_credential_secret need each other"));
    assert!(with("user = \"v\"\npassword = \"/p\"").contains("user, password and project need"));
    let complete = "user = \"v\"\npassword = \"/p\"\nproject = \"p\"";
    assert!(with(complete).contains("auth_url is missing"));
    let plain = with("user = \"v\"\npassword = \"hunter2\"\nproject = \"p\"");
    assert!(plain.contains("absolute path") && !plain.contains("hunter2"), "{plain}");
    let in_url = with("auth_url = \"https://u:word@k\"");
    assert!(in_url.contains("a URL has no user here") && !in_url.contains("word@"), "{in_url}");
}

#[test]
fn secrets_and_tokens_need_encryption() {
    let credential =
        "application_credential_id = \"1f\"\napplication_credential_secret = \"/secret\"\n";
    for (url, auth_url, key) in [
        ("http://10.0.0.1:9696", "https://10.0.0.1:5000", "url: a secret"),
        ("https://10.0.0.1:9696", "http://10.0.0.1:5000", "auth_url: a secret"),
    ] {
        let text = errors(&format!("url = {url:?}\nauth_url = {auth_url:?}\n{credential}"));
        assert!(text.starts_with(key) && text.contains("without encryption"), "{text}");
    }
    parse(&format!("url = \"http://[::1]:1\"\nauth_url = \"http://localhost:2\"\n{credential}"))
        .unwrap();
    assert!(errors("url = \"http://[::1]:1\"\nca = \"/ca.pem\"").contains("ca needs a url with"));
}
