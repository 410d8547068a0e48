// SPDX-License-Identifier: Apache-2.0
//! The server: its sockets and its thread.

use std::io;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::task::JoinSet;
use vipwatch_linux::listen::{
    BoundSocket, ListenError, SocketFile, SocketFileLost, SocketOptions, listen_at, listen_on,
};
use vipwatch_linux::worker::{Heartbeat, spawn_worker};
use vipwatch_node::api_server::{ApiServer, ApiServerError, OpenApiServer};
use vipwatch_node::config::WebConfig;
use vipwatch_node::view::ApiContext;

use crate::accept::Endpoint;
use crate::access::{self, AccessRules};
use crate::connection::{ConnectionService, ConnectionTable, TableKind};
use crate::credentials::CredentialStore;
use crate::routes;
use crate::socket::{Listener, Transport};
use crate::textfile::MetricsTextfile;

/// Maximum number of connections that wait to be accepted. The kernel limits it to `net.core.somaxconn`.
const BACKLOG: i32 = 1024;

/// Maximum number of threads that read files for requests.
const MAX_FILE_THREADS: usize = 4;

/// The thread of the API has a lower priority than the others: 0 is normal, 19 is the lowest.
const API_NICENESS: i32 = 10;

/// A thread that reads files ends after this time without work.
const FILE_THREAD_IDLE: Duration = Duration::from_secs(5);

/// Stack size in bytes of a thread that reads files.
const FILE_THREAD_STACK: usize = 512 << 10;

/// The API on a unix socket, and on TCP if that is configured. Dropping it removes the socket file.
#[derive(Debug)]
pub struct WebServer {
    file: SocketFile,
    /// `None` after the thread has started.
    sockets: Option<Sockets>,
    /// The files of `[web]`; `None` if neither TLS nor tokens are configured.
    credentials: Option<Arc<CredentialStore>>,
    context: ApiContext,
    /// Writes the metrics to a file; `None` if none is configured.
    textfile: Option<MetricsTextfile>,
}

/// The listening sockets, and which clients may use them.
#[derive(Debug)]
struct Sockets {
    unix: UnixListener,
    /// The group of the unix socket, if its members may use it.
    group: Option<u32>,
    tcp: Vec<TcpListener>,
    hosts: Vec<String>,
    credentials: Option<Arc<CredentialStore>>,
}

impl WebServer {
    /// Creates the socket. A stale socket file is replaced; it is an error if another process listens on it. Only root,
    /// the user of this process and the members of `group` may use it.
    pub fn open(path: &Path, group: Option<u32>, context: ApiContext) -> Result<Self, ListenError> {
        let options = SocketOptions { mode: 0o660, user: None, group, backlog: BACKLOG };
        let BoundSocket { listener, file } = listen_at(path, options)?;
        let (unix, tcp, hosts) = (UnixListener::from(listener), Vec::new(), Vec::new());
        let sockets = Sockets { unix, group, tcp, hosts, credentials: None };
        Ok(Self { file, sockets: Some(sockets), credentials: None, textfile: None, context })
    }

    /// Opens the node's server where its configuration says.
    pub fn opener() -> OpenApiServer {
        Box::new(|config, context| {
            let mut server = Self::open(&config.socket, config.group, context)?;
            if let Some(sockets) = &mut server.sockets {
                sockets.open_tcp(&config.web)?;
                server.credentials.clone_from(&sockets.credentials);
            }
            Ok(Box::new(server))
        })
    }
}

