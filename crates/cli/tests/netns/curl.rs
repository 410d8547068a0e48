// SPDX-License-Identifier: Apache-2.0
//! Requests to the API of a node: with curl, and as raw bytes.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde::de::DeserializeOwned;
use vipwatch_api::ProblemDocument;
use vipwatch_testkit::monitor::output_of;
use vipwatch_testkit::{NodeFixture, wait_for};

/// The answer to one request.
#[derive(Debug)]
pub(crate) struct CurlAnswer {
    pub(crate) status: u16,
    pub(crate) content_type: String,
    pub(crate) headers: String,
    pub(crate) body: String,
}

impl CurlAnswer {
    /// The body as a document.
    #[track_caller]
    pub(crate) fn document<T: DeserializeOwned>(&self) -> T {
        assert!((200..300).contains(&self.status), "{self:?}");
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The status and the code of an error, which is a problem document.
    #[track_caller]
    pub(crate) fn problem(&self) -> (u16, &'static str) {
        assert_eq!(self.content_type, "application/problem+json", "{self:?}");
        let problem: ProblemDocument =
            serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"));
        assert_eq!(problem.status, self.status, "{self:?}");
        (self.status, problem.code.word())
    }
}

/// Runs curl with these arguments on a path of the API.
pub(crate) fn curl(fixture: &NodeFixture, args: &[&str], path: &str) -> CurlAnswer {
    let mut command = Command::new("curl");
    command.args(["-sS", "-i", "--max-time", "30", "--globoff", "--unix-socket"]);
    command.arg(fixture.socket()).args(args).arg(format!("http://localhost{path}"));
    let output = output_of(&mut command);
    parse_answer(&output.stdout).unwrap_or_else(|| panic!("curl {args:?} {path}: {output:?}"))
}

/// The document at a path of the API.
#[track_caller]
pub(crate) fn get<T: DeserializeOwned>(fixture: &NodeFixture, path: &str) -> T {
    curl(fixture, &[], path).document()
}

/// Sends raw bytes on a new connection, and reads the answer until the server closes it.
pub(crate) fn send_raw(socket: &Path, bytes: &[u8]) -> Vec<u8> {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    // The server may answer and close before it has read everything.
    let _ = stream.write_all(bytes);
    read_to_end(&mut stream)
}

/// Everything that arrives until the server closes the connection.
pub(crate) fn read_to_end(stream: &mut UnixStream) -> Vec<u8> {
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    answer
}

/// The first answer in these bytes.
pub(crate) fn parse_answer(bytes: &[u8]) -> Option<CurlAnswer> {
    let text = String::from_utf8_lossy(bytes);
    let (headers, body) = text.split_once("\r\n\r\n")?;
    let status = headers.split(' ').nth(1)?.parse().ok()?;
    let header = |name: &str| {
        let lines = headers.lines().filter_map(|line| line.split_once(": "));
        lines.into_iter().find(|(key, _)| key.eq_ignore_ascii_case(name))
    };
    let content_type = header("content-type").map(|(_, value)| value.to_owned());
    Some(CurlAnswer {
        status,
        content_type: content_type.unwrap_or_default(),
        headers: headers.to_owned(),
        body: body.to_owned(),
    })
}

/// `curl` on the event stream, with its output in a file. It is killed when this value is dropped.
pub(crate) struct EventCurl {
    child: Child,
    file: PathBuf,
}

/// One event of the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StreamEvent {
    pub(crate) id: Option<String>,
    pub(crate) name: String,
    pub(crate) data: String,
}

impl EventCurl {
    /// Opens the stream, and waits until the server has subscribed.
    pub(crate) fn open(fixture: &NodeFixture, file: &Path, args: &[&str], query: &str) -> Self {
        let output = std::fs::File::create(file).unwrap();
        let mut command = Command::new("curl");
        command.args(["-sS", "-N", "--globoff", "--unix-socket"]).arg(fixture.socket());
        command.args(args).arg(format!("http://localhost/v1/events{query}"));
        let child = command.stdout(output).stderr(Stdio::inherit()).spawn().unwrap();
        let stream = Self { child, file: file.to_owned() };
        wait_for("the stream to begin", || (!stream.text().is_empty()).then_some(()));
        stream
    }

    pub(crate) fn text(&self) -> String {
        std::fs::read_to_string(&self.file).unwrap_or_default()
    }

    /// The events so far.
    pub(crate) fn events(&self) -> Vec<StreamEvent> {
        let text = self.text();
        let complete = text.rsplit_once("\n\n").map_or("", |(complete, _)| complete);
        complete.split("\n\n").filter_map(parse_event).collect()
    }

    /// Waits until an event fulfils a condition; returns it.
    #[track_caller]
    pub(crate) fn wait_for_event(
        &self,
        what: &str,
        is_it: impl Fn(&StreamEvent) -> bool,
    ) -> StreamEvent {
        wait_for(what, || self.events().into_iter().find(|event| is_it(event)))
    }
}

fn parse_event(text: &str) -> Option<StreamEvent> {
    let field = |name: &str| {
        let mut lines = text.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(key, _)| *key == name).map(|(_, value)| value.to_owned())
    };
    Some(StreamEvent { id: field("id"), name: field("event")?, data: field("data")? })
}

impl Drop for EventCurl {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
