// SPDX-License-Identifier: Apache-2.0
//! TLS, logins, and the errors of an etcd that cannot be used.

use std::time::Duration;

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

use vipwatch_api::RoleKind::{Backup, Primary};
use vipwatch_api::{ClusterConnectionState, ClusterNodeState};
use vipwatch_cluster::etcd::messages::RequestOp;
use vipwatch_cluster::etcd::{
    ClientCertificate, EtcdConnection, EtcdError, EtcdErrorKind, EtcdLogin, EtcdPassword,
    EtcdSettings,
};
use vipwatch_core::ErrorChain;
use vipwatch_testkit::authority::{EXPIRED, ONE_YEAR};
use vipwatch_testkit::{
    Authority, Etcd, EtcdPlace, EtcdProcessOptions, EtcdTls, Lab, SignedCertificate, wait_for,
    wait_showing,
};

use crate::failure::errors;
use crate::node::{TestNode, lasting_session, session, state_of};
use crate::support::{block_on, open, settings};

/// An etcd with TLS that requires client certificates.
struct SecureEtcd {
    authority: Authority,
    etcd: Etcd,
    settings: EtcdSettings,
}

fn files(signed: &SignedCertificate) -> ClientCertificate {
    ClientCertificate { certificate: signed.certificate.clone(), key: signed.key.clone() }
}

fn secure(directory: &Path) -> SecureEtcd {
    let authority = Authority::new(&directory.join("ca"));
    let place = EtcdPlace::loopback();
    let names = [format!("IP:{}", place.address), "DNS:localhost".to_owned()];
    let server = authority.sign("server", &names, &ONE_YEAR);
    let client = authority.sign("client", &names, &ONE_YEAR);
    let tls = EtcdTls {
        server,
        ca: authority.file(),
        needs_client_certificate: true,
        client: client.clone(),
    };
    let options = EtcdProcessOptions { tls: Some(tls), ..EtcdProcessOptions::default() };
    let etcd = Etcd::start(directory, vec![place], options);
    let mut settings = settings(&etcd);
    settings.ca = Some(authority.file());
    settings.certificate = Some(files(&client));
    SecureEtcd { authority, etcd, settings }
}

/// The error of the first request; a certificate of a client is rejected after the connection is there.
fn error_of(settings: &EtcdSettings) -> EtcdError {
    block_on(async {
        match open(settings).await {
            Ok(connection) => connection.read_key("/key").await.map(|_| ()).unwrap_err(),
            Err(error) => error,
        }
    })
}

#[track_caller]
fn assert_kind(settings: &EtcdSettings, kind: EtcdErrorKind) -> EtcdError {
    let error = error_of(settings);
    assert_eq!(error.kind(), kind, "{error:?}");
    assert!(error.hint().is_some(), "{error:?}");
    error
}

#[test]
fn tls_with_a_client_certificate_is_accepted() {
    let lab = Lab::new();
    let secure = secure(lab.path());
    block_on(async {
        let connection = open(&secure.settings).await.unwrap();
        assert!(connection.read_key("/key").await.is_ok());
        assert!(connection.endpoint().starts_with("https://"));
    });
}

#[test]
fn a_wrong_authority_and_an_expired_or_missing_certificate_are_errors_of_tls() {
    let lab = Lab::new();
    let secure = secure(lab.path());
    let other = Authority::new(&lab.path().join("other"));
    let wrong = EtcdSettings { ca: Some(other.file()), ..secure.settings.clone() };
    let error = assert_kind(&wrong, EtcdErrorKind::Tls);
    assert!(error.to_string().contains(&secure.etcd.endpoint(0)), "{error}");

    let missing = EtcdSettings { certificate: None, ..secure.settings.clone() };
    assert_kind(&missing, EtcdErrorKind::Tls);

    let expired = secure.authority.sign("expired", &["DNS:localhost".to_owned()], &EXPIRED);
    let expired = EtcdSettings { certificate: Some(files(&expired)), ..secure.settings.clone() };
    assert_kind(&expired, EtcdErrorKind::Tls);

    let mut plain = secure.settings.clone();
    plain.endpoints = vec![plain.endpoints[0].replace("https", "http")];
    let error = error_of(&plain);
    assert_eq!(error.kind(), EtcdErrorKind::Connection, "{error:?}");
}

