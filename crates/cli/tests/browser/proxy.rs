// SPDX-License-Identifier: Apache-2.0
//! A proxy before a node, which answers some requests itself, so that the page alone is tested.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

/// What the proxy does with a request.
pub(crate) enum Verdict {
    /// The node answers.
    Forward,
    /// The proxy answers with this status and this problem document.
    Problem(&'static str, &'static str),
    /// No answer: the connection stays open until the page closes it.
    Hold,
}

/// Starts a proxy. `decide` receives the head of each request.
pub(crate) fn start(
    node: SocketAddr,
    decide: impl Fn(&str) -> Verdict + Send + Sync + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let decide = Arc::new(decide);
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let decide = Arc::clone(&decide);
            thread::spawn(move || serve(client, node, &*decide));
        }
    });
    address
}

/// Serves one request, then closes the connection.
fn serve(mut client: TcpStream, node: SocketAddr, decide: &dyn Fn(&str) -> Verdict) {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        match client.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            _ => return,
        }
    }
    let head = String::from_utf8(head).unwrap();
    match decide(&head) {
        Verdict::Forward => forward(client, node, &head),
        Verdict::Problem(status, body) => {
            let answer = format!(
                "HTTP/1.1 {status}\r\ncontent-type: application/problem+json\r\ncontent-length: {}\r\n\
                 connection: close\r\n\r\n{body}",
                body.len()
            );
            let _ = client.write_all(answer.as_bytes());
            let _ = client.shutdown(Shutdown::Write);
        }
        Verdict::Hold => {
            let _ = client.read(&mut byte);
        }
    }
}

fn forward(mut client: TcpStream, node: SocketAddr, head: &str) {
    let Ok(mut upstream) = TcpStream::connect(node) else { return };
    let head = head.replace("Connection: keep-alive", "Connection: close");
    if upstream.write_all(head.as_bytes()).is_ok() {
        let _ = std::io::copy(&mut upstream, &mut client);
    }
}
