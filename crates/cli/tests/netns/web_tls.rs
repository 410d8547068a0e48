// SPDX-License-Identifier: Apache-2.0
//! The API over TCP with TLS, tokens and client certificates: real curl, and certificates made by openssl.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use vipwatch_api::{HealthDocument, NodeStatus};
use vipwatch_testkit::monitor::output_of;
use vipwatch_testkit::{Lab, NodeFixture, TestNetns, wait_for, wait_showing};

use crate::authority::{Authority, EXPIRED, ONE_YEAR, SignedCertificate, replace_secret};
use crate::curl::{get, parse_answer};
use crate::support::{ADD_VIP, fixture_with, read, vi_1_conf, write};
use crate::web::addresses;

const TOKEN: &str = "first-token-0123456789abcdef";
const OTHER_TOKEN: &str = "other-token-0123456789abcdef";

/// The files of a server in the directory of a lab.
struct WebFiles {
    authority: Authority,
    signed: SignedCertificate,
    tokens: PathBuf,
}

impl WebFiles {
    fn new(lab: &Lab) -> Self {
        let authority = Authority::new(&lab.path().join("ca"));
        let signed = authority.sign("server", &ONE_YEAR);
        let tokens = lab.path().join("tokens");
        replace_secret(&tokens, &format!("# of a test\n{TOKEN}\n{OTHER_TOKEN} # the second\n"));
        Self { authority, signed, tokens }
    }

    fn tls(&self) -> String {
        let SignedCertificate { certificate, key } = &self.signed;
        format!("{}{}", setting("certificate", certificate), setting("key", key))
    }

    fn tokens(&self) -> String {
        setting("token_file", &self.tokens)
    }

    /// Puts another certificate and key in the place of those of the server.
    fn replace(&self, new: &SignedCertificate) {
        replace_secret(&self.signed.key, &read(&new.key));
        replace_secret(&self.signed.certificate, &read(&new.certificate));
    }
}

/// A line of `[web]` with a file.
fn setting(key: &str, file: &Path) -> String {
    format!("{key} = \"{}\"\n", file.display())
}

/// A node that listens on a loopback address.
fn node_with(lab: &Lab, web: &str) -> (TestNetns, NodeFixture) {
    let (netns, fixture) = fixture_with(lab, &[vi_1_conf()]);
    fixture.configure(&format!("[web]\nlisten = \"127.0.0.1:0\"\n{web}"));
    (netns, fixture)
}

fn bearer(token: &str) -> String {
    format!("authorization: Bearer {token}")
}

/// The metrics of the node, from its unix socket.
fn metric(fixture: &NodeFixture, name: &str) -> u64 {
    get::<NodeStatus>(fixture, "/v1/status").metrics[name]
}

