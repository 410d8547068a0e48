//! A server on the web, as webhooks and upstreams have it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use serde_json::Value;

/// A server that takes what is posted, and answers as it is told to.
pub(crate) struct Server {
    pub(crate) url: String,
    bodies: Arc<Mutex<Vec<Value>>>,
    pub(crate) answers: Arc<Mutex<Vec<u16>>>,
}

impl Server {
    /// The first answers; 200 from then on.
    pub(crate) fn new(answers: &[u16]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/vip?secret", listener.local_addr().unwrap());
        let bodies = Arc::new(Mutex::new(Vec::new()));
        let answers = Arc::new(Mutex::new(answers.to_vec()));
        let (seen, next) = (Arc::clone(&bodies), Arc::clone(&answers));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let mut length = 0;
                loop {
                    let mut line = String::new();
                    reader.read_line(&mut line).unwrap();
                    let line = line.trim().to_lowercase();
                    if let Some(value) = line.strip_prefix("content-length:") {
                        length = value.trim().parse().unwrap();
                    }
                    if line.is_empty() {
                        break;
                    }
                }
                let mut body = vec![0; length];
                reader.read_exact(&mut body).unwrap();
                let status = next.lock().unwrap().pop().unwrap_or(200);
                if status == 200 {
                    seen.lock().unwrap().push(serde_json::from_slice(&body).unwrap());
                }
                let answer = format!(
                    "HTTP/1.1 {status} X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                );
                let _ = (&stream).write_all(answer.as_bytes());
            }
        });
        Self { url, bodies, answers }
    }

    /// What was posted and taken.
    pub(crate) fn bodies(&self) -> Vec<Value> {
        self.bodies.lock().unwrap().clone()
    }

    /// Takes everything from now on.
    pub(crate) fn take_all(&self) {
        self.answers.lock().unwrap().clear();
    }

    /// The number and the role of each.
    pub(crate) fn said(&self) -> Vec<String> {
        let bodies = self.bodies.lock().unwrap();
        bodies
            .iter()
            .map(|body| format!("{} {}", body["seq"], body["to"]).replace('"', ""))
            .collect()
    }
}
