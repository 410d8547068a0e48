//! The server: its socket and its thread.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

use tokio::runtime::Builder;
use vipwatch_linux::listen::{
    BoundSocket, ListenError, SocketFile, SocketFileLost, SocketOptions, listen_at,
};
use vipwatch_linux::worker::spawn_worker;
use vipwatch_node::api_server::{ApiServer, OpenApiServer};
use vipwatch_node::view::ApiContext;

use crate::accept;

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

/// The API on a unix socket. Dropping it removes the socket file.
#[derive(Debug)]
pub struct WebServer {
    file: SocketFile,
    /// `None` after the thread has started.
    listener: Option<OwnedFd>,
    group: Option<u32>,
    context: ApiContext,
}

impl WebServer {
    /// Creates the socket. A stale socket file is replaced; it is an error if another process listens on it. Only root,
    /// the user of this process and the members of `group` may use it.
    pub fn open(path: &Path, group: Option<u32>, context: ApiContext) -> Result<Self, ListenError> {
        let options = SocketOptions { mode: 0o660, user: None, group, backlog: BACKLOG };
        let BoundSocket { listener, file } = listen_at(path, options)?;
        Ok(Self { file, listener: Some(listener), group, context })
    }

    /// Opens the node's server where its configuration says.
    pub fn opener() -> OpenApiServer {
        Box::new(|config, context| {
            let server = Self::open(&config.socket, config.group, context)?;
            Ok(Box::new(server))
        })
    }
}

impl ApiServer for WebServer {
    fn serve(&mut self) -> io::Result<()> {
        let Some(listener) = self.listener.take() else { return Ok(()) };
        let listener = UnixListener::from(listener);
        listener.set_nonblocking(true)?;
        let runtime = Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(MAX_FILE_THREADS)
            .thread_keep_alive(FILE_THREAD_IDLE)
            .thread_stack_size(FILE_THREAD_STACK)
            .thread_name("api-files")
            .build()?;
        let (context, group) = (self.context.clone(), self.group);
        spawn_worker("api", move |heartbeat| {
            // Hundreds of clients must not take CPU time from the main loop. On Linux this is the thread's own value,
            // which the threads that read files inherit. If it fails, the thread works on as before.
            let _ = rustix::process::nice(API_NICENESS);
            // ORDER: a task of its own, which takes its turn among the connections. The runtime would poll the future of
            // `block_on` itself before them.
            let accept = accept::run(listener, group, context, heartbeat.clone());
            // A panic in this task ends the process; the task does not end otherwise.
            let _ = runtime.block_on(async { tokio::spawn(accept).await });
        })?;
        Ok(())
    }

    fn check_socket(&self) -> Result<(), SocketFileLost> {
        self.file.check()
    }
}

impl Drop for WebServer {
    fn drop(&mut self) {
        self.file.remove();
    }
}
