// SPDX-License-Identifier: Apache-2.0
//! Recordings that this process makes: the changes in etcd, the documents of the nodes, and the notifications that they
//! send. Each line has the time at which it was received.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

use super::cluster_host::ClusterHost;
use crate::FaultsError;
use crate::moment::{now, pause};

/// Time between two reads of a node's documents.
const DOCUMENT_PERIOD: Duration = Duration::from_millis(500);
/// A node that is stopped does not answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);

/// Records the changes of all keys of vipwatch, as the member of a host shows them.
pub fn record_etcd(host: &ClusterHost, prefix: &str, file: &Path) -> Result<(), FaultsError> {
    let pattern = host.etcdctl(&["watch", "--prefix", prefix, "-w", "json", "--rev"]);
    let words: Vec<_> = pattern.get_args().map(ToOwned::to_owned).collect();
    let program = pattern.get_program().to_owned();
    let mut file = File::create(file)?;
    std::thread::spawn(move || {
        let mut next = 1;
        // `etcdctl` connects again by itself; it ends if the revisions are gone.
        loop {
            let mut command = Command::new(&program);
            command.env("ETCDCTL_API", "3").args(&words).arg(next.to_string());
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
            next = follow(&mut command, &mut file).unwrap_or(next);
            pause(Duration::from_millis(200));
        }
    });
    Ok(())
}

/// Copies the lines of one process; returns the revision after the last one.
fn follow(command: &mut Command, file: &mut File) -> Option<i64> {
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
pub fn record_documents(
    socket: &Path,
    file: &Path,
    paths: &'static [&'static str],
) -> Result<(), FaultsError> {
    let mut file = File::options().create(true).append(true).open(file)?;
    let socket = socket.to_owned();
    std::thread::spawn(move || {
        loop {
            for path in paths {
                let (asked, name) = (now(), path.rsplit('/').next());
                let document = get(&socket, path)
                    .ok()
                    .and_then(|text| serde_json::from_str::<Value>(&text).ok());
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
pub fn get(socket: &Path, path: &str) -> Result<String, FaultsError> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(ANSWER_LIMIT))?;
    stream.set_write_timeout(Some(ANSWER_LIMIT))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let (head, body) =
        text.split_once("\r\n\r\n").ok_or_else(|| FaultsError("no answer".to_owned()))?;
    if head.split_whitespace().nth(1) == Some("200") {
        return Ok(body.to_owned());
    }
    Err(FaultsError(format!("{path}: {}", head.lines().next().unwrap_or_default())))
}

/// Accepts the notifications of all nodes, and records them.
pub fn record_notifications(address: &str, file: &Path) -> Result<(), FaultsError> {
    let listener = TcpListener::bind(address)?;
    let file = Arc::new(Mutex::new(File::create(file)?));
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let file = Arc::clone(&file);
            std::thread::spawn(move || serve(&stream, &file));
        }
    });
    Ok(())
}

/// Answers the requests of one connection.
fn serve(stream: &TcpStream, file: &Mutex<File>) -> Option<()> {
    let peer = stream.peer_addr().ok()?.ip().to_string();
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    loop {
        let mut length = 0;
        let mut first = String::new();
        reader.read_line(&mut first).ok().filter(|bytes| *bytes > 0)?;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok().filter(|bytes| *bytes > 0)?;
            let line = line.trim().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().ok()?;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let line = json!({ "wall": now(), "peer": peer, "body": body });
        {
            let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
            writeln!(file, "{line}").ok()?;
        }
        let mut stream = stream;
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").ok()?;
    }
}
