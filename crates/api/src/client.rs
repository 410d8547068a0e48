// SPDX-License-Identifier: Apache-2.0
//! A blocking client of the API, over the unix socket of a node or a receiver.
//!
//! Each call opens a connection. The answer must begin within the timeout, so a process that accepts connections but
//! does not answer is noticed. A stream of events does not reconnect by itself: the caller decides when, and continues
//! after [`EventStream::last_id`].

mod connection;
mod events;
mod history;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;

use self::connection::ClientConnection;
pub use self::events::EventStream;
pub use self::history::HistoryStream;
use crate::filter::escape;
use crate::{
    ClusterChangeCount, ClusterFindingList, ClusterGroupList, ClusterHistory, ClusterNodeList,
    ClusterStatus, ConfigDocument, EventFilter, FindingList, HealthDocument, HistoryFilter,
    InstanceDetail, InstanceFilter, InstanceList, NodeStatus, ProblemDocument, ReloadDocument,
    ReportList, SilenceItem, SilenceList, SilenceRequest, TargetList, VersionDocument,
};

/// The default time within which a connection must be accepted, its answer must begin, and each part of a document
/// must arrive.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// The time within which an audit must end. The server gives up before.
const AUDIT_TIMEOUT: Duration = Duration::from_secs(65);

/// The time within which a reload must end. The server gives up before.
const RELOAD_TIMEOUT: Duration = Duration::from_secs(65);

/// The time within which the answer to a wait for a change must begin. The server answers before.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(30);

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No process listens on the socket.
    #[error("no vipwatch node is listening on {}", .0.display())]
    NotListening(PathBuf),
    /// The user of this process may not connect to the socket.
    #[error("not permitted to connect to {}", .0.display())]
    NotPermitted(PathBuf),
    /// A process listens on the socket, but it does not answer.
    #[error("no answer on {} within {} s", path.display(), after.as_secs())]
    TimedOut {
        /// The path of the socket.
        path: PathBuf,
        /// The timeout.
        after: Duration,
    },
    /// The server answered with an error.
    #[error("{}", .0.detail)]
    Problem(Box<ProblemDocument>),
    /// The connection failed.
    #[error("the connection to {} failed", path.display())]
    Io {
        /// The path of the socket.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The server closed the connection before the end of the answer, or a stream ended.
    #[error("the connection to {} was closed", .0.display())]
    Closed(PathBuf),
    /// The answer is not HTTP/1.1, or not the expected document.
    #[error("invalid answer on {}: {reason}", path.display())]
    InvalidAnswer {
        /// The path of the socket.
        path: PathBuf,
        /// The defect of the answer.
        reason: String,
    },
}

/// A client of the process that listens on one unix socket.
#[derive(Debug, Clone)]
pub struct Client {
    socket: PathBuf,
    timeout: Duration,
}