#[test]
fn a_certificate_that_expires_while_a_node_runs_is_an_error_until_it_is_renewed() {
    let lab = Lab::new();
    let SecureEtcd { authority, mut etcd, settings } = secure(lab.path());
    let used = settings.certificate.clone().unwrap();
    // The client of the test keeps its own certificate.
    let renewed = authority.sign("renewed", &["DNS:localhost".to_owned()], &ONE_YEAR);
    let expired = authority.sign("expired", &["DNS:localhost".to_owned()], &EXPIRED);
    let files_of_node = lab.path().join("node");
    std::fs::create_dir_all(&files_of_node).unwrap();
    let of_node = ClientCertificate {
        certificate: files_of_node.join("client.crt"),
        key: files_of_node.join("client.key"),
    };
    let install = |from: &ClientCertificate| {
        std::fs::copy(&from.certificate, &of_node.certificate).unwrap();
        std::fs::copy(&from.key, &of_node.key).unwrap();
    };
    install(&used);
    let settings = EtcdSettings { certificate: Some(of_node.clone()), ..settings };
    let node = TestNode::start(lasting_session(&settings, "a"), &[("r1", Backup)]);
    node.wait_role("r1", "a", Backup);
    install(&files(&expired));
    etcd.kill(0);
    etcd.restart(0);
    wait_showing(
        "an error of TLS",
        || format!("{:?}", node.handle.counters()),
        || (errors(&node, EtcdErrorKind::Tls) > 0).then_some(()),
    );
    assert_eq!(node.handle.basis().connection, ClusterConnectionState::Stale);
    // The node works on, and publishes the change once it has another certificate.
    node.set("r1", Primary);
    install(&files(&renewed));
    node.wait_role("r1", "a", Primary);
    assert_eq!(node.handle.basis().connection, ClusterConnectionState::Connected);
}

#[test]
fn an_expired_certificate_of_etcd_is_an_error_of_tls() {
    let lab = Lab::new();
    let secure = secure(lab.path());
    let place = EtcdPlace::loopback();
    let names = [format!("IP:{}", place.address)];
    let server = secure.authority.sign("old", &names, &EXPIRED);
    let client = secure.authority.sign("ctl", &names, &ONE_YEAR);
    let ca = secure.authority.file();
    let tls = EtcdTls { server, ca, needs_client_certificate: false, client };
    let options = EtcdProcessOptions { tls: Some(tls), ..EtcdProcessOptions::default() };
    let old = Etcd::spawned(&lab.path().join("old"), vec![place], options);
    let settings = EtcdSettings { endpoints: old.endpoints(), ..secure.settings.clone() };
    let error = wait_for("etcd to listen", || {
        Some(error_of(&settings)).filter(|error| error.kind() != EtcdErrorKind::Connection)
    });
    assert_eq!(error.kind(), EtcdErrorKind::Tls, "{error:?}");
}

#[test]
fn a_key_that_other_users_can_read_or_change_is_not_used() {
    let lab = Lab::new();
    let SecureEtcd { settings, etcd: _etcd, .. } = secure(lab.path());
    let ClientCertificate { certificate, key } = settings.certificate.clone().unwrap();
    let set_mode = |path: &Path, mode| {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    };
    let refused = |expected: &str| {
        let error = assert_kind(&settings, EtcdErrorKind::Settings);
        let text = ErrorChain(&error).to_string();
        assert!(text.contains(expected), "{text}");
    };
    set_mode(&key, 0o604);
    refused("it is secret, and every user can read it");
    set_mode(&key, 0o620);
    refused("other users can write to it");
    set_mode(&key, 0o640);
    block_on(open(&settings)).unwrap();
    set_mode(&certificate, 0o646);
    refused("other users can write to it");
    set_mode(&certificate, 0o644);
    chown(&key, Some(65534), None).unwrap();
    refused("it belongs neither to root nor to the user of this process");
    chown(&key, Some(0), None).unwrap();
    File::options().write(true).open(&key).unwrap().set_len(1 << 30).unwrap();
    refused("it has more than");
}

