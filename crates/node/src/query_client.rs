//! Asks a node.

use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::Value;

/// How long an answer may take: a doctor looks into every namespace.
const PATIENCE: Duration = Duration::from_mins(1);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    /// Neither a node nor an agent runs here.
    #[error("nobody answers on {}", .0.display())]
    Nobody(PathBuf),
    /// One does, and not for us.
    #[error("not permitted to ask on {}", .0.display())]
    NotPermitted(PathBuf),
    /// It does not answer as it should.
    #[error("cannot talk to who answers on {}", path.display())]
    Talk {
        /// The socket.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
    /// It says no, and with which exit code.
    #[error("{0}")]
    Refused(String, Option<u64>),
}

/// An open line to a node.
#[derive(Debug)]
pub struct QueryLine {
    path: PathBuf,
    lines: BufReader<UnixStream>,
}

impl QueryLine {
    /// Asks `question`.
    pub fn ask(path: &Path, question: &Value) -> Result<Self, QueryError> {
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                QueryError::Nobody(path.to_owned())
            }
            io::ErrorKind::PermissionDenied => QueryError::NotPermitted(path.to_owned()),
            _ => QueryError::Talk { path: path.to_owned(), source },
        };
        let mut stream = UnixStream::connect(path).map_err(failed)?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
        match stream.write_all(format!("{question}\n").as_bytes()) {
            // It has hung up, and perhaps said why.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            asked => asked.map_err(failed)?,
        }
        Ok(Self { path: path.to_owned(), lines: BufReader::new(stream) })
    }

    /// The next line of the answer; `None` at its end.
    pub fn next_line(&mut self) -> Result<Option<Value>, QueryError> {
        let failed = |source| QueryError::Talk { path: self.path.clone(), source };
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

    /// The next line, or `None` if there is none within `limit`. Without a limit it is waited for
    /// as long as the node says now and then that it is there.
    pub fn next_within(
        &mut self,
        limit: Option<Duration>,
    ) -> Result<Option<Option<Value>>, QueryError> {
        let failed = |source| QueryError::Talk { path: self.path.clone(), source };
        // What has been read already is not waited for.
        if self.lines.buffer().is_empty() {
            let mut polled =
                [PollFd::from_borrowed_fd(self.lines.get_ref().as_fd(), PollFlags::IN)];
            let limit = limit.unwrap_or(PATIENCE);
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

/// Asks `question`, to which there is one answer.
pub fn ask(path: &Path, question: &Value) -> Result<Value, QueryError> {
    let mut line = QueryLine::ask(path, question)?;
    let end =
        || QueryError::Talk { path: path.to_owned(), source: io::ErrorKind::UnexpectedEof.into() };
    line.next_line()?.ok_or_else(end)
}