#[test]
fn beyond_loopback_only_a_client_with_a_token_can_read() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    netns.ip("address add 198.51.100.1/24 dev eth0");
    let fixture = fixture.on(&netns);
    let files = WebFiles::new(&lab);
    let listen = "[web]\nlisten = \"198.51.100.1:9650\"\n";
    fixture.configure(&format!("{listen}{}{}", files.tls(), files.tokens()));
    let _node = fixture.start();
    let address = addresses(&fixture)[0];
    let curl = |args: &[&str], path: &str| {
        let output = files.authority.output(netns.command("curl"), address, args, path);
        parse_answer(&output.stdout).unwrap_or_else(|| panic!("{args:?} {path}: {output:?}"))
    };
    for version in [&["--tlsv1.2", "--tls-max", "1.2"][..], &["--tlsv1.3"]] {
        let answer = curl(&[version, &["-H", &bearer(TOKEN)]].concat(), "/v1/status");
        assert_eq!(answer.document::<NodeStatus>().roles.backup, 1);
        assert!(!answer.headers.contains("strict-transport-security"), "{}", answer.headers);
    }
    assert_eq!(curl(&["-H", &bearer(OTHER_TOKEN)], "/healthz").status, 200);
    let wrong = ["x".repeat(40), TOKEN[..16].to_owned(), "short".to_owned(), String::new()];
    let mut refusals = vec![curl(&[], "/v1/status")];
    for token in &wrong {
        for path in ["/v1/status", "/v1/events", "/healthz", "/metrics", "/v1/config"] {
            refusals.push(curl(&["-H", &bearer(token)], path));
        }
    }
    for refusal in &refusals {
        assert_eq!(refusal.problem(), (401, "unauthorized"));
        assert!(refusal.headers.contains("www-authenticate: Bearer"), "{}", refusal.headers);
        assert_eq!(refusal.body, refusals[0].body, "a wrong token and none have the same answer");
    }
    assert_eq!(metric(&fixture, "vipwatch_web_unauthorized_total"), refusals.len() as u64);
    fixture.wait_for_log("request without a valid token refused");
    let config = curl(&["-H", &bearer(TOKEN)], "/v1/config").body;
    assert!(config.contains(files.tokens.to_str().unwrap()), "{config}");
    for text in [config, fixture.log(), fixture.run_text(&["config", "show"])] {
        for secret in [TOKEN, OTHER_TOKEN, &wrong[0]] {
            assert!(!text.contains(secret), "{text}");
        }
    }
    // The name of the server counts with TLS too.
    let foreign = curl(&["-H", "host: other.example", "-H", &bearer(TOKEN)], "/v1/status");
    assert_eq!(foreign.problem(), (421, "unknown-host"));
}

/// Certificates of clients, and the server that examines them.
struct ClientCertificates {
    files: WebFiles,
    client_ca: String,
    client_ca_file: PathBuf,
    /// The authority of `foreign`.
    others: Authority,
    known: SignedCertificate,
    /// Signed by the right authority, and expired.
    expired: SignedCertificate,
    /// Signed by another authority.
    foreign: SignedCertificate,
}

impl ClientCertificates {
    fn new(lab: &Lab) -> Self {
        let clients = Authority::new(&lab.path().join("clients"));
        let others = Authority::new(&lab.path().join("others"));
        let client_ca = lab.path().join("client-ca.pem");
        replace_secret(&client_ca, &read(&clients.file()));
        Self {
            files: WebFiles::new(lab),
            client_ca: setting("client_ca", &client_ca),
            client_ca_file: client_ca,
            known: clients.sign("known", &ONE_YEAR),
            expired: clients.sign("expired", &EXPIRED),
            foreign: others.sign("foreign", &ONE_YEAR),
            others,
        }
    }

    /// The HTTP status of the answer to curl; `None` if TLS fails.
    fn status(
        &self,
        address: SocketAddr,
        client: Option<&SignedCertificate>,
        more: &[&str],
    ) -> Option<u16> {
        let args = [&client.map_or(vec![], curl_options), more].concat();
        let authority = &self.files.authority;
        let output = authority.output(Command::new("curl"), address, &args, "/v1/status");
        let answer = parse_answer(&output.stdout);
        assert_eq!(answer.is_some(), output.status.success(), "{output:?}");
        answer.map(|answer| answer.status)
    }
}

/// The options of curl for a client certificate.
fn curl_options(client: &SignedCertificate) -> Vec<&str> {
    let [certificate, key] = [&client.certificate, &client.key].map(|path| path.to_str().unwrap());
    vec!["--cert", certificate, "--key", key]
}

#[test]
fn only_clients_with_a_valid_certificate_of_the_authority_can_read() {
    let lab = Lab::new();
    let clients = ClientCertificates::new(&lab);
    let web = format!("{}{}", clients.files.tls(), clients.client_ca);
    let (_netns, fixture) = node_with(&lab, &web);
    let _node = fixture.start();
    let address = addresses(&fixture)[0];
    assert_eq!(clients.status(address, Some(&clients.known), &[]), Some(200));
    for client in [None, Some(&clients.expired), Some(&clients.foreign)] {
        for version in [&["--tls-max", "1.2"][..], &["--tlsv1.3"]] {
            assert_eq!(clients.status(address, client, version), None, "{client:?} {version:?}");
        }
    }
    fixture.wait_for_log("TLS handshake failed");
    wait_for("the failures to be counted", || {
        (metric(&fixture, "vipwatch_web_handshakes_failed_total") == 6).then_some(())
    });
}

