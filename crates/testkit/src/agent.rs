//! An agent that can misbehave in every known way.
//!
//! It is a listener on the monitor's socket that writes down what it hears. By default it
//! answers as Neutron's own server has since release 27, to the byte.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::wait::wait_for;

/// How it behaves towards the next request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// As Neutron 27 and later: malformed headers, no blank line.
    Threaded,
    /// As Neutron up to 26: proper HTTP.
    Eventlet,
    /// Takes the connection, reads, and never answers.
    Hang,
    /// Takes the connection and closes it unread: the peer sees a reset.
    Reset,
    /// Reads and closes without a word.
    Close,
    /// Answers with something that is not HTTP.
    Garbage,
    /// Answers with this status.
    Status(u16),
    /// Answers properly, in pieces of one byte.
    Dribble,
}

/// One request, as it was heard.
#[derive(Debug, Clone)]
pub struct Letter {
    /// When it was read.
    pub at: Instant,
    /// The whole request.
    pub request: String,
    /// How it was answered.
    pub manner: Manner,
}

impl Letter {
    /// A header's value, by its name in any case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.request.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    /// The word it brought.
    pub fn word(&self) -> &str {
        self.header("X-Neutron-State").unwrap_or("none")
    }

    /// The router it is about.
    pub fn router(&self) -> &str {
        self.header("X-Neutron-Router-Id").unwrap_or("none")
    }
}

#[derive(Debug)]
struct Shared {
    letters: Mutex<Vec<Letter>>,
    arrived: Condvar,
    manner: Mutex<Manner>,
    /// Connections that are kept waiting.
    hanging: Mutex<Vec<UnixStream>>,
    is_over: AtomicBool,
}

/// A listener on `<directory>/keepalived-state-change`, until dropped.
#[derive(Debug)]
pub struct Agent {
    path: PathBuf,
    listener: UnixListener,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// What becomes of the socket file when the agent goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leftover {
    /// Removed, as a tidy agent does.
    Nothing,
    /// Left behind, refusing connections, as a killed agent does.
    DeadSocket,
}

impl Agent {
    /// Starts to listen in `directory`, replacing a dead socket.
    pub fn listen(directory: &Path, manner: Manner) -> Self {
        let path = directory.join("keepalived-state-change");
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).expect("the agent's socket");
        Self::serve(path, listener, manner)
    }

    /// An agent that nobody can reach, to stand where one is missing.
    pub fn nowhere() -> Self {
        let directory = tempfile::tempdir().expect("a scratch directory");
        Self::listen(directory.path(), Manner::Threaded)
    }

    fn serve(path: PathBuf, listener: UnixListener, manner: Manner) -> Self {
        let shared = Arc::new(Shared {
            letters: Mutex::default(),
            arrived: Condvar::new(),
            manner: Mutex::new(manner),
            hanging: Mutex::default(),
            is_over: AtomicBool::new(false),
        });
        let thread = std::thread::spawn({
            let shared = Arc::clone(&shared);
            let listener = listener.try_clone().expect("another handle on the socket");
            move || {
                for stream in listener.incoming() {
                    if shared.is_over.load(Ordering::Acquire) {
                        return;
                    }
                    if let Ok(stream) = stream {
                        answer(stream, &shared);
                    }
                }
            }
        });
        Self { path, listener, shared, thread: Some(thread) }
    }

    /// From now on it behaves like this; who was kept waiting is let go.
    pub fn behave(&self, manner: Manner) {
        *self.shared.manner.lock().expect("no panic holds this lock") = manner;
        self.shared.hanging.lock().expect("no panic holds this lock").clear();
    }

    /// Everything heard so far.
    pub fn letters(&self) -> Vec<Letter> {
        self.shared.letters.lock().expect("no panic holds this lock").clone()
    }

    /// How many requests were heard so far.
    pub fn count(&self) -> usize {
        self.shared.letters.lock().expect("no panic holds this lock").len()
    }

    /// The last request heard.
    pub fn last(&self) -> Option<Letter> {
        self.shared.letters.lock().expect("no panic holds this lock").last().cloned()
    }

    /// Waits, without looking, for the next request that says `word`.
    pub fn wait_for_next(&self, word: &str, limit: Duration) -> Option<Letter> {
        let letters = self.shared.letters.lock().expect("no panic holds this lock");
        let is_there =
            |letters: &mut Vec<Letter>| letters.last().is_none_or(|letter| letter.word() != word);
        let (letters, _) = self
            .shared
            .arrived
            .wait_timeout_while(letters, limit, is_there)
            .expect("no panic holds this lock");
        letters.last().filter(|letter| letter.word() == word).cloned()
    }

    /// The words heard so far, in order.
    pub fn words(&self) -> Vec<String> {
        self.letters().iter().map(|letter| letter.word().to_owned()).collect()
    }

    /// Waits until the words heard are exactly `words`.
    #[track_caller]
    pub fn wait_for_words(&self, words: &[&str]) {
        wait_for(
            &format!("the agent to hear {words:?}; it heard {:?} so far", self.words()),
            || (self.words() == words).then_some(()),
        );
    }

    /// Waits until the last word heard is `word`.
    #[track_caller]
    pub fn wait_for_word(&self, word: &str) -> Letter {
        wait_for(&format!("the agent to hear {word}"), || {
            self.letters().pop().filter(|letter| letter.word() == word)
        })
    }

    /// Ends it, and says what becomes of its socket.
    pub fn stop(mut self, leftover: Leftover) {
        self.end();
        if leftover == Leftover::DeadSocket {
            // The path must outlive the drop.
            self.path = PathBuf::new();
        }
    }

    fn end(&mut self) {
        self.shared.is_over.store(true, Ordering::Release);
        // Wakes the thread from its wait for the next caller.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.end();
        }
        let _ = std::fs::remove_file(&self.path);
    }
}

fn answer(mut stream: UnixStream, shared: &Shared) {
    let manner = *shared.manner.lock().expect("no panic holds this lock");
    if manner == Manner::Reset {
        return;
    }
    let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
    // Once, as the real one does: a request in two pieces would be half heard.
    let mut buffer = [0; 4096];
    let Ok(length @ 1..) = stream.read(&mut buffer) else {
        return;
    };
    let request = String::from_utf8_lossy(&buffer[..length]).into_owned();
    let letter = Letter { at: Instant::now(), request, manner };
    shared.letters.lock().expect("no panic holds this lock").push(letter);
    shared.arrived.notify_all();
    let proper = "HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=UTF-8\r\nContent-Length: 0\r\n\
                  Date: Sun, 15 Nov 2026 00:00:00 GMT\r\nConnection: close\r\n\r\n";
    // A monitor that hung up is what some tests are about.
    let _ = match manner {
        Manner::Threaded => stream.write_all(
            b"HTTP/1.1 200 OK\nContent-Type: text/plain; charset=UTF-8\nConnection: close\n\
              Content-Location': http://127.0.0.1/",
        ),
        Manner::Eventlet => stream.write_all(proper.as_bytes()),
        Manner::Dribble => proper.bytes().try_for_each(|byte| stream.write_all(&[byte])),
        Manner::Garbage => stream.write_all(b"\x00\xffnot http at all\n"),
        Manner::Status(code) => stream
            .write_all(format!("HTTP/1.1 {code} Whatever\r\nContent-Length: 0\r\n\r\n").as_bytes()),
        Manner::Hang => {
            shared.hanging.lock().expect("no panic holds this lock").push(stream);
            return;
        }
        Manner::Close | Manner::Reset => Ok(()),
    };
}
