// SPDX-License-Identifier: Apache-2.0
//! The running server and its OpenAPI document, compared by schemathesis.

use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use vipwatch_testkit::Lab;
use vipwatch_testkit::monitor::output_within;

use crate::support::{ADD_VIP, fixture_with, vi_1_conf};

#[test]
fn schemathesis_finds_no_answer_that_differs_from_the_openapi_document() {
    let environment = std::env::var_os("VIPWATCH_SCHEMATHESIS");
    let environment = PathBuf::from(environment.expect("`cargo xtask test` sets this variable"));
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let _node = fixture.start();
    netns.ip(ADD_VIP);
    let port = forward_to(fixture.socket());
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/openapi.json");
    let mut command = Command::new(environment.join("bin/schemathesis"));
    command.current_dir(lab.path()).arg("run").arg(document);
    command.args(["--url", &format!("http://127.0.0.1:{port}")]);
    command.args(["--phases", "coverage,fuzzing", "--max-examples", "15", "--seed", "13"]);
    command.args([
        "--checks",
        "not_a_server_error,status_code_conformance,content_type_conformance,\
         response_schema_conformance",
    ]);
    // An event stream does not end, and its answer is not JSON; other tests read it.
    command.args(["--exclude-path", "/v1/events", "--continue-on-failure", "--no-color"]);
    command.args(["--warnings", "off", "--request-timeout", "20"]);
    let output = output_within(Duration::from_mins(5), &mut command);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
}

/// Forwards connections of a TCP port to the node's socket, because schemathesis cannot use unix sockets.
fn forward_to(socket: PathBuf) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (Ok(client), Ok(server)) = (client, UnixStream::connect(&socket)) else { continue };
            std::thread::spawn(move || copy_both(&client, &server));
        }
    });
    port
}

fn copy_both(client: &TcpStream, server: &UnixStream) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _ = std::io::copy(&mut &*client, &mut &*server);
            let _ = server.shutdown(Shutdown::Both);
        });
        let _ = std::io::copy(&mut &*server, &mut &*client);
        let _ = client.shutdown(Shutdown::Both);
    });
}