#[test]
fn with_tokens_and_client_certificates_a_client_needs_one_of_both() {
    let lab = Lab::new();
    let clients = ClientCertificates::new(&lab);
    let files = &clients.files;
    let web = format!("{}{}{}", files.tls(), clients.client_ca, files.tokens());
    let (_netns, fixture) = node_with(&lab, &web);
    let _node = fixture.start();
    let address = addresses(&fixture)[0];
    let token = bearer(TOKEN);
    assert_eq!(clients.status(address, Some(&clients.known), &[]), Some(200));
    assert_eq!(clients.status(address, None, &["-H", &token]), Some(200));
    assert_eq!(clients.status(address, None, &[]), Some(401));
    for client in [&clients.expired, &clients.foreign] {
        assert_eq!(clients.status(address, Some(client), &["-H", &token]), None, "a wrong one");
    }
}

#[test]
fn another_client_authority_ends_the_connections_of_clients_that_it_does_not_know() {
    let lab = Lab::new();
    let clients = ClientCertificates::new(&lab);
    let web = format!("{}{}", clients.files.tls(), clients.client_ca);
    let (_netns, fixture) = node_with(&lab, &web);
    let _node = fixture.start();
    let address = addresses(&fixture)[0];
    let args = curl_options(&clients.known);
    let file = lab.path().join("events");
    let mut stream = TlsStream::open_with(&clients.files, address, &args, file);
    let both = [read(&clients.client_ca_file), read(&clients.others.file())].concat();
    replace_secret(&clients.client_ca_file, &both);
    wait_for("the new authority", || {
        clients.status(address, Some(&clients.foreign), &[]).filter(|status| *status == 200)
    });
    assert!(!stream.has_ended(), "its authority is still in the file");
    replace_secret(&clients.client_ca_file, &read(&clients.others.file()));
    wait_for("the end of the stream", || stream.has_ended().then_some(()));
    assert_eq!(clients.status(address, Some(&clients.known), &[]), None);
    assert_eq!(clients.status(address, Some(&clients.foreign), &[]), Some(200));
}

/// The certificate that a server presents to a new client.
fn served_certificate(address: SocketAddr) -> String {
    let mut command = Command::new("openssl");
    command.args(["s_client", "-showcerts", "-connect"]).arg(address.to_string());
    let output = output_of(command.stdin(Stdio::null()));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let begin = text.find("-----BEGIN").unwrap_or_else(|| panic!("{output:?}"));
    let end = text.find("-----END CERTIFICATE-----").unwrap();
    text[begin..end].to_owned()
}

/// The same part of a file.
fn certificate_in(file: &Path) -> String {
    read(file).split("-----END CERTIFICATE-----").next().unwrap().to_owned()
}

/// An event stream over TLS. It is killed when this value is dropped.
struct TlsStream {
    child: Child,
    file: PathBuf,
}

impl TlsStream {
    fn open(files: &WebFiles, address: SocketAddr, token: &str, file: PathBuf) -> Self {
        Self::open_with(files, address, &["-H", &bearer(token)], file)
    }

    fn open_with(files: &WebFiles, address: SocketAddr, args: &[&str], file: PathBuf) -> Self {
        let mut command = Command::new("curl");
        command.args(["-sS", "-N", "--cacert"]).arg(files.authority.file());
        command.args(args).arg(format!("https://{address}/v1/events"));
        let child = command.stdout(std::fs::File::create(&file).unwrap()).spawn().unwrap();
        let stream = Self { child, file };
        wait_for("the stream to begin", || (!read(&stream.file).is_empty()).then_some(()));
        stream
    }

    fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }
}

