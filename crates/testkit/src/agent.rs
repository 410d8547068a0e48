// SPDX-License-Identifier: Apache-2.0
//! A fake Neutron agent inside the test, with the behaviours of `vipwatch simulate-agent`. It records
//! every request.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub use vipwatch_receiver::simulate::Behaviour;
use vipwatch_receiver::simulate::{CurrentBehaviour, RequestCallback, serve};

use crate::wait::wait_showing;

/// A request that the agent has received.
#[derive(Debug, Clone)]
pub struct AgentRequest {
    /// When it was read.
    pub at: Instant,
    /// The bytes of the request, as text.
    pub request: String,
    /// How the agent answered it.
    pub behaviour: Behaviour,
}

impl AgentRequest {
    /// The value of a header; `name` may have any case. `None` if the request does not have it.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.request.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    /// The reported state, such as `primary`; `none` without a state.
    pub fn word(&self) -> &str {
        self.header("X-Neutron-State").unwrap_or("none")
    }

    /// The id of the reported router; `none` without an id.
    pub fn router(&self) -> &str {
        self.header("X-Neutron-Router-Id").unwrap_or("none")
    }
}

/// The requests, which the server's threads add and the test reads.
#[derive(Debug, Default)]
struct RequestLog {
    requests: Mutex<Vec<AgentRequest>>,
    added: Condvar,
}

impl RequestLog {
    fn lock(&self) -> MutexGuard<'_, Vec<AgentRequest>> {
        self.requests.lock().expect("no thread panics with this lock")
    }
}

/// A server on `<directory>/keepalived-state-change`. Dropping it stops the server and removes the socket file.
#[derive(Debug)]
pub struct FakeAgent {
    path: PathBuf,
    listener: UnixListener,
    log: Arc<RequestLog>,
    behaviour: Arc<CurrentBehaviour>,
    thread: Option<JoinHandle<()>>,
}

/// What [`FakeAgent::stop`] leaves of the socket file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocketRemains {
    /// The file is removed, as by an agent that is stopped.
    Nothing,
    /// The file stays and refuses connections, as after an agent that is killed.
    DeadSocket,
}

impl FakeAgent {
    /// Listens in `directory`, and replaces an existing socket file.
    pub fn listen(directory: &Path, behaviour: Behaviour) -> Self {
        let path = directory.join("keepalived-state-change");
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).expect("bind the agent's socket");
        Self::serve(path, listener, behaviour)
    }

    /// An agent in a directory that is deleted at once, so that no monitor can reach it. It takes the place of
    /// an agent where a test has none.
    pub fn unreachable() -> Self {
        let directory = tempfile::tempdir().expect("create a temporary directory");
        Self::listen(directory.path(), Behaviour::Threaded)
    }

    fn serve(path: PathBuf, listener: UnixListener, behaviour: Behaviour) -> Self {
        let log = Arc::<RequestLog>::default();
        let writer = Arc::clone(&log);
        let on_request: Arc<RequestCallback> = Arc::new(move |bytes: &[u8], behaviour| {
            let request = String::from_utf8_lossy(bytes).into_owned();
            writer.lock().push(AgentRequest { at: Instant::now(), request, behaviour });
            writer.added.notify_all();
        });
        let socket = OwnedFd::from(listener.try_clone().expect("duplicate the socket"));
        let behaviour = Arc::new(CurrentBehaviour::new(behaviour));
        let current = Arc::clone(&behaviour);
        let thread = std::thread::spawn(move || {
            // It returns an error when the socket is shut down.
            let _ = serve(socket, &current, &on_request);
        });
        Self { path, listener, log, behaviour, thread: Some(thread) }
    }

    /// Answers later requests with `behaviour`, and closes connections that hang.
    pub fn set_behaviour(&self, behaviour: Behaviour) {
        self.behaviour.set(behaviour);
    }

    /// All requests so far.
    pub fn requests(&self) -> Vec<AgentRequest> {
        self.log.lock().clone()
    }

    /// Number of requests so far.
    pub fn count(&self) -> usize {
        self.log.lock().len()
    }

    /// The last request; `None` if there was none.
    pub fn last(&self) -> Option<AgentRequest> {
        self.log.lock().last().cloned()
    }

    /// Waits, without polling, until the last request reports `word`; `None` after `limit`.
    pub fn wait_for_next(&self, word: &str, limit: Duration) -> Option<AgentRequest> {
        let is_missing = |requests: &mut Vec<AgentRequest>| {
            requests.last().is_none_or(|request| request.word() != word)
        };
        let (requests, _) = self
            .log
            .added
            .wait_timeout_while(self.log.lock(), limit, is_missing)
            .expect("no thread panics with this lock");
        requests.last().filter(|request| request.word() == word).cloned()
    }

    /// The reported states so far, in order.
    pub fn words(&self) -> Vec<String> {
        self.requests().iter().map(|request| request.word().to_owned()).collect()
    }

    /// Waits until the reported states are exactly `words`.
    #[track_caller]
    pub fn wait_for_words(&self, words: &[&str]) {
        wait_showing(
            &format!("the agent to receive {words:?}"),
            || self.diagnostics(),
            || (self.words() == words).then_some(()),
        );
    }

    /// Waits until the last reported state is `word`.
    #[track_caller]
    pub fn wait_for_word(&self, word: &str) -> AgentRequest {
        wait_showing(
            &format!("the agent to receive {word}"),
            || self.diagnostics(),
            || self.last().filter(|request| request.word() == word),
        )
    }

    fn diagnostics(&self) -> String {
        format!("the agent has received {:?}", self.words())
    }

    /// Stops the server.
    pub fn stop(mut self, remains: SocketRemains) {
        self.end();
        if remains == SocketRemains::DeadSocket {
            // Dropping the agent removes the file at this path.
            self.path = PathBuf::new();
        }
    }

    fn end(&mut self) {
        // Ends the server's `accept`.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        self.behaviour.set(Behaviour::Closing);
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
