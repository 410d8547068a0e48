//! Answers questions on a unix socket: one line of JSON in, lines of JSON out.
//!
//! The socket has mode 0660 from its first moment, and who asks is checked once more by what the
//! kernel says of him. Each connection has a thread, a deadline and a limit; nobody here can hold
//! up the loop, from which only the [`StateStore`] is known.

mod answer;
mod reports;

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
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

pub use self::answer::{answer_once, troubles_json};
use crate::audit::Audit;
use crate::receiver::ReceiverHandle;
use crate::state::StateStore;

/// Questions at a time.
const CONNECTIONS: usize = 64;
/// The longest question.
const LONGEST: usize = 64 << 10;
/// How long a question may take to be asked, and an answer to be taken.
const PATIENCE: Duration = Duration::from_secs(10);

/// What answers are made of.
#[derive(Debug, Clone)]
pub struct QueryContext {
    /// What is so.
    pub store: Arc<StateStore>,
    /// Who disagrees.
    pub audit: Arc<Audit>,
    /// Where the history is.
    pub state_dir: PathBuf,
    /// Who we are.
    pub node: Arc<str>,
    /// Whether a node runs, or somebody looks for himself.
    pub source: QuerySource,
    /// What monitors have claimed, where they report to us.
    pub receiver_handle: ReceiverHandle,
}

/// Where an answer comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuerySource {
    /// A node that runs.
    Node,
    /// The kernel, asked now.
    Kernel,
}

/// Why a question is not answered; the numbers are exit codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    No = 1,
    NotPermitted = 3,
    Missing = 4,
}

/// The socket, while it is ours.
#[derive(Debug)]
pub struct QueryServer {
    file: SocketFile,
    listener: Option<UnixListener>,
    group: Option<u32>,
    context: QueryContext,
}

impl QueryServer {
    /// Makes the socket. A stale one is replaced, a live one respected.
    pub fn open(
        path: &Path,
        group: Option<u32>,
        context: QueryContext,
    ) -> Result<Self, ListenError> {
        let options = SocketOptions { mode: 0o660, user: None, group, backlog: 128 };
        let BoundSocket { listener, file } = listen_at(path, options)?;
        Ok(Self { file, listener: Some(UnixListener::from(listener)), group, context })
    }

    /// Begins to answer, on a thread of its own.
    pub fn serve(&mut self) -> io::Result<()> {
        let Some(listener) = self.listener.take() else { return Ok(()) };
        listener.set_nonblocking(false)?;
        let (context, group) = (self.context.clone(), self.group);
        spawn_worker("desk", move |heartbeat| receive(&listener, group, &context, heartbeat))?;
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

fn receive(
    listener: &UnixListener,
    group: Option<u32>,
    context: &QueryContext,
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
            // Too many files, perhaps: give others the time to close some.
            let pause = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
            let _ = poll(&mut [], Some(&pause));
            continue;
        };
        if count.fetch_add(1, Ordering::AcqRel) >= CONNECTIONS {
            count.fetch_sub(1, Ordering::AcqRel);
            let _ = say(&stream, &refusal(Why::No, "too many ask at once; try again"));
            continue;
        }
        // Given back however this ends.
        let seat = QueryConnection(Arc::clone(&count));
        let context = context.clone();
        let work = move || {
            let _seat = seat;
            // Whoever asks and goes away has had his answer.
            let _ = attend(&stream, group, &context);
        };
        // Without a thread, the next who asks may have more luck.
        let _ = std::thread::Builder::new().name("answer".to_owned()).spawn(work);
    }
}

/// One of those who may ask.
struct QueryConnection(Arc<AtomicUsize>);

impl Drop for QueryConnection {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

fn attend(stream: &UnixStream, group: Option<u32>, context: &QueryContext) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    if !is_trusted(stream, group)? {
        let text = "you may not ask: be root, or in the socket's group";
        return say(stream, &refusal(Why::NotPermitted, text));
    }
    match serde_json::from_slice::<Value>(&question(stream)?) {
        Ok(question) => answer::answer(&question, context, stream),
        Err(error) => say(stream, &refusal(Why::No, &format!("that is no question: {error}"))),
    }
}

/// The question, to the end of its line; all of it within a time.
fn question(mut stream: &UnixStream) -> io::Result<Vec<u8>> {
    let end = Instant::now() + PATIENCE;
    let mut line = Vec::new();
    let mut buffer = [0; 4096];
    while !line.contains(&b'\n') && line.len() < LONGEST {
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

/// Root, our own user, and the members of the socket's group.
fn is_trusted(stream: &UnixStream, group: Option<u32>) -> io::Result<bool> {
    let user = peer::credentials(stream)?.user;
    if user == 0 || user == rustix::process::geteuid().as_raw() {
        return Ok(true);
    }
    group.map_or(Ok(false), |group| peer::is_member(stream, group))
}

fn refusal(why: Why, text: &str) -> Value {
    json!({ "schema": "vipwatch.error/1", "error": text, "code": why as u8 })
}

/// One line.
fn say(mut stream: &UnixStream, value: &Value) -> io::Result<()> {
    stream.write_all(format!("{value}\n").as_bytes())
}