impl Drop for TlsStream {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until `vipwatch findings` has a finding, or has it no more; returns its output.
fn wait_for_finding(fixture: &NodeFixture, name: &str, is_wanted: bool) -> String {
    let findings = || fixture.run_text(&["findings"]);
    wait_showing(&format!("{name}: {is_wanted}"), findings, || {
        let printed = findings();
        (printed.contains(name) == is_wanted).then_some(printed)
    })
}

#[test]
fn a_new_certificate_is_used_for_new_connections_and_a_broken_one_is_not() {
    let lab = Lab::new();
    let files = WebFiles::new(&lab);
    let (netns, fixture) = node_with(&lab, &format!("{}{}", files.tls(), files.tokens()));
    let _node = fixture.start();
    let address = addresses(&fixture)[0];
    let mut stream = TlsStream::open(&files, address, TOKEN, lab.path().join("events"));
    let first = certificate_in(&files.signed.certificate);
    assert_eq!(served_certificate(address), first);

    let second = files.authority.sign("second", &ONE_YEAR);
    files.replace(&second);
    let second = certificate_in(&second.certificate);
    wait_for("the new certificate", || (served_certificate(address) == second).then_some(()));

    // The key of another certificate.
    let third = files.authority.sign("third", &ONE_YEAR);
    replace_secret(&files.signed.key, &read(&third.key));
    let findings = wait_for_finding(&fixture, "node-web-files", true);
    assert!(findings.contains(files.signed.certificate.to_str().unwrap()), "{findings}");
    assert_eq!(served_certificate(address), second, "the previous one stays in use");
    write(&files.signed.certificate, "-----BEGIN CERTIFICATE-----\nnot base64: !\n");
    wait_for("the other error", || {
        fixture.run_text(&["findings"]).contains("not in the format PEM").then_some(())
    });
    assert_eq!(served_certificate(address), second);
    let log = fixture.log();
    let lines = log.lines().filter(|line| line.contains("files of the web server are not valid"));
    assert_eq!(lines.count(), 2, "one line for each error: {log}");
    assert!(!log.contains("not base64"), "{log}");

    files.replace(&third);
    wait_for_finding(&fixture, "node-web-files", false);
    assert_eq!(served_certificate(address), certificate_in(&third.certificate));
    // The stream that began with the first certificate still works.
    netns.ip(ADD_VIP);
    wait_for("the event", || read(&stream.file).contains("\"primary\"").then_some(()));
    assert!(!stream.has_ended());
}

#[test]
fn a_certificate_that_expires_within_14_days_is_a_finding_until_it_is_replaced() {
    let lab = Lab::new();
    let files = WebFiles::new(&lab);
    files.replace(&files.authority.sign("short", &["-days", "13"]));
    let (_netns, fixture) = node_with(&lab, &files.tls());
    let check = output_of(fixture.command().args(["config", "check"]).arg(fixture.config()));
    let printed = String::from_utf8_lossy(&check.stderr);
    assert!(check.status.success() && printed.contains("the certificate expires at"), "{printed}");
    let node = fixture.start();
    let findings = wait_for_finding(&fixture, "node-web-certificate", true);
    assert!(findings.contains("the certificate expires at"), "{findings}");
    fixture.wait_for_log("certificate of the web server must be replaced");
    files.replace(&files.authority.sign("expired", &EXPIRED));
    node.reload();
    wait_for("the end of the certificate", || {
        fixture.run_text(&["findings"]).contains("has expired at 2020-02-01").then_some(())
    });
    files.replace(&files.authority.sign("long", &["-days", "15"]));
    wait_for_finding(&fixture, "node-web-certificate", false);
}

#[test]
fn an_event_stream_ends_when_its_token_is_withdrawn() {
    let lab = Lab::new();
    let files = WebFiles::new(&lab);
    let (netns, fixture) = node_with(&lab, &format!("{}{}", files.tls(), files.tokens()));
    let node = fixture.start();
    let address = addresses(&fixture)[0];
    let mut first = TlsStream::open(&files, address, TOKEN, lab.path().join("first"));
    let mut other = TlsStream::open(&files, address, OTHER_TOKEN, lab.path().join("other"));
    replace_secret(&files.tokens, &format!("{OTHER_TOKEN}\n"));
    node.reload();
    wait_for("the end of the stream", || first.has_ended().then_some(()));
    let status = |token| files.authority.curl(address, &["-H", &bearer(token)], "/healthz").status;
    assert_eq!((status(TOKEN), status(OTHER_TOKEN)), (401, 200));
    netns.ip(ADD_VIP);
    wait_for("the event", || read(&other.file).contains("\"primary\"").then_some(()));
    assert!(!other.has_ended());
    // A file without a token withdraws all of them.
    replace_secret(&files.tokens, "# none\n");
    wait_for("the end of the other stream", || other.has_ended().then_some(()));
    let findings = wait_for_finding(&fixture, "node-web-files", true);
    assert!(findings.contains("no token is in it"), "{findings}");
}

/// Runs a node, and then `config check`: both must fail with these words.
fn assert_refused(fixture: &NodeFixture, code: i32, words: &[&str]) {
    let mut check = fixture.command();
    check.args(["config", "check"]).arg(fixture.config());
    for mut command in [fixture.node_command(), check] {
        let output = output_of(&mut command);
        let printed = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{command:?} {printed}");
        for word in words {
            assert!(printed.contains(word), "{word:?} is not in {printed}");
        }
        assert!(!printed.contains("s3cret"), "{printed}");
    }
}

#[test]
fn an_address_beyond_loopback_without_protection_is_refused_with_the_reason() {
    let lab = Lab::new();
    let files = WebFiles::new(&lab);
    let (_netns, fixture) = node_with(&lab, "");
    let (tls, tokens) = (files.tls(), files.tokens());
    for address in ["0.0.0.0:9650", "192.0.2.1:9650", "[::]:9650"] {
        for (more, missing) in [
            ("", "certificate and key, so that the connections are encrypted; and token_file"),
            (&tls, "token_file or client_ca, so that only your clients can read"),
            (&tokens, "certificate and key, so that the connections are encrypted"),
        ] {
            fixture.configure(&format!("[web]\nlisten = \"{address}\"\n{more}"));
            let reason = format!("{address} is not a loopback address");
            assert_refused(&fixture, 1, &[&reason, missing, "vipwatch.toml:2"]);
        }
    }
}

#[test]
fn files_that_are_missing_wrong_or_open_to_other_users_are_refused_with_the_reason() {
    let lab = Lab::new();
    let files = WebFiles::new(&lab);
    let (_netns, fixture) = node_with(&lab, &format!("{}{}", files.tls(), files.tokens()));
    let SignedCertificate { certificate, key } = &files.signed;
    let name = |path: &Path| path.to_str().unwrap().to_owned();
    let set_mode = |path: &Path, mode| {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    };
    for (path, mode, reason) in [
        (key, 0o644, "it is secret, and every user can read it"),
        (&files.tokens, 0o604, "it is secret, and every user can read it"),
        (&files.tokens, 0o620, "other users can write to it"),
        (certificate, 0o666, "other users can write to it"),
    ] {
        set_mode(path, mode);
        assert_refused(&fixture, 4, &[&name(path), reason, "hint: run `chmod"]);
        set_mode(path, 0o600);
    }
    let tokens = read(&files.tokens);
    replace_secret(&files.tokens, "s3cret\n");
    assert_refused(&fixture, 4, &["the token in line 1 has fewer than 16 characters", "hint:"]);
    replace_secret(&files.tokens, "two s3cret words\n");
    assert_refused(&fixture, 4, &["line 1 is not one token", "hint:"]);
    replace_secret(&files.tokens, &tokens);
    let right = read(key);
    replace_secret(key, &read(&files.authority.sign("other", &ONE_YEAR).key));
    assert_refused(&fixture, 4, &[&name(certificate), "cannot be used with the key"]);
    replace_secret(key, "s3cret");
    assert_refused(&fixture, 4, &[&name(key), "no private key is in it"]);
    replace_secret(key, &right);
    std::fs::remove_file(certificate).unwrap();
    assert_refused(&fixture, 4, &[&name(certificate), "No such file", "hint: create the file"]);
}

#[test]
fn a_node_reads_tokens_and_keys_from_the_credentials_of_its_service() {
    let lab = Lab::new();
    let files = WebFiles::new(&lab);
    let directory = lab.path().join("credentials");
    std::fs::create_dir(&directory).unwrap();
    replace_secret(&directory.join("web-key"), &read(&files.signed.key));
    replace_secret(&directory.join("web-tokens"), TOKEN);
    let web = format!(
        "{}key = \"credential:web-key\"\ntoken_file = \"credential:web-tokens\"\n",
        setting("certificate", &files.signed.certificate)
    );
    let (_netns, fixture) = node_with(&lab, &web);
    let output = output_of(&mut fixture.node_command());
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(printed.contains("systemd has passed no credentials"), "{printed}");
    let check = output_of(fixture.command().args(["config", "check"]).arg(fixture.config()));
    let printed = String::from_utf8_lossy(&check.stderr);
    assert!(check.status.success(), "only the service has the files: {printed}");
    assert!(printed.contains("credential:web-key, credential:web-tokens"), "{printed}");
    let fixture = fixture.with_variable("CREDENTIALS_DIRECTORY", directory.to_str().unwrap());
    let _node = fixture.start();
    let address = addresses(&fixture)[0];
    let curl = |args: &[&str]| files.authority.curl(address, args, "/healthz").status;
    assert_eq!((curl(&["-H", &bearer(TOKEN)]), curl(&[])), (200, 401));
}

#[test]
fn clients_that_are_silent_slow_or_without_tls_delay_no_other_client() {
    let lab = Lab::new();
    let files = WebFiles::new(&lab);
    let (_netns, fixture) = node_with(&lab, &files.tls());
    let _node = fixture.start();
    let address = addresses(&fixture)[0];
    let open = |bytes: &[u8]| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream.write_all(bytes).unwrap();
        stream
    };
    let mut plain = Vec::new();
    let request = format!("GET /healthz HTTP/1.1\r\nhost: {address}\r\n\r\n");
    open(request.as_bytes()).read_to_end(&mut plain).unwrap();
    let plain = parse_answer(&plain).unwrap();
    assert_eq!(plain.problem(), (400, "invalid-request"));
    assert!(plain.body.contains("https://"), "{plain:?}");

