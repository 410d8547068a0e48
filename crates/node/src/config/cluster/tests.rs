// SPDX-License-Identifier: Apache-2.0
//! `[cluster]` of the configuration.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use super::*;
use crate::config::Config;

fn cluster(text: &str) -> ClusterConfig {
    Config::parse(Path::new("v.toml"), text).unwrap().cluster
}

fn errors(lines: &str) -> Vec<String> {
    let text = format!("[cluster]\n{lines}\n");
    let errors = Config::parse(Path::new("v.toml"), &text).unwrap_err();
    errors.iter().map(|error| error.text.clone()).collect()
}

#[test]
fn one_line_turns_the_cluster_view_on() {
    assert!(!cluster("").is_enabled());
    assert!(!cluster("[cluster]\ndomain = \"prod\"\n").is_enabled());
    let one = cluster("[cluster]\nendpoints = \"https://Etcd-1.example:2379/\"\n");
    assert!(one.is_enabled());
    assert_eq!(one.endpoints, ["https://etcd-1.example:2379"]);
    assert_eq!(one.domain.as_str(), "default");
    assert_eq!((one.heartbeat, one.lease), (Duration::from_secs(5), Duration::from_secs(15)));
    let two = cluster(
        "[cluster]\nendpoints = [\"http://[::1]:2379\", \"http://127.0.0.1:2379\"]\nview = \"full\"\n\
         user = \"vipwatch\"\npassword = \"credential:etcd\"\nmin_backups = 0\n",
    );
    assert_eq!((two.endpoints.len(), two.scope), (2, ClusterScope::Full));
    assert_eq!(two.login.unwrap().password.to_string(), "credential:etcd");
    assert_eq!(two.min_backups, 0);
}

#[test]
fn a_wrong_endpoint_is_named_without_secrets() {
    for endpoint in ["10.0.0.1:2379", "tcp://a:1", "https://", "https://a:2379/v3", "https://a:1?b"]
    {
        let errors = errors(&format!("endpoints = {endpoint:?}"));
        assert!(errors[0].contains("is not a URL of etcd"), "{errors:?}");
    }
    assert!(errors("endpoints = \"https://a\"")[0].contains("has no port"));
    let user = errors("endpoints = \"https://root:word@a:2379\"");
    assert!(user[0].contains("set user and password") && !user[0].contains("word@"), "{user:?}");
    let twice = errors("endpoints = [\"https://a:1\", \"https://A:1/\"]");
    assert_eq!(twice, ["endpoints: \"https://A:1/\" is already in the list"]);
}

#[test]
fn a_lease_has_at_least_three_heartbeats() {
    let short = errors("heartbeat = \"5s\"\nlease = \"14s\"");
    assert!(short[0].starts_with("lease: it must be at least three heartbeats"), "{short:?}");
    assert_eq!(cluster("[cluster]\nheartbeat = \"10s\"\n").lease, Duration::from_secs(30));
    let exact = cluster("[cluster]\nheartbeat = \"1s\"\nlease = \"3s\"\n");
    assert_eq!(exact.lease, Duration::from_secs(3));
    assert!(errors("heartbeat = \"1s\"\nlease = \"3500ms\"")[0].contains("whole seconds"));
    assert!(errors("heartbeat = \"100ms\"")[0].contains("it is 1s to 60s"));
}

#[test]
fn secrets_need_encryption_and_both_parts() {
    let login = "user = \"v\"\npassword = \"/p\"\nallow_unencrypted = true";
    let exposed = errors(&format!("endpoints = \"http://10.0.0.1:2379\"\n{login}"));
    assert!(exposed[0].contains("without encryption; use https://"), "{exposed:?}");
    let second = "endpoints = [\"http://127.0.0.1:2379\", \"http://10.0.0.2:2379\"]";
    let exposed = errors(&format!("{second}\n{login}"));
    assert!(exposed[0].contains("sent to http://10.0.0.2:2379 without"), "{exposed:?}");
    let text = format!("[cluster]\n{second}\n{login}\n");
    let (lenient, _errors) = Config::parse_lenient(Path::new("v.toml"), &text);
    assert_eq!(lenient.cluster.login, None, "a command with the valid settings sends no password");
    cluster(&format!("[cluster]\nendpoints = \"http://127.0.0.1:2379\"\n{login}\n"));
    cluster(&format!("[cluster]\nendpoints = \"https://10.0.0.1:2379\"\n{login}\n"));
    assert!(errors("user = \"v\"")[0].contains("user needs password"));
    assert!(errors("password = \"/p\"")[0].contains("password needs user"));
    assert!(errors("certificate = \"/c\"")[0].contains("certificate needs key"));
    assert!(errors("key = \"/k\"")[0].contains("key needs certificate"));
    let plain = errors("user = \"v\"\npassword = \"hunter2\"");
    assert!(plain[0].contains("absolute path") && !plain[0].contains("hunter2"), "{plain:?}");
    let tls = errors("endpoints = \"http://127.0.0.1:1\"\nca = \"/ca.pem\"");
    assert!(tls[0].contains("need endpoints with https://"), "{tls:?}");
}

#[test]
fn plain_http_to_another_host_needs_consent() {
    for endpoint in
        ["http://10.0.0.1:2379", "http://etcd.example:2379", "http://[2001:db8::1]:2379"]
    {
        let refused = errors(&format!("endpoints = {endpoint:?}"));
        let expected = format!("endpoints: {endpoint} is another host");
        assert!(
            refused[0].starts_with(&expected) && refused[0].contains("allow_unencrypted"),
            "{refused:?}"
        );
        let denied = errors(&format!("endpoints = {endpoint:?}\nallow_unencrypted = false"));
        assert_eq!(denied, refused);
        cluster(&format!("[cluster]\nendpoints = {endpoint:?}\nallow_unencrypted = true\n"));
    }
    for endpoint in ["http://127.0.0.1:2379", "http://[::1]:2379", "http://localhost:2379"] {
        cluster(&format!("[cluster]\nendpoints = {endpoint:?}\n"));
    }
}

fn write_file(path: &std::path::Path, text: &str) {
    let mut file = std::fs::File::create(path).unwrap();
    std::io::Write::write_all(&mut file, text.as_bytes()).unwrap();
}

#[test]
fn the_files_are_checked_with_a_hint() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ca.pem");
    let text = format!("[cluster]\nendpoints = \"https://a:2379\"\nca = {path:?}\n");
    let error = cluster(&text).check_files().unwrap_err();
    assert_eq!(error.hint(), "create the file, or correct the path");
    write_file(&path, "no certificate");
    assert!(cluster(&text).check_files().unwrap_err().hint().contains("openssl x509"));
    write_file(&path, "-----BEGIN CERTIFICATE-----\n");
    assert_eq!(cluster(&text).check_files().unwrap(), Vec::<String>::new());
    let secret = directory.path().join("password");
    write_file(&secret, "word\n");
    let text = format!("{text}user = \"v\"\npassword = {secret:?}\n");
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert!(cluster(&text).check_files().unwrap_err().hint().contains("chmod 0640"));
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
    cluster(&text).check_files().unwrap();
}
