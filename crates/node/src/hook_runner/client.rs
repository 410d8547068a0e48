// SPDX-License-Identifier: Apache-2.0
//! The node's side: asks the runner to run a hook, and starts a runner if none is configured.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use vipwatch_core::ErrorChain;
use vipwatch_linux::passed_socket;

use super::protocol::{self, RefusalReason, RunAnswer, RunRequest, RunResult};
use crate::config::Config;
use crate::state::StateStore;
use vipwatch_core::FindingKind;

/// How long the runner may take to accept a connection and a request.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the answer may take after the time limit of the hook.
const ANSWER_DELAY: Duration = Duration::from_secs(10);

/// The program of this process, also after an upgrade has replaced the file.
const OWN_PROGRAM: &str = "/proc/self/exe";

/// Why the runner gave no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HookRunnerError {
    #[error("cannot reach the hook runner on {}", path.display())]
    Connect { path: PathBuf, source: io::Error },
    #[error("cannot start the hook runner")]
    Start(#[source] io::Error),
    #[error("cannot send the request to the hook runner")]
    Send(#[source] io::Error),
    #[error("the notification is too long for a hook")]
    TooLong(#[source] io::Error),
    #[error("the hook runner has ended during the run")]
    Ended,
    #[error("cannot read the answer of the hook runner")]
    Answer(#[source] io::Error),
}

/// Runs hooks through the runner. Several threads may use it.
#[derive(Debug)]
pub(crate) struct HookRunner {
    place: Place,
    /// The absolute path of the configuration file.
    file: Option<String>,
    /// Where a runner that cannot be used is reported.
    states: Arc<StateStore>,
}

#[derive(Debug)]
enum Place {
    /// The socket of a service.
    Socket(PathBuf),
    /// A child of this process, which is started for the first run.
    Child {
        /// The configuration file; `None` for the default one.
        file: Option<PathBuf>,
        child: Mutex<Option<RunnerChild>>,
    },
    /// In unit tests, the program runs without a runner.
    #[cfg(test)]
    ThisProcess,
}

/// A runner that this process has started. It ends when the socket is closed.
#[derive(Debug)]
struct RunnerChild {
    control: OwnedFd,
    process: Child,
}

impl HookRunner {
    pub(crate) fn new(config: &Config, states: &Arc<StateStore>) -> Arc<Self> {
        let place = match &config.hook_runner {
            Some(socket) => Place::Socket(socket.clone()),
            None => Place::Child { file: config.file.clone(), child: Mutex::default() },
        };
        let file = config.file.as_deref().and_then(|file| std::path::absolute(file).ok());
        let file = file.map(|file| file.display().to_string());
        Arc::new(Self { place, file, states: Arc::clone(states) })
    }

    #[cfg(test)]
    pub(crate) fn in_this_process() -> Arc<Self> {
        Arc::new(Self { place: Place::ThisProcess, file: None, states: Arc::default() })
    }

    /// The absolute path of the configuration file, if there is one.
    pub(crate) fn file(&self) -> Option<&str> {
        self.file.as_deref()
    }

    /// Runs a hook once, and waits for its end.
    pub(crate) fn run(&self, request: &RunRequest) -> Result<RunAnswer, HookRunnerError> {
        let result = self.ask(request);
        self.report(&result);
        result
    }

    fn ask(&self, request: &RunRequest) -> Result<RunAnswer, HookRunnerError> {
        let connection = match &self.place {
            Place::Socket(path) => connect_to(path)
                .map_err(|source| HookRunnerError::Connect { path: path.clone(), source })?,
            Place::Child { file, child } => {
                let mut child = child.lock().unwrap_or_else(PoisonError::into_inner);
                connect_to_child(&mut child, file.as_deref()).map_err(HookRunnerError::Start)?
            }
            #[cfg(test)]
            Place::ThisProcess => return Ok(run_here(request)),
        };
        let set_up = connection.set_write_timeout(Some(CONNECT_TIMEOUT)).and_then(|()| {
            connection.set_read_timeout(Some(request.definition.timeout + ANSWER_DELAY))
        });
        set_up.map_err(HookRunnerError::Send)?;
        let sent = match protocol::send(&connection, request) {
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return Err(HookRunnerError::TooLong(error));
            }
            sent => sent,
        };
        // A runner that refuses the connection answers without a request.
        match protocol::receive(&connection) {
            Ok(answer) => Ok(answer),
            Err(_) if sent.as_ref().is_err_and(|error| !is_closed(error)) => {
                sent.map_err(HookRunnerError::Send)?;
                Err(HookRunnerError::Ended)
            }
            Err(error) if is_closed(&error) => Err(HookRunnerError::Ended),
            Err(error) => Err(HookRunnerError::Answer(error)),
        }
    }

    /// Sets or removes the problem of the runner in the health of the node.
    fn report(&self, result: &Result<RunAnswer, HookRunnerError>) {
        let problem = match result {
            Ok(RunAnswer {
                result: RunResult::Refused { reason: RefusalReason::Disagreement, text },
                ..
            }) => Some(text.clone()),
            Ok(_) => None,
            // The next attempt shows whether it works again.
            Err(HookRunnerError::Ended | HookRunnerError::TooLong(_)) => return,
            Err(error) => Some(ErrorChain(error).to_string()),
        };
        if problem != self.states.health_problem(FindingKind::NodeHookRunner) {
            self.states.set_health(FindingKind::NodeHookRunner, problem);
        }
    }
}

fn is_closed(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

fn connect_to(path: &Path) -> io::Result<UnixStream> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // It also limits the time of `connect`, which waits while the backlog is full.
    set_socket_timeout(&socket, Timeout::Send, Some(CONNECT_TIMEOUT))?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(UnixStream::from(socket))
}

/// A connection to the child. It is started if it does not run.
fn connect_to_child(
    child: &mut Option<RunnerChild>,
    file: Option<&Path>,
) -> io::Result<UnixStream> {
    if let Some(running) = child {
        match connect_through(&running.control) {
            Err(error) if is_closed(&error) => {
                // Its end of the socket is closed, so it has ended or is about to.
                let _ = running.process.kill();
                let _ = running.process.wait();
                tracing::warn!("the hook runner has ended and is started again");
            }
            connection => return connection,
        }
    }
    let started = start_child(file)?;
    let connection = connect_through(&started.control);
    *child = Some(started);
    connection
}

fn connect_through(control: &OwnedFd) -> io::Result<UnixStream> {
    let (near, far) = UnixStream::pair()?;
    passed_socket::pass(control, &far)?;
    Ok(near)
}

fn start_child(file: Option<&Path>) -> io::Result<RunnerChild> {
    let (control, far) = passed_socket::control_pair()?;
    set_socket_timeout(&control, Timeout::Send, Some(CONNECT_TIMEOUT))?;
    let mut command = Command::new(OWN_PROGRAM);
    command.arg0("vipwatch").args(["hook-runner", "--child"]);
    if let Some(file) = file {
        command.arg("--config").arg(file);
    }
    for variable in ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_PID"] {
        command.env_remove(variable);
    }
    // A group of its own: a terminal that interrupts the node must not interrupt its hooks.
    command.process_group(0).stdin(far).stdout(Stdio::null());
    let process = command.spawn()?;
    Ok(RunnerChild { control, process })
}

#[cfg(test)]
fn run_here(request: &RunRequest) -> RunAnswer {
    let program = &request.definition.program;
    let variables = request.environment.iter().map(|(name, value)| (name, value));
    let status = Command::new(&program[0])
        .args(&program[1..])
        .envs(variables)
        .stdin(Stdio::null())
        .status()
        .unwrap();
    let code = u8::try_from(status.code().unwrap()).unwrap();
    RunAnswer { result: RunResult::Ended(code), output: String::new(), discarded: 0 }
}
