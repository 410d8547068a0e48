//! The client of the query socket: sends a question to a node or a receiver, and reads the answer.

use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::Value;

/// Maximum time between two lines of an answer. The answer to `doctor` reads every namespace first.
const ANSWER_TIMEOUT: Duration = Duration::from_mins(1);

/// Why a query failed.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    /// No process listens on the socket.
    #[error("no vipwatch node or receiver is listening on {}", .0.display())]
    NotListening(PathBuf),
    /// The user of this process may not connect to the socket.
    #[error("not permitted to connect to {}", .0.display())]
    NotPermitted(PathBuf),
    /// The connection failed, or the answer is not valid.
    #[error("query on {} failed", path.display())]
    Io {
        /// The path of the socket.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The server answered with an error: its text, and the exit code for the command, if it has one.
    #[error("{0}")]
    Refused(String, Option<u64>),
}

/// A connection on which a question was sent, for its answer of one or more lines.
#[derive(Debug)]
pub struct QueryStream {
    path: PathBuf,
    lines: BufReader<UnixStream>,
}

impl QueryStream {
    /// Connects to the socket and sends `question`.
    pub fn ask(path: &Path, question: &Value) -> Result<Self, QueryError> {
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                QueryError::NotListening(path.to_owned())
            }
            io::ErrorKind::PermissionDenied => QueryError::NotPermitted(path.to_owned()),
            _ => QueryError::Io { path: path.to_owned(), source },
        };
        let mut stream = UnixStream::connect(path).map_err(failed)?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT)).map_err(failed)?;
        match stream.write_all(format!("{question}\n").as_bytes()) {
            // The server has closed the connection, perhaps after an error line, which is read below.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            asked => asked.map_err(failed)?,
        }
        Ok(Self { path: path.to_owned(), lines: BufReader::new(stream) })
    }

    /// The next line of the answer; `None` at the end of the answer.
    pub fn next_line(&mut self) -> Result<Option<Value>, QueryError> {
        let failed = |source| QueryError::Io { path: self.path.clone(), source };
        let mut line = String::new();
        if self.lines.read_line(&mut line).map_err(failed)? == 0 {
            return Ok(None);
        }
        let value: Value = serde_json::from_str(&line).map_err(|error| failed(error.into()))?;
        match value["error"].as_str() {
            Some(why) if value["schema"] == "vipwatch.error/1" => {
                Err(QueryError::Refused(why.to_owned(), value["code"].as_u64()))
            }
            _ => Ok(Some(value)),
        }
    }

    /// The next line, or `None` if none arrives within `limit`. Without a limit it waits for [`ANSWER_TIMEOUT`]; the
    /// node sends a pulse line more often than that.
    pub fn next_within(
        &mut self,
        limit: Option<Duration>,
    ) -> Result<Option<Option<Value>>, QueryError> {
        let failed = |source| QueryError::Io { path: self.path.clone(), source };
        // A line that is in the buffer already is returned without waiting.
        if self.lines.buffer().is_empty() {
            let mut polled =
                [PollFd::from_borrowed_fd(self.lines.get_ref().as_fd(), PollFlags::IN)];
            let limit = limit.unwrap_or(ANSWER_TIMEOUT);
            let ready = poll(&mut polled, Timespec::try_from(limit).ok().as_ref());
            match ready {
                Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(None),
                Ok(_) => {}
                Err(errno) => return Err(failed(errno.into())),
            }
        }
        self.next_line().map(Some)
    }
}

/// Sends `question`, and returns its answer of one line.
pub fn ask(path: &Path, question: &Value) -> Result<Value, QueryError> {
    let mut stream = QueryStream::ask(path, question)?;
    let end =
        || QueryError::Io { path: path.to_owned(), source: io::ErrorKind::UnexpectedEof.into() };
    stream.next_line()?.ok_or_else(end)
}
