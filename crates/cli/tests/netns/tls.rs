// SPDX-License-Identifier: Apache-2.0
//! Webhooks over TLS: which servers are trusted, and how many connections are made.

use std::io::Write;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};

use vipwatch_testkit::monitor::output_of;
use vipwatch_testkit::{Lab, wait_for};

use crate::http_server::HttpServer;
use crate::support::{ADD_VIP, REMOVE_VIP, fixture_with, read, vi_1_conf, write};

/// A TLS server (`openssl s_server`) that answers every request with 200.
struct TlsServer {
    child: std::process::Child,
    url: String,
    /// The certificate of its authority.
    ca_file: PathBuf,
    /// The received bytes, decrypted.
    received: PathBuf,
}

impl TlsServer {
    fn new(directory: &Path) -> Self {
        std::fs::create_dir_all(directory).unwrap();
        let openssl = |args: &[&str]| {
            vipwatch_testkit::run(
                std::process::Command::new("openssl").args(args).current_dir(directory),
            );
        };
        let subject = ["-subj", "/CN=vipwatch test", "-days", "2", "-nodes"];
        let name = ["-addext", "subjectAltName=IP:127.0.0.1"];
        let curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"];
        openssl(
            &[&["req", "-x509", "-keyout", "ca.key", "-out", "ca.pem"], &curve[..], &subject]
                .concat(),
        );
        openssl(
            &[&["req", "-keyout", "key.pem", "-out", "cert.csr"], &curve[..], &subject, &name]
                .concat(),
        );
        openssl(&[
            "x509",
            "-req",
            "-in",
            "cert.csr",
            "-CA",
            "ca.pem",
            "-CAkey",
            "ca.key",
            "-days",
            "2",
            "-copy_extensions",
            "copy",
            "-out",
            "cert.pem",
        ]);
        let received = directory.join("received");
        let port = NEXT_PORT.fetch_add(1, Ordering::Relaxed);
        let mut child = std::process::Command::new("openssl")
            .args(["s_server", "-quiet", "-key", "key.pem", "-cert", "cert.pem", "-accept"])
            .arg(format!("127.0.0.1:{port}"))
            .current_dir(directory)
            .stdin(std::process::Stdio::piped())
            .stdout(std::fs::File::create(&received).unwrap())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        wait_for("the server", || std::net::TcpStream::connect(("127.0.0.1", port)).ok());
        let mut stdin = child.stdin.take().unwrap();
        let received_by_thread = received.clone();
        std::thread::spawn(move || {
            let mut answered = 0;
            // s_server sends its standard input to the connected client.
            while stdin.flush().is_ok() {
                if read(&received_by_thread).matches("\"to\":").count() > answered {
                    answered += 1;
                    let answer = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
                    if stdin.write_all(answer.as_bytes()).is_err() {
                        return;
                    }
                }
                vipwatch_testkit::pause(std::time::Duration::from_millis(5));
            }
        });
        let url = format!("https://127.0.0.1:{port}/vip");
        Self { child, url, ca_file: directory.join("ca.pem"), received }
    }
}

/// The port of the next server. The kernel gives the servers of other tests, which run at the same time in this network
/// namespace, ports from 32768 on.
static NEXT_PORT: AtomicU16 = AtomicU16::new(20_000);

impl Drop for TlsServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_webhook_over_tls_trusts_its_ca_file_and_no_other_authority() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let (trusted, other) =
        (TlsServer::new(&lab.path().join("t1")), TlsServer::new(&lab.path().join("t2")));
    let webhook = |server: &TlsServer| {
        let ca_file = trusted.ca_file.display();
        format!("[[notify.webhook]]\nurl = \"{}\"\nca_file = \"{ca_file}\"\n", server.url)
    };
    fixture.configure(&format!("[[notify]]\n{}{}", webhook(&trusted), webhook(&other)));
    let _node = fixture.start();
    netns.ip(ADD_VIP);
    let is_delivered = |server: &TlsServer| read(&server.received).contains("\"to\":\"primary\"");
    wait_for("the delivery", || is_delivered(&trusted).then_some(()));
    let is_refused = |line: &str| {
        line.contains(other.url.split('/').nth(2).unwrap())
            && line.contains("delivery failed")
            && line.contains("certificate")
    };
    wait_for("the other server to be refused", || {
        fixture.log().lines().any(is_refused).then_some(())
    });
    assert!(!read(&other.received).contains("primary"), "an untrusted server gets no data");
}

