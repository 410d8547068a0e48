//! Answers queries on a unix socket: the question is one line of JSON, the answer one or more lines of JSON.
//!
//! The socket has mode 0660 from its creation on, and the server also checks the user and groups of each client, which
//! the kernel reports. Each connection has a thread, a deadline and a limit. No client can delay the main loop, because
//! the threads read only the published state.

mod answer;
mod reports;

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};
use vipwatch_linux::listen::{
    BoundSocket, ListenError, SocketFile, SocketFileLost, SocketOptions, listen_at,
};
use vipwatch_linux::peer;
use vipwatch_linux::worker::{Heartbeat, beat_every, spawn_worker};

pub use self::answer::{answer_once, problems_json};
use crate::view::ApiContext;

/// Maximum number of connections at a time.
const MAX_CONNECTIONS: usize = 64;
/// Maximum length of a question in bytes.
const MAX_QUESTION_BYTES: usize = 64 << 10;
/// Maximum time to read the whole question, and for each write of the answer.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a question is refused; the numbers are exit codes of the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RefusalReason {
    Failed = 1,
    NotPermitted = 3,
    Missing = 4,
}

/// The query socket of this process; dropping it removes the socket file.
#[derive(Debug)]
pub struct QueryServer {
    file: SocketFile,
    listener: Option<UnixListener>,
    group: Option<u32>,
    context: ApiContext,
}

impl QueryServer {
    /// Creates the socket. A stale socket file is replaced; it is an error if another process listens on it.
    pub fn open(path: &Path, group: Option<u32>, context: ApiContext) -> Result<Self, ListenError> {
        let options = SocketOptions { mode: 0o660, user: None, group, backlog: 128 };
        let BoundSocket { listener, file } = listen_at(path, options)?;
        Ok(Self { file, listener: Some(UnixListener::from(listener)), group, context })
    }

    /// Starts the thread that accepts connections.
    pub fn serve(&mut self) -> io::Result<()> {
        let Some(listener) = self.listener.take() else { return Ok(()) };
        listener.set_nonblocking(false)?;
        let (context, group) = (self.context.clone(), self.group);
        spawn_worker("query", move |heartbeat| {
            accept_clients(&listener, group, &context, heartbeat)
        })?;
        Ok(())
    }
}

impl QueryServer {
    /// Whether the socket's file is still the one that this process has made.
    pub fn check_socket(&self) -> Result<(), SocketFileLost> {
        self.file.check()
    }
}

impl Drop for QueryServer {
    fn drop(&mut self) {
        self.file.remove();
    }
}

fn accept_clients(
    listener: &UnixListener,
    group: Option<u32>,
    context: &ApiContext,
    heartbeat: &Heartbeat,
) -> ! {
    let count = Arc::new(AtomicUsize::new(0));
    loop {
        heartbeat.beat();
        let limit = Timespec::try_from(beat_every()).ok();
        let mut polled = [PollFd::new(listener, PollFlags::IN)];
        if !poll(&mut polled, limit.as_ref()).is_ok_and(|ready| ready > 0) {
            continue;
        }
        let Ok((stream, _)) = listener.accept() else {
            // Perhaps too many open files: wait until other connections are closed.
            let pause = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
            let _ = poll(&mut [], Some(&pause));
            continue;
        };
        if count.fetch_add(1, Ordering::AcqRel) >= MAX_CONNECTIONS {
            count.fetch_sub(1, Ordering::AcqRel);
            let _ = write_line(
                &stream,
                &refusal(RefusalReason::Failed, "too many connections; try again"),
            );
            continue;
        }
        // Decrements the count when the thread ends, also after a panic.
        let slot = ConnectionSlot(Arc::clone(&count));
        let context = context.clone();
        let work = move || {
            let _slot = slot;
            // An error means that the client has closed the connection.
            let _ = serve_client(&stream, group, &context);
        };
        // If no thread can be started, the connection is closed, and the client may try again.
        let _ = std::thread::Builder::new().name("answer".to_owned()).spawn(work);
    }
}

/// One of the [`MAX_CONNECTIONS`] connections; dropping it decrements the count.
struct ConnectionSlot(Arc<AtomicUsize>);

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

fn serve_client(stream: &UnixStream, group: Option<u32>, context: &ApiContext) -> io::Result<()> {
    stream.set_write_timeout(Some(CLIENT_TIMEOUT))?;
    if !is_trusted(stream, group)? {
        let text = "not permitted: only root and members of the socket's group may query";
        return write_line(stream, &refusal(RefusalReason::NotPermitted, text));
    }
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

/// Whether the client may query: root, the user of this process, and the members of the socket's group.
fn is_trusted(stream: &UnixStream, group: Option<u32>) -> io::Result<bool> {
    let user = peer::credentials(stream)?.user;
    if user == 0 || user == rustix::process::geteuid().as_raw() {
        return Ok(true);
    }
    group.map_or(Ok(false), |group| peer::is_member(stream, group))
}

fn refusal(reason: RefusalReason, text: &str) -> Value {
    json!({ "schema": "vipwatch.error/1", "error": text, "code": reason as u8 })
}

/// Writes one line.
fn write_line(mut stream: &UnixStream, value: &Value) -> io::Result<()> {
    stream.write_all(format!("{value}\n").as_bytes())
}
