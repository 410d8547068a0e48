//! An agent that can misbehave in every known way, and remembers what it heard: `vipwatch agent --simulate`
//! inside the test.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub use vipwatch_receiver::simulate::Behaviour;
use vipwatch_receiver::simulate::{CurrentBehaviour, RequestCallback, serve};

use crate::wait::wait_showing;

/// One request, as it was heard.
#[derive(Debug, Clone)]
pub struct AgentRequest {
    /// When it was read.
    pub at: Instant,
    /// The whole request.
    pub request: String,
    /// How it was answered.
    pub manner: Behaviour,
}

impl AgentRequest {
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

#[derive(Debug, Default)]
struct Shared {
    letters: Mutex<Vec<AgentRequest>>,
    arrived: Condvar,
}

/// A listener on `<directory>/keepalived-state-change`, until dropped.
#[derive(Debug)]
pub struct FakeAgent {
    path: PathBuf,
    listener: UnixListener,
    shared: Arc<Shared>,
    mood: Arc<CurrentBehaviour>,
    thread: Option<JoinHandle<()>>,
}

/// What becomes of the socket file when the agent goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocketRemains {
    /// Removed, as a tidy agent does.
    Nothing,
    /// Left behind, refusing connections, as a killed agent does.
    DeadSocket,
}

impl FakeAgent {
    /// Starts to listen in `directory`, replacing a dead socket.
    pub fn listen(directory: &Path, manner: Behaviour) -> Self {
        let path = directory.join("keepalived-state-change");
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).expect("the agent's socket");
        Self::serve(path, listener, manner)
    }

    /// An agent that nobody can reach, to stand where one is missing.
    pub fn nowhere() -> Self {
        let directory = tempfile::tempdir().expect("a scratch directory");
        Self::listen(directory.path(), Behaviour::Threaded)
    }

    fn serve(path: PathBuf, listener: UnixListener, manner: Behaviour) -> Self {
        let (shared, mood) = (Arc::<Shared>::default(), Arc::new(CurrentBehaviour::new(manner)));
        let theirs = Arc::clone(&shared);
        let heard: Arc<RequestCallback> = Arc::new(move |bytes: &[u8], manner| {
            let request = String::from_utf8_lossy(bytes).into_owned();
            let letter = AgentRequest { at: Instant::now(), request, manner };
            theirs.letters.lock().expect("no panic holds this lock").push(letter);
            theirs.arrived.notify_all();
        });
        let again = OwnedFd::from(listener.try_clone().expect("another handle on the socket"));
        let moods = Arc::clone(&mood);
        let thread = std::thread::spawn(move || {
            // It ends when the socket is shut down.
            let _ = serve(again, &moods, &heard);
        });
        Self { path, listener, shared, mood, thread: Some(thread) }
    }

    /// From now on it behaves like this; who was kept waiting is let go.
    pub fn behave(&self, manner: Behaviour) {
        self.mood.set(manner);
    }

    /// Everything heard so far.
    pub fn letters(&self) -> Vec<AgentRequest> {
        self.shared.letters.lock().expect("no panic holds this lock").clone()
    }

    /// How many requests were heard so far.
    pub fn count(&self) -> usize {
        self.shared.letters.lock().expect("no panic holds this lock").len()
    }

    /// The last request heard.
    pub fn last(&self) -> Option<AgentRequest> {
        self.shared.letters.lock().expect("no panic holds this lock").last().cloned()
    }

    /// Waits, without looking, for the next request that says `word`.
    pub fn wait_for_next(&self, word: &str, limit: Duration) -> Option<AgentRequest> {
        let letters = self.shared.letters.lock().expect("no panic holds this lock");
        let is_there = |letters: &mut Vec<AgentRequest>| {
            letters.last().is_none_or(|letter| letter.word() != word)
        };
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
        wait_showing(
            &format!("the agent to hear {words:?}"),
            || self.heard(),
            || (self.words() == words).then_some(()),
        );
    }

    /// Waits until the last word heard is `word`.
    #[track_caller]
    pub fn wait_for_word(&self, word: &str) -> AgentRequest {
        wait_showing(
            &format!("the agent to hear {word}"),
            || self.heard(),
            || self.last().filter(|letter| letter.word() == word),
        )
    }

    /// The words heard so far, for a message.
    fn heard(&self) -> String {
        format!("it heard {:?}", self.words())
    }

    /// Ends it, and says what becomes of its socket.
    pub fn stop(mut self, leftover: SocketRemains) {
        self.end();
        if leftover == SocketRemains::DeadSocket {
            // The path must outlive the drop.
            self.path = PathBuf::new();
        }
    }

    fn end(&mut self) {
        // Wakes the thread from its wait for the next caller.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        self.mood.set(Behaviour::Closing);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for FakeAgent {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.end();
        }
        let _ = std::fs::remove_file(&self.path);
    }
}
