//! Answers queries on a unix socket: the question is one line of JSON, the answer one or more lines of JSON.
//!
//! The API server hands over the connections of clients that use this protocol. Each has a thread and a deadline.

mod answer;
mod reports;

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

pub use self::answer::{answer_once, problems_json};
use crate::view::ApiContext;

/// Maximum length of a question in bytes.
const MAX_QUESTION_BYTES: usize = 64 << 10;
/// Maximum time to read the whole question, and for each write of the answer.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a question is refused; the numbers are exit codes of the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RefusalReason {
    Failed = 1,
    Missing = 4,
}

/// Answers one question on a thread of its own, and keeps `guard` until the answer is sent.
pub fn answer_connection(stream: UnixStream, context: ApiContext, guard: impl Send + 'static) {
    let work = move || {
        let _guard = guard;
        // An error means that the client has closed the connection.
        let _ = stream.set_nonblocking(false).and_then(|()| serve_client(&stream, &context));
    };
    // If no thread can be started, the connection is closed, and the client may try again.
    let _ = std::thread::Builder::new().name("answer".to_owned()).spawn(work);
}

fn serve_client(stream: &UnixStream, context: &ApiContext) -> io::Result<()> {
    stream.set_write_timeout(Some(CLIENT_TIMEOUT))?;
    match serde_json::from_slice::<Value>(&read_question(stream)?) {
        Ok(question) => answer::answer(&question, context, stream),
        Err(error) => write_line(
            stream,
            &refusal(RefusalReason::Failed, &format!("invalid question: {error}")),
        ),
    }
}

/// Reads the question up to the end of its line, within [`CLIENT_TIMEOUT`].
fn read_question(mut stream: &UnixStream) -> io::Result<Vec<u8>> {
    let end = Instant::now() + CLIENT_TIMEOUT;
    let mut line = Vec::new();
    let mut buffer = [0; 4096];
    while !line.contains(&b'\n') && line.len() < MAX_QUESTION_BYTES {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut buffer)? {
            0 => break,
            length => line.extend_from_slice(&buffer[..length]),
        }
    }
    Ok(line)
}

fn refusal(reason: RefusalReason, text: &str) -> Value {
    json!({ "schema": "vipwatch.error/1", "error": text, "code": reason as u8 })
}

/// Writes one line.
fn write_line(mut stream: &UnixStream, value: &Value) -> io::Result<()> {
    stream.write_all(format!("{value}\n").as_bytes())
}
