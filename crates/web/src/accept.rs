//! Accepts connections: checks the user of each client, and applies the limits.

use std::io;
use std::os::unix::net::UnixListener as StdListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use rustix::net::sockopt::set_socket_send_buffer_size;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{sleep, timeout};
use vipwatch_api::{ErrorCode, ProblemDocument};
use vipwatch_linux::peer;
use vipwatch_linux::worker::{Heartbeat, beat_every};
use vipwatch_node::state::StateStore;
use vipwatch_node::view::ApiContext;

use crate::connection::{self, ConnectionTable};
use crate::routes;
use crate::work::{CatchPanic, inject_panic, spawn_for_client};

/// Pause after a failed `accept`, for example because all file descriptors are in use.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Pause before a connection is closed in favour of another one. Meanwhile the runtime reads the sockets.
const FULL_PAUSE: Duration = Duration::from_millis(1);

/// Maximum number of refused connections that are being answered. Others are closed without an answer.
const MAX_REFUSALS: usize = 16;

/// Send buffer of a connection in bytes, for which the kernel reserves twice as much. An event stream that its client does
/// not read holds so much kernel memory, and the thread has copied so much in vain; the default is 208 KiB.
const SEND_BUFFER_BYTES: usize = 32 << 10;

/// Accepts and serves connections; never returns.
pub(crate) async fn run(
    listener: StdListener,
    group: Option<u32>,
    context: ApiContext,
    heartbeat: Heartbeat,
) {
    let listener = UnixListener::from_std(listener).expect("the runtime has an I/O driver");
    let table = Arc::new(ConnectionTable::new(Arc::clone(&context.store)));
    tokio::spawn(Arc::clone(&table).close_overdue());
    let server = ServerState {
        router: routes::router(&context),
        table,
        refusals: Arc::default(),
        group,
        context,
    };
    loop {
        heartbeat.beat();
        let turn = Box::pin(server.accept_one(&listener));
        // The log has the message of a panic; its client is disconnected.
        if (CatchPanic { future: turn, store: &server.context.store }).await.is_err() {
            sleep(ACCEPT_PAUSE).await;
        }
    }
}

/// The state that all connections share.
struct ServerState {
    router: Router,
    table: Arc<ConnectionTable>,
    /// Number of refused connections that are being answered.
    refusals: Arc<AtomicUsize>,
    /// The group of the socket, if its members may use it.
    group: Option<u32>,
    context: ApiContext,
}

impl ServerState {
    /// Accepts one connection and starts the task that serves it, or returns after some time without a client.
    async fn accept_one(&self, listener: &UnixListener) {
        let accepted = match timeout(beat_every(), listener.accept()).await {
            Ok(Ok((stream, _))) => stream,
            Ok(Err(_)) => return sleep(ACCEPT_PAUSE).await,
            Err(_) => return,
        };
        inject_panic("accept");
        // If it fails, the connection works with the default.
        let _ = set_socket_send_buffer_size(&accepted, SEND_BUFFER_BYTES);
        let store = &self.context.store;
        match admit(&accepted, self.group, &self.table).await {
            Ok(place) => {
                let (router, context) = (self.router.clone(), self.context.clone());
                spawn_for_client(store, connection::serve(accepted, place, router, context));
            }
            Err(problem) => {
                store.counters.api_refused.fetch_add(1, Ordering::Relaxed);
                refuse(accepted, problem, &self.refusals, store);
            }
        }
    }
}

/// Takes a place in the table, or says why the client cannot have one.
async fn admit(
    stream: &UnixStream,
    group: Option<u32>,
    table: &Arc<ConnectionTable>,
) -> Result<connection::Place, ProblemDocument> {
    let user = trusted_user(stream, group).ok().flatten().ok_or_else(|| {
        let detail =
            "only root, the user of the process and members of the socket's group may use it";
        let hint = "run it as root, or as a member of the group of the socket";
        ProblemDocument::new(ErrorCode::NotPermitted, detail).with_hint(hint)
    })?;
    inject_panic("admit");
    if table.is_full(user) {
        // ORDER: requests that have arrived are read first. Their connections would still count as idle otherwise, and
        // the server would close connections of a burst of clients instead of answering them.
        sleep(FULL_PAUSE).await;
    }
    table.admit(user).ok_or_else(|| {
        let detail = "too many connections are open, and none of them is idle";
        ProblemDocument::new(ErrorCode::TooManyConnections, detail).with_hint("try again")
    })
}

/// The user of the client, if it may use the API: root, the user of this process, and members of the socket's group.
fn trusted_user(stream: &UnixStream, group: Option<u32>) -> io::Result<Option<u32>> {
    let user = peer::credentials(stream)?.user;
    let is_own = user == 0 || user == rustix::process::geteuid().as_raw();
    let is_member = match group {
        Some(group) if !is_own => peer::is_member(stream, group)?,
        _ => false,
    };
    Ok(Some(user).filter(|_| is_own || is_member))
}

/// Answers the first request with `problem` and closes the connection.
fn refuse(
    stream: UnixStream,
    problem: ProblemDocument,
    refusals: &Arc<AtomicUsize>,
    store: &Arc<StateStore>,
) {
    if refusals.fetch_add(1, Ordering::Relaxed) >= MAX_REFUSALS {
        refusals.fetch_sub(1, Ordering::Relaxed);
        return;
    }
    let refusals = Arc::clone(refusals);
    spawn_for_client(store, async move {
        connection::refuse(stream, problem).await;
        refusals.fetch_sub(1, Ordering::Relaxed);
    });
}
