// SPDX-License-Identifier: Apache-2.0
//! Recordings that this process makes: the changes in etcd, the documents of the nodes, and the notifications that they
//! send. Each line has the time at which it was received.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::etcd::EtcdClient;
use crate::moment::{now, pause};
use crate::{FaultsError, LabResult};

/// Time between two reads of a node's documents.
const DOCUMENT_PERIOD: Duration = Duration::from_millis(500);
/// A node that is stopped does not answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);

/// Records the changes of all keys with a prefix, as the member of a host shows them.
pub fn record_etcd(etcd: EtcdClient, prefix: &'static str, file: &Path) -> LabResult {
    let mut file = File::create(file)?;
    std::thread::spawn(move || {
        let mut next = 1;
        // `etcdctl` connects again by itself; it ends if the revisions are gone.
        loop {
            let revision = i64::to_string(&next);
            let words = ["watch", "--prefix", prefix, "-w", "json", "--rev", &revision];
            next = follow(&mut etcd.command(&words), &mut file).unwrap_or(next);
            pause(Duration::from_millis(200));
        }
    });
    Ok(())
}

/// Copies the lines of one process; returns the revision after the last one.
fn follow(command: &mut Command, file: &mut File) -> Option<i64> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().ok()?;
    let mut next = None;
    for line in BufReader::new(child.stdout.take()?).lines() {
        let Ok(Ok(answer)) = line.map(|line| serde_json::from_str::<Value>(&line)) else {
            continue;
        };
        let compacted = answer["CompactRevision"].as_i64().filter(|compacted| *compacted > 0);
        let after = answer["Header"]["revision"].as_i64().map(|at| at + 1);
        next = compacted.or(after).or(next);
        let _ = writeln!(file, "{}", json!({ "wall": now(), "answer": answer }));
    }
    let _ = child.wait();
    next
}

/// Records documents of a node, again and again. The name of a document is the end of its path.
pub fn record_documents(socket: &Path, file: &Path, paths: &'static [&'static str]) -> LabResult {
    let mut file = File::options().create(true).append(true).open(file)?;
    let socket = socket.to_owned();
    std::thread::spawn(move || {
        loop {
            for path in paths {
                let (asked, name) = (now(), path.rsplit('/').next());
                let answer = get(&socket, path).ok();
                let document = answer.and_then(|text| serde_json::from_str::<Value>(&text).ok());
                let line =
                    json!({ "wall": asked, "until": now(), "name": name, "document": document });
                let _ = writeln!(file, "{line}");
            }
            pause(DOCUMENT_PERIOD);
        }
    });
    Ok(())
}

/// The body of the answer of a node to one request.
pub fn get(socket: &Path, path: &str) -> LabResult<String> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(ANSWER_LIMIT))?;
    stream.set_write_timeout(Some(ANSWER_LIMIT))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    if head.split_whitespace().nth(1) == Some("200") {
        return Ok(body.to_owned());
    }
    Err(FaultsError(format!("{path}: {:?}", head.lines().next())))
}

/// Accepts the notifications of all nodes, and records them.
pub fn record_notifications(address: &str, file: &Path) -> LabResult {
    let listener = TcpListener::bind(address)?;
    // Each line is written at once, and appended.
    let file = Arc::new(File::options().create(true).append(true).open(file)?);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let file = Arc::clone(&file);
            std::thread::spawn(move || serve(&stream, &file));
        }
    });
    Ok(())
}

/// Answers the requests of one connection.
fn serve(mut stream: &TcpStream, mut file: &File) -> Option<()> {
    let peer = stream.peer_addr().ok()?.ip().to_string();
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    loop {
        let mut length = 0;
        let mut line = String::new();
        // The head ends with an empty line.
        while line != "\r\n" {
            line.clear();
            reader.read_line(&mut line).ok().filter(|bytes| *bytes > 0)?;
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().ok()?;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let line = format!("{}\n", json!({ "wall": now(), "peer": peer, "body": body }));
        file.write_all(line.as_bytes()).ok()?;
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").ok()?;
    }
}