#[test]
fn a_login_needs_the_right_password_and_covers_one_prefix() {
    let lab = Lab::new();
    let mut etcd = Etcd::single(lab.path());
    let mut with_login = settings(&etcd);
    let login = |user: &str, password: &str| {
        let password = EtcdPassword::new(password.to_owned());
        Some(EtcdLogin { user: user.to_owned(), password })
    };
    with_login.login = login("vipwatch", "right");
    // etcd has no users yet.
    assert_kind(&with_login, EtcdErrorKind::Access);

    etcd.enable_login("vipwatch", "right", "/vipwatch/");
    block_on(async {
        let connection = open(&with_login).await.unwrap();
        let write = vec![RequestOp::put("/vipwatch/key", "value", None)];
        assert!(connection.commit(Vec::new(), write, "/vipwatch/key").await.unwrap().is_done);
        let foreign = connection.read_key("/foreign").await.unwrap_err();
        assert!(matches!(foreign, EtcdError::Permission { .. }), "{foreign:?}");
        let (mut watcher, _) = connection.watch("/foreign/", 1).await.unwrap();
        let foreign = connection.next_message(&mut watcher).await.unwrap_err();
        assert!(matches!(foreign, EtcdError::Permission { .. }), "{foreign:?}");
    });
    with_login.login = login("vipwatch", "wrong");
    assert_kind(&with_login, EtcdErrorKind::Access);
    with_login.login = None;
    assert_kind(&with_login, EtcdErrorKind::Access);
    assert!(!format!("{:?}", login("vipwatch", "secret")).contains("secret"));
}

/// The commands of the guide that create users, for this etcd. Each user has its name as its password.
fn commands_of_the_guide() -> String {
    let guide = include_str!("../../../../docs/guides/cluster.md");
    let commands = guide.split("```sh\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    // `etcdctl user add` asks for a password.
    let add = "etcdctl() { case \"$1 $2\" in \"user add\") command etcdctl user add \"$3:$3\" ;; *) command etcdctl \"$@\" ;; esac; }";
    let commands: Vec<&str> =
        commands.lines().filter(|line| !line.starts_with("export ETCDCTL_")).collect();
    format!("set -eu\n{add}\n{}", commands.join("\n"))
}

#[test]
fn with_the_users_of_the_guide_a_node_works_and_cannot_speak_for_another_one() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", &commands_of_the_guide()]).env("ETCDCTL_API", "3");
    let output = shell.env("ETCDCTL_ENDPOINTS", etcd.endpoint(0)).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let login = |user: &str| {
        let (user, password) = (user.to_owned(), EtcdPassword::new(user.to_owned()));
        EtcdSettings { login: Some(EtcdLogin { user, password }), ..settings(&etcd) }
    };
    let [one, two] = ["net-1", "net-2"].map(|name| {
        let mut session = lasting_session(&login(&format!("vipwatch-{name}")), name);
        session.domain = "default".parse().unwrap();
        TestNode::start(session, &[("r1", Primary)])
    });
    for node in [&one, &two] {
        node.wait_role("r1", "net-1", Primary);
        node.wait_role("r1", "net-2", Primary);
        node.wait("the finding of the reporter", |view| {
            view.findings().any(|finding| finding.name == "cluster-two-primaries")
        });
    }
    one.silence("net-1");
    two.wait("the silence", |view| view.silences().count() == 1);
    two.set("r1", Backup);
    one.wait("the end of the finding", |view| view.closed_findings().next().is_some());
    two.stop();
    one.wait("the stop", |view| state_of(view, "net-2") == Some(ClusterNodeState::Stopped));
    let write = |user: &str, key: &str| {
        block_on(async {
            let connection = open(&login(user)).await.unwrap();
            let key = format!("/vipwatch/v1/default/{key}");
            let puts = vec![RequestOp::put(&key, "forged", None)];
            connection.commit(Vec::new(), puts, &key).await.map(|result| result.is_done)
        })
    };
    for (user, key) in [
        ("vipwatch-net-1", "node/net-2"),
        ("vipwatch-net-1", "member/net-2"),
        ("vipwatch-net-1", "node/net-11"),
        ("vipwatch-reader", "role/router:r1/net-1/r1"),
        ("vipwatch-reader", "reporter"),
        ("vipwatch-reader", "silence/x"),
        ("vipwatch-operator", "reporter"),
    ] {
        let refused = write(user, key);
        assert!(matches!(refused, Err(EtcdError::Permission { .. })), "{user} {key}: {refused:?}");
    }
    assert!(matches!(write("vipwatch-operator", "silence/x"), Ok(true)));
    // What the layout of the keys does not prevent.
    assert!(matches!(write("vipwatch-net-1", "role/router:r1/net-2/r1"), Ok(true)));
    assert_eq!(errors(&one, EtcdErrorKind::Access), 0);
}