impl ApiServer for WebServer {
    fn serve(&mut self) -> io::Result<()> {
        let Some(sockets) = self.sockets.take() else { return Ok(()) };
        let runtime = Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(MAX_FILE_THREADS)
            .thread_keep_alive(FILE_THREAD_IDLE)
            .thread_stack_size(FILE_THREAD_STACK)
            .thread_name("api-files")
            .build()?;
        self.textfile = MetricsTextfile::start(&self.context)?;
        let context = self.context.clone();
        spawn_worker("api", move |heartbeat| {
            // Hundreds of clients must not take CPU time from the main loop. On Linux this is the thread's own value,
            // which the threads that read files inherit. If it fails, the thread works on as before.
            let _ = rustix::process::nice(API_NICENESS);
            runtime.block_on(sockets.serve(&context, heartbeat));
        })?;
        Ok(())
    }

    fn check_socket(&self) -> Result<(), SocketFileLost> {
        self.file.check()
    }

    fn reload(&self) {
        if let Some(credentials) = &self.credentials {
            credentials.request_check();
        }
    }
}

impl Sockets {
    fn open_tcp(&mut self, config: &WebConfig) -> Result<(), ApiServerError> {
        if config.listen.is_empty() {
            return Ok(());
        }
        let failed = |source| ApiServerError::WebFiles { source: Box::new(source) };
        self.credentials = CredentialStore::open(config).map_err(failed)?.map(Arc::new);
        for address in config.listen.iter().copied() {
            let failed = |source| ApiServerError::Tcp { address, source };
            let listener = TcpListener::from(listen_on(address, BACKLOG).map_err(failed)?);
            let address = listener.local_addr().map_err(failed)?;
            tracing::info!(%address, tls = config.tls.is_some(), "web server listens");
            self.tcp.push(listener);
        }
        self.hosts.clone_from(&config.hosts);
        Ok(())
    }

    /// Accepts and serves connections; never returns.
    async fn serve(self, context: &ApiContext, heartbeat: &Heartbeat) {
        let router = routes::router(context);
        let store = Arc::clone(&context.store);
        let service = ConnectionService { router: router.clone(), store, credentials: None };
        let unix = tokio::net::UnixListener::from_std(self.unix).map(|listener| {
            let table = start_table(TableKind::Unix, context);
            Endpoint::new(Listener::Unix(listener, self.group), service.clone(), table)
        });
        let mut endpoints = vec![unix];
        if !self.tcp.is_empty() {
            let table = start_table(TableKind::Tcp, context);
            let credentials = self.credentials;
            if let Some(credentials) = &credentials {
                let credentials = Arc::clone(credentials);
                tokio::spawn(credentials.follow(Arc::clone(&table), context.clone()));
            }
            let has_tls = credentials.as_ref().is_some_and(|files| files.tls().is_some());
            let transport = if has_tls { Transport::Tls } else { Transport::Plain };
            let store = Arc::clone(&context.store);
            let rules = AccessRules { hosts: self.hosts, credentials: credentials.clone(), store };
            let router = access::guarded(router, rules);
            let service = ConnectionService { router, credentials, ..service };
            endpoints.extend(self.tcp.into_iter().map(|listener| {
                let listener = tokio::net::TcpListener::from_std(listener)?;
                let listener = Listener::Tcp(listener, transport);
                Ok(Endpoint::new(listener, service.clone(), Arc::clone(&table)))
            }));
        }
        // ORDER: tasks of their own, which take their turns among the connections. The runtime would poll the future of
        // `block_on` itself before them.
        let mut tasks = JoinSet::new();
        for endpoint in endpoints {
            let endpoint = endpoint.expect("the runtime has an I/O driver");
            tasks.spawn(endpoint.run(heartbeat.clone()));
        }
        // A panic in a task ends the process; the tasks do not end otherwise.
        while tasks.join_next().await.is_some() {}
    }
}

/// A table of connections, and the task that closes those that are overdue.
fn start_table(kind: TableKind, context: &ApiContext) -> Arc<ConnectionTable> {
    let table = Arc::new(ConnectionTable::new(kind, Arc::clone(&context.store)));
    tokio::spawn(Arc::clone(&table).close_overdue());
    table
}

impl Drop for WebServer {
    fn drop(&mut self) {
        self.file.remove();
    }
}