/// Forwards connections to another local port and counts them.
struct Relay {
    port: u16,
    count: Arc<AtomicUsize>,
}

impl Relay {
    fn to(url: &str) -> Self {
        let port = url.trim_start_matches("https://127.0.0.1:").split('/').next().unwrap();
        let port: u16 = port.parse().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let count = Arc::new(AtomicUsize::new(0));
        let relay = Self { port: listener.local_addr().unwrap().port(), count: Arc::clone(&count) };
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                count.fetch_add(1, Ordering::Relaxed);
                let server = TcpStream::connect(("127.0.0.1", port)).unwrap();
                forward(client.try_clone().unwrap(), server.try_clone().unwrap());
                forward(server, client);
            }
        });
        relay
    }
}

fn forward(mut from: TcpStream, mut to: TcpStream) {
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Write);
    });
}

#[test]
fn two_deliveries_to_one_webhook_use_one_connection() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let server = TlsServer::new(&lab.path().join("tls"));
    let relay = Relay::to(&server.url);
    fixture.configure(&format!(
        "[[notify]]\nwebhook = {{ url = \"https://127.0.0.1:{}/vip\", ca_file = \"{}\" }}\n",
        relay.port,
        server.ca_file.display()
    ));
    let _node = fixture.start();
    let is_delivered = |role: &str| read(&server.received).contains(&format!("\"to\":\"{role}\""));
    wait_for("the first delivery", || is_delivered("backup").then_some(()));
    netns.ip(ADD_VIP);
    wait_for("the second delivery", || is_delivered("primary").then_some(()));
    assert_eq!(relay.count.load(Ordering::Relaxed), 1);
}

#[test]
fn a_ca_file_that_changes_is_read_again_and_one_that_disappears_stays_in_use() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let (server, other) =
        (TlsServer::new(&lab.path().join("t1")), TlsServer::new(&lab.path().join("t2")));
    let ca_file = lab.path().join("ca.pem");
    write(&ca_file, &read(&other.ca_file));
    fixture.configure(&format!(
        "[[notify]]\nwebhook = {{ url = \"{}\", ca_file = \"{}\" }}\n",
        server.url,
        ca_file.display()
    ));
    let _node = fixture.start();
    wait_for("the server not to be trusted", || {
        fixture
            .log()
            .lines()
            .any(|line| line.contains("delivery failed") && line.contains("certificate"))
            .then_some(())
    });
    write(&ca_file, &read(&server.ca_file));
    let is_delivered = |role: &str| read(&server.received).contains(&format!("\"to\":\"{role}\""));
    wait_for("the delivery", || is_delivered("backup").then_some(()));
    std::fs::remove_file(&ca_file).unwrap();
    netns.ip(ADD_VIP);
    wait_for("the next delivery", || is_delivered("primary").then_some(()));
    fixture.wait_for_log("certificates read before stay in use");
    assert!(fixture.log().contains(&ca_file.display().to_string()));
}

#[test]
fn a_ca_file_that_is_missing_is_a_configuration_error() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let missing = lab.path().join("missing.pem").display().to_string();
    let server = HttpServer::new(&[]);
    let wrong = format!(
        "[[notify]]\nwebhook = {{ url = \"https://127.0.0.1:9/vip\", ca_file = \"{missing}\" }}\n"
    );
    fixture.configure(&wrong);
    for args in [&["config", "check"][..], &["node", "--config"]] {
        let output = output_of(fixture.command().args(args).arg(fixture.config()));
        assert!(!output.status.success(), "{args:?}: {output:?}");
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            printed.contains(&missing) && printed.contains("vipwatch.toml:2"),
            "{args:?}: {printed}"
        );
    }
    fixture.configure(&format!("[[notify]]\nwebhook = {{ url = \"{}\" }}\n", server.url));
    let node = fixture.start();
    fixture.configure(&wrong);
    node.reload();
    fixture.wait_for_log("configuration rejected");
    assert!(fixture.log().contains(&missing), "{}", fixture.log());
    // The node keeps the earlier configuration.
    netns.ip(ADD_VIP);
    wait_for("the webhook", || (server.accepted().last()? == "primary").then_some(()));
    netns.ip(REMOVE_VIP);
    wait_for("the webhook", || (server.accepted().last()? == "backup").then_some(()));
}