    // The head of a TLS record of 512 bytes without its content, and connections without a byte.
    let mut half: Vec<TcpStream> =
        (0..40).map(|_| open(&[22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3])).collect();
    let mut silent: Vec<TcpStream> = (0..200).map(|_| open(&[])).collect();
    for _ in 0..5 {
        let health: HealthDocument = files.authority.curl(address, &[], "/healthz").document();
        assert_eq!(health.status, "ok");
    }
    assert!(metric(&fixture, "vipwatch_web_connections") <= 64);
    // All of them are closed without an answer.
    for stream in half.iter_mut().chain(&mut silent) {
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.is_empty(), "{}", String::from_utf8_lossy(&answer));
    }
    assert!(metric(&fixture, "vipwatch_web_handshakes_failed_total") >= 41);
    // The first message of a handshake, which is incomplete.
    let mut answer = Vec::new();
    let _ = open(&[22, 3, 1, 0, 5, 1, 0, 0, 1, 0]).read_to_end(&mut answer);
    assert_eq!(answer.first(), Some(&21), "an alert of TLS: {answer:?}");
    assert_eq!(files.authority.curl(address, &[], "/healthz").status, 200);
}

#[test]
fn on_loopback_a_token_protects_a_server_without_tls() {
    let lab = Lab::new();
    let files = WebFiles::new(&lab);
    let (_netns, fixture) = node_with(&lab, &files.tokens());
    let _node = fixture.start();
    let address = addresses(&fixture)[0];
    let curl = |args: &[&str]| {
        let mut command = Command::new("curl");
        command.args(["-sS", "-i", "--max-time", "30"]).args(args);
        let output = output_of(command.arg(format!("http://{address}/v1/status")));
        parse_answer(&output.stdout).unwrap_or_else(|| panic!("{output:?}")).status
    };
    assert_eq!((curl(&["-H", &bearer(TOKEN)]), curl(&[])), (200, 401));
}
