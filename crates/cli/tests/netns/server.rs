//! A server on the web, as webhooks and upstreams have it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};

use serde_json::Value;

/// A server that takes what is posted, and answers as it is told to.
pub(crate) struct Server {
    pub(crate) url: String,
    address: SocketAddr,
    bodies: Arc<Mutex<Vec<Value>>>,
    /// The last post, whatever the answer to it was.
    last: Arc<Mutex<Option<Value>>>,
    pub(crate) answers: Arc<Mutex<Vec<u16>>>,
    rejected: Arc<Mutex<Option<String>>>,
    /// Whether requests are answered.
    gate: Arc<(Mutex<bool>, Condvar)>,
}

impl Server {
    /// The first answers; 200 from then on.
    pub(crate) fn new(answers: &[u16]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let url = format!("http://{address}/vip?secret");
        let bodies = Arc::new(Mutex::new(Vec::new()));
        let answers = Arc::new(Mutex::new(answers.to_vec()));
        let last = Arc::new(Mutex::new(None));
        let (seen, next) = (Arc::clone(&bodies), Arc::clone(&answers));
        let latest = Arc::clone(&last);
        let rejected = Arc::new(Mutex::new(None::<String>));
        let unwanted = Arc::clone(&rejected);
        let gate = Arc::new((Mutex::new(true), Condvar::new()));
        let open = Arc::clone(&gate);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // Who was killed while posting has posted nothing, and is told nothing.
                let Some(body) = posted(&stream) else { continue };
                drop(open.1.wait_while(open.0.lock().unwrap(), |is_open| !*is_open).unwrap());
                let mut status = next.lock().unwrap().pop().unwrap_or(200);
                let text = String::from_utf8_lossy(&body);
                if status == 200
                    && unwanted.lock().unwrap().as_ref().is_some_and(|word| text.contains(word))
                {
                    status = 400;
                }
                let body: Value = serde_json::from_slice(&body).unwrap();
                if status == 200 {
                    seen.lock().unwrap().push(body.clone());
                }
                *latest.lock().unwrap() = Some(body);
                let answer = format!(
                    "HTTP/1.1 {status} X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                );
                let _ = (&stream).write_all(answer.as_bytes());
            }
        });
        Self { url, address, bodies, last, answers, rejected, gate }
    }

    /// As [`Self::new`], and answers no request before [`Self::open`].
    pub(crate) fn shut(answers: &[u16]) -> Self {
        let server = Self::new(answers);
        *server.gate.0.lock().unwrap() = false;
        server
    }

    /// Answers the requests that wait, and all others.
    pub(crate) fn open(&self) {
        *self.gate.0.lock().unwrap() = true;
        self.gate.1.notify_all();
    }

    /// Rejects, with 400, what contains `text` and would be taken.
    pub(crate) fn reject_whatever_contains(&self, text: &str) {
        *self.rejected.lock().unwrap() = Some(text.to_owned());
    }

    /// What was posted and taken.
    pub(crate) fn bodies(&self) -> Vec<Value> {
        self.bodies.lock().unwrap().clone()
    }

    /// Takes everything that is posted from now on.
    pub(crate) fn take_all(&self) {
        self.answer_who_came_before();
        self.answers.lock().unwrap().clear();
    }

    /// Somebody who was killed may have left a whole post in the queue. It is answered as posts of
    /// his time were: the queue is served in order, so when we are seen off, he was.
    fn answer_who_came_before(&self) {
        let mut last = TcpStream::connect(self.address).unwrap();
        last.shutdown(Shutdown::Write).unwrap();
        last.read_to_end(&mut Vec::new()).unwrap();
    }

    /// The number and the role of each.
    pub(crate) fn said(&self) -> Vec<String> {
        self.bodies.lock().unwrap().iter().map(brief).collect()
    }

    /// The number and the role of the last post, also if it was refused.
    pub(crate) fn last_post(&self) -> Option<String> {
        self.last.lock().unwrap().as_ref().map(brief)
    }
}

fn brief(body: &Value) -> String {
    format!("{} {}", body["seq"], body["to"]).replace('"', "")
}

/// The body of a request, unless its sender was gone before its end.
fn posted(stream: &TcpStream) -> Option<Vec<u8>> {
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
