// SPDX-License-Identifier: Apache-2.0
//! A test HTTP server that records the JSON bodies that webhooks and upstreams post.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};

use serde_json::Value;

/// The handle of a server thread, which runs until the test process ends.
pub(crate) struct HttpServer {
    pub(crate) url: String,
    address: SocketAddr,
    shared: Arc<Shared>,
}

/// The state that the test and the server thread share.
#[derive(Default)]
struct Shared {
    /// The bodies of the requests that were answered with 200.
    accepted: Mutex<Vec<Value>>,
    /// The body of the last request, whatever its status was.
    last: Mutex<Option<Value>>,
    /// Statuses of the next answers, the next one last; 200 when empty.
    statuses: Mutex<Vec<u16>>,
    /// Bodies that contain this text are answered with 400 instead of 200.
    rejected_text: Mutex<Option<String>>,
    is_paused: Mutex<bool>,
    resumed: Condvar,
}

impl HttpServer {
    /// A server that uses up `statuses`, the last one first, and then answers 200.
    pub(crate) fn new(statuses: &[u16]) -> Self {
        Self::on("127.0.0.1", statuses)
    }

    /// As [`Self::new`], on an address of the calling thread's network namespace.
    pub(crate) fn on(host: &str, statuses: &[u16]) -> Self {
        let listener = TcpListener::bind((host, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let url = format!("http://{address}/vip?secret");
        let shared =
            Arc::new(Shared { statuses: Mutex::new(statuses.to_vec()), ..Shared::default() });
        let thread = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                thread.serve(&stream);
            }
        });
        Self { url, address, shared }
    }

    /// As [`Self::new`], but answers no request before [`Self::resume`].
    pub(crate) fn paused(statuses: &[u16]) -> Self {
        let server = Self::new(statuses);
        *server.shared.is_paused.lock().unwrap() = true;
        server
    }

    /// Answers the waiting requests and all later ones.
    pub(crate) fn resume(&self) {
        *self.shared.is_paused.lock().unwrap() = false;
        self.shared.resumed.notify_all();
    }

    /// Answers 400 instead of 200 to each request that contains `text` in its body.
    pub(crate) fn reject_bodies_with(&self, text: &str) {
        *self.shared.rejected_text.lock().unwrap() = Some(text.to_owned());
    }

    /// Answers these statuses next, the last one first.
    pub(crate) fn answer_next(&self, statuses: &[u16]) {
        self.shared.statuses.lock().unwrap().extend(statuses);
    }

    /// The number of prepared statuses that are not used up. It decreases with each request.
    pub(crate) fn statuses_left(&self) -> usize {
        self.shared.statuses.lock().unwrap().len()
    }

    /// Answers all requests from now on with 200.
    pub(crate) fn accept_all(&self) {
        self.drain_backlog();
        self.shared.statuses.lock().unwrap().clear();
    }

    /// Waits until the server has answered the requests in its backlog. A process that was killed may have left a
    /// complete request there. The server serves connections in order, so when this connection is closed, all
    /// earlier ones were served.
    fn drain_backlog(&self) {
        let mut last = TcpStream::connect(self.address).unwrap();
        last.shutdown(Shutdown::Write).unwrap();
        last.read_to_end(&mut Vec::new()).unwrap();
    }

    pub(crate) fn accepted_bodies(&self) -> Vec<Value> {
        self.shared.accepted.lock().unwrap().clone()
    }

    /// The role of each accepted body.
    pub(crate) fn accepted(&self) -> Vec<String> {
        self.shared.accepted.lock().unwrap().iter().map(summary).collect()
    }

    /// The sequence number of the last request, also if it was refused.
    pub(crate) fn last_seq(&self) -> Option<i64> {
        self.shared.last.lock().unwrap().as_ref()?["seq"].as_i64()
    }
}

impl Shared {
    fn serve(&self, stream: &TcpStream) {
        // A client that was killed while it sent its request gets no answer.
        let Some(body) = read_body(stream) else { return };
        let is_paused = self.is_paused.lock().unwrap();
        drop(self.resumed.wait_while(is_paused, |is_paused| *is_paused).unwrap());
        let mut status = self.statuses.lock().unwrap().pop().unwrap_or(200);
        let text = String::from_utf8_lossy(&body);
        let rejected_text = self.rejected_text.lock().unwrap().clone();
        if status == 200 && rejected_text.is_some_and(|rejected| text.contains(&rejected)) {
            status = 400;
        }
        let body: Value = serde_json::from_slice(&body).unwrap();
        if status == 200 {
            self.accepted.lock().unwrap().push(body.clone());
        }
        *self.last.lock().unwrap() = Some(body);
        let answer =
            format!("HTTP/1.1 {status} X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        let _ = (&*stream).write_all(answer.as_bytes());
    }
}

fn summary(body: &Value) -> String {
    body["to"].as_str().unwrap_or_default().to_owned()
}

/// The body of a request; `None` if the connection ended before the end of the request.
fn read_body(stream: &TcpStream) -> Option<Vec<u8>> {
    let mut reader = BufReader::new(stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let line = line.trim().to_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        if line.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(body)
}