#[test]
fn a_node_that_may_not_write_its_silence_stays_live_and_reports() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    let mut shell = std::process::Command::new("sh");
    let commands = commands_of_the_guide();
    let without: Vec<&str> = commands.lines().filter(|line| !line.contains("/silence/")).collect();
    shell.args(["-c", &without.join("\n")]).env("ETCDCTL_API", "3");
    let output = shell.env("ETCDCTL_ENDPOINTS", etcd.endpoint(0)).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let user = "vipwatch-net-1".to_owned();
    let password = EtcdPassword::new(user.clone());
    let etcd_settings =
        EtcdSettings { login: Some(EtcdLogin { user, password }), ..settings(&etcd) };
    let mut short = session(&etcd_settings, "net-1");
    short.domain = "default".parse().unwrap();
    short.lease = Duration::from_secs(3);
    let node = TestNode::start(short, &[("r1", Primary)]);
    node.wait_registered();
    node.silence("net-1");
    wait_for("the refusal", || (errors(&node, EtcdErrorKind::Access) > 0).then_some(()));
    // More heartbeats than fit into the lease, which is renewed with each.
    let begin = node.handle.counters().heartbeats;
    wait_for("heartbeats", || (node.handle.counters().heartbeats > begin + 12).then_some(()));
    assert_eq!(node.handle.counters().lease_losses, 0);
    assert!(node.handle.is_registered() && node.handle.is_reporter());
    // Its roles are current, and nothing waits for the silence.
    assert_eq!(node.handle.basis().error, None);
    assert_eq!(errors(&node, EtcdErrorKind::Access), 1, "the next attempt is half a minute later");
}

#[test]
fn a_full_etcd_answers_reads_and_rejects_writes() {
    let lab = Lab::new();
    let options =
        EtcdProcessOptions { quota: Some(2 * 1024 * 1024), ..EtcdProcessOptions::default() };
    let etcd = Etcd::start(lab.path(), vec![EtcdPlace::loopback()], options);
    block_on(async {
        let connection = open(&settings(&etcd)).await.unwrap();
        let error = fill(&connection).await;
        assert!(matches!(error, EtcdError::NoSpace { .. }), "{error:?}");
        assert!(error.hint().unwrap().contains("alarm disarm"));
        assert!(connection.read_key("/fill").await.unwrap().0.is_some());
    });
}

/// Writes until etcd is full.
async fn fill(connection: &EtcdConnection) -> EtcdError {
    loop {
        let write = vec![RequestOp::put("/fill", vec![b'x'; 200_000], None)];
        if let Err(error) = connection.commit(Vec::new(), write, "/fill").await {
            return error;
        }
    }
}

#[test]
fn wrong_settings_are_errors_with_a_hint() {
    let lab = Lab::new();
    let secure = secure(lab.path());
    for endpoint in ["10.0.0.1:2379", "ftp://10.0.0.1", "https://", "https://a b"] {
        let wrong =
            EtcdSettings { endpoints: vec![endpoint.to_owned()], ..secure.settings.clone() };
        assert_kind(&wrong, EtcdErrorKind::Settings);
    }
    let absent = EtcdSettings { ca: Some("/nonexistent".into()), ..secure.settings.clone() };
    let error = assert_kind(&absent, EtcdErrorKind::Settings);
    assert_eq!(error.to_string(), "cannot use /nonexistent");
    let text = lab.path().join("text");
    File::create(&text).unwrap().write_all(b"a text").unwrap();
    let other = EtcdSettings { ca: Some(text.clone()), ..secure.settings.clone() };
    let error = assert_kind(&other, EtcdErrorKind::Settings);
    let expected = format!("no certificate in the format PEM is in {}", text.display());
    assert_eq!(error.to_string(), expected);
    let mut swapped = secure.settings.clone();
    if let Some(ClientCertificate { certificate, key }) = &mut swapped.certificate {
        std::mem::swap(certificate, key);
    }
    assert_kind(&swapped, EtcdErrorKind::Settings);
    let mut refused = secure.settings.clone();
    refused.endpoints = vec![refused.endpoints[0].replace("2379", "2377")];
    assert_kind(&refused, EtcdErrorKind::Connection);
}
