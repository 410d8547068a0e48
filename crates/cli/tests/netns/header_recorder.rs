// SPDX-License-Identifier: Apache-2.0
//! A test HTTP server that records the headers of requests.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

/// An HTTP server that answers every request with the same text and records the request headers.
pub(crate) struct HeaderRecorder {
    pub(crate) url: String,
    heads: Arc<Mutex<Vec<String>>>,
}

impl HeaderRecorder {
    /// A server that accepts every request.
    pub(crate) fn accepting() -> Self {
        Self::new("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    }

    pub(crate) fn new(answer: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let heads = Arc::new(Mutex::new(Vec::new()));
        let (recorded, answer) = (Arc::clone(&heads), answer.to_owned());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let lines = BufReader::new(&stream).lines().map_while(Result::ok);
                let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
                recorded.lock().unwrap().push(head.join("\n"));
                let _ = (&stream).write_all(answer.as_bytes());
            }
        });
        Self { url, heads }
    }

    pub(crate) fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }
}