impl Client {
    /// A client of the process that listens on `socket`. It does not connect yet.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self { socket: socket.into(), timeout: ANSWER_TIMEOUT }
    }

    /// The same client with another time within which an answer must begin, and each part of a document must arrive.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The path of the socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The node itself: `GET /v1/status`.
    pub fn status(&self) -> Result<NodeStatus, ClientError> {
        self.read("/v1/status")
    }

    /// The selected instances: `GET /v1/instances`.
    pub fn instances(&self, filter: &InstanceFilter) -> Result<InstanceList, ClientError> {
        self.read(&format!("/v1/instances{}", filter.query()))
    }

    /// One instance, by its id, the beginning of its id, or one of its addresses: `GET /v1/instances/{id}`.
    pub fn instance(&self, id: &str) -> Result<InstanceDetail, ClientError> {
        self.read(&format!("/v1/instances/{}", escape(id)))
    }

    /// The selected entries of the history, oldest first, read while they arrive: `GET /v1/history`.
    pub fn history(&self, filter: &HistoryFilter) -> Result<HistoryStream, ClientError> {
        let mut connection = ClientConnection::open(&self.socket, self.timeout)?;
        connection.request("GET", &format!("/v1/history{}", filter.query()), None, self.timeout)?;
        HistoryStream::new(connection)
    }

    /// Everything that is known to be wrong: `GET /v1/findings`.
    pub fn findings(&self) -> Result<FindingList, ClientError> {
        self.read("/v1/findings")
    }

    /// Has all instances audited now, and returns everything that is wrong: `POST /v1/audit`.
    pub fn audit(&self) -> Result<FindingList, ClientError> {
        let mut connection = ClientConnection::open(&self.socket, self.timeout)?;
        // An audit may take long. A process that does not answer at all is noticed by this request.
        connection.request("GET", "/healthz", None, self.timeout)?;
        let _: HealthDocument = connection.document(self.timeout)?;
        connection.request("POST", "/v1/audit", None, self.timeout.max(AUDIT_TIMEOUT))?;
        connection.document(self.timeout)
    }

    /// Has the process read its configuration again, and returns how that ended: `POST /v1/reload`.
    pub fn reload(&self) -> Result<ReloadDocument, ClientError> {
        let mut connection = ClientConnection::open(&self.socket, self.timeout)?;
        connection.request("POST", "/v1/reload", None, self.timeout.max(RELOAD_TIMEOUT))?;
        connection.document(self.timeout)
    }

    /// The selected events, from `filter.after` or from now on: `GET /v1/events`.
    pub fn events(&self, filter: &EventFilter) -> Result<EventStream, ClientError> {
        let mut connection = ClientConnection::open(&self.socket, self.timeout)?;
        connection.request("GET", &format!("/v1/events{}", filter.query()), None, self.timeout)?;
        Ok(EventStream::new(connection, filter.after.clone()))
    }

    /// The targets and their deliveries: `GET /v1/targets`.
    pub fn targets(&self) -> Result<TargetList, ClientError> {
        self.read("/v1/targets")
    }

    /// The reports of monitors: `GET /v1/reports`.
    pub fn reports(&self) -> Result<ReportList, ClientError> {
        self.read("/v1/reports")
    }

    /// The settings in force: `GET /v1/config`.
    pub fn config(&self) -> Result<ConfigDocument, ClientError> {
        self.read("/v1/config")
    }

    /// The version of the process: `GET /v1/version`.
    pub fn version(&self) -> Result<VersionDocument, ClientError> {
        self.read("/v1/version")
    }

    /// The cluster in numbers: `GET /v1/cluster`.
    pub fn cluster(&self) -> Result<ClusterStatus, ClientError> {
        self.read("/v1/cluster")
    }

    /// The groups of the cluster: `GET /v1/cluster/groups`.
    pub fn cluster_groups(&self) -> Result<ClusterGroupList, ClientError> {
        self.read("/v1/cluster/groups")
    }

    /// The nodes of the cluster: `GET /v1/cluster/nodes`.
    pub fn cluster_nodes(&self) -> Result<ClusterNodeList, ClientError> {
        self.read("/v1/cluster/nodes")
    }

    /// The open findings about several nodes: `GET /v1/cluster/findings`.
    pub fn cluster_findings(&self) -> Result<ClusterFindingList, ClientError> {
        self.read("/v1/cluster/findings")
    }

    /// The last transitions and findings of the cluster: `GET /v1/cluster/history`.
    pub fn cluster_history(&self) -> Result<ClusterHistory, ClientError> {
        self.read("/v1/cluster/history")
    }

    /// Waits until the number of changes of the node's view differs from `after`: `GET /v1/cluster/changes`. The node
    /// answers with the same number if there is no change for 15 s.
    pub fn cluster_changes(&self, after: u64) -> Result<ClusterChangeCount, ClientError> {
        let mut connection = ClientConnection::open(&self.socket, self.timeout)?;
        let target = format!("/v1/cluster/changes?after={after}");
        connection.request("GET", &target, None, self.timeout.max(CHANGE_TIMEOUT))?;
        connection.document(self.timeout)
    }

    /// The silences in force: `GET /v1/silences`.
    pub fn silences(&self) -> Result<SilenceList, ClientError> {
        self.read("/v1/silences")
    }

    /// Creates a silence: `POST /v1/silences`.
    pub fn create_silence(&self, request: &SilenceRequest) -> Result<SilenceItem, ClientError> {
        let body = serde_json::to_string(request).map_err(|error| self.invalid(&error))?;
        self.send("POST", "/v1/silences", Some(body))
    }

    /// Ends a silence, and returns it: `DELETE /v1/silences/{number}`.
    pub fn end_silence(&self, number: i64) -> Result<SilenceItem, ClientError> {
        self.send("DELETE", &format!("/v1/silences/{number}"), None)
    }

    fn read<T: DeserializeOwned>(&self, target: &str) -> Result<T, ClientError> {
        self.send("GET", target, None)
    }

    fn send<T: DeserializeOwned>(
        &self,
        method: &str,
        target: &str,
        body: Option<String>,
    ) -> Result<T, ClientError> {
        let mut connection = ClientConnection::open(&self.socket, self.timeout)?;
        connection.request(method, target, body, self.timeout)?;
        connection.document(self.timeout)
    }

    fn invalid(&self, error: &serde_json::Error) -> ClientError {
        ClientError::InvalidAnswer { path: self.socket.clone(), reason: error.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_node_that_hangs_in_the_middle_of_an_answer_is_noticed_within_the_timeout() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("node.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let server = std::thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            let mut request = BufReader::new(client.try_clone().unwrap()).lines();
            while request.next().is_some_and(|line| !line.unwrap().is_empty()) {}
            client.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{").unwrap();
            // Until the client closes the connection.
            let _ = request.next();
        });
        let timeout = Duration::from_millis(100);
        let error = Client::new(&socket).with_timeout(timeout).status().unwrap_err();
        assert!(
            matches!(error, ClientError::TimedOut { after, .. } if after == timeout),
            "{error:?}"
        );
        server.join().unwrap();
    }
}
