// SPDX-License-Identifier: Apache-2.0
//! Neutron's L3 agent as a monitor sees it: whether it listens on its socket, and a report that it answers.

use std::io::{self, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use vipwatch_core::InstanceId;
use vipwatch_linux::peer;
use vipwatch_outlets::agent::wire::{self, AgentAnswer};

/// Maximum time for the connection, and for one read or write.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Why the agent has not received a report.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReportError {
    #[error("cannot reach the agent on {}", path.display())]
    Socket { path: PathBuf, source: io::Error },
    #[error("the agent's socket {} is served by user {user}, not by the agent's user or root", path.display())]
    Foreign { path: PathBuf, user: u32 },
    #[error("the agent answered with status {0}")]
    Status(u16),
    #[error("the agent's answer is not HTTP")]
    Garbage,
}

/// The agent's socket.
pub(crate) fn socket_of(state_path: &Path) -> PathBuf {
    state_path.join("keepalived-state-change")
}

/// Whether a process listens on the agent's socket. The kernel's table answers that without a connection: Neutron's agent
/// logs an error about a connection without a request.
pub(crate) fn is_listening(state_path: &Path) -> bool {
    const FLAG_LISTENING: u32 = 1 << 16;
    let socket = socket_of(state_path);
    if !std::fs::symlink_metadata(&socket).is_ok_and(|file| file.file_type().is_socket()) {
        return false;
    }
    let table = std::fs::read("/proc/net/unix").unwrap_or_default();
    let table = String::from_utf8_lossy(&table);
    // "Num RefCount Protocol Flags Type St Inode Path"
    let is_listed = table.lines().skip(1).any(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let flags = fields.get(3).and_then(|flags| u32::from_str_radix(flags, 16).ok());
        flags.is_some_and(|flags| flags & FLAG_LISTENING != 0)
            && fields.get(7).is_some_and(|path| Path::new(path) == socket)
    });
    // A receiver that has renamed its socket is listed under another name. It accepts connections without a request.
    is_listed || connect(&socket).is_ok()
}

/// Connects to the agent. An agent that accepts no connection has a full queue after some time; the time limit for writes
/// is the one for a place in it too.
fn connect(socket: &Path) -> io::Result<UnixStream> {
    let kind = rustix::net::SocketType::STREAM;
    let flags = rustix::net::SocketFlags::CLOEXEC;
    let stream = rustix::net::socket_with(rustix::net::AddressFamily::UNIX, kind, flags, None)?;
    let stream = UnixStream::from(stream);
    // ORDER: before the connection is made.
    stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
    rustix::net::connect(&stream, &rustix::net::SocketAddrUnix::new(socket)?)?;
    Ok(stream)
}

/// Reports the state of a router, as a monitor does, and waits for the answer.
pub(crate) fn report(
    state_path: &Path,
    router: &InstanceId,
    word: &str,
) -> Result<(), ReportError> {
    let path = socket_of(state_path);
    let failed = |source| ReportError::Socket { path: path.clone(), source };
    let mut stream = connect(&path).map_err(failed)?;
    let user = peer::credentials(&stream).map_err(failed)?.user;
    let owner = std::fs::metadata(state_path).map_err(failed)?.uid();
    if user != 0 && user != owner {
        return Err(ReportError::Foreign { path, user });
    }
    stream.set_read_timeout(Some(ANSWER_TIMEOUT)).map_err(failed)?;
    stream.write_all(&wire::request(router, word)).map_err(failed)?;
    let mut head = [0; wire::STATUS_BYTES];
    stream.read_exact(&mut head).map_err(failed)?;
    match wire::answer(&head) {
        AgentAnswer::Status(200) => Ok(()),
        AgentAnswer::Status(status) => Err(ReportError::Status(status)),
        AgentAnswer::Incomplete | AgentAnswer::Garbage => Err(ReportError::Garbage),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_connection_to_an_agent_that_accepts_none_ends() {
        let directory = tempfile::tempdir().unwrap();
        let socket = socket_of(directory.path());
        let listener = UnixListener::bind(&socket).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let first = connect(&socket).unwrap();
        let error = connect(&socket).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        drop(first);
    }
}
