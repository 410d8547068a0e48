// SPDX-License-Identifier: Apache-2.0
//! The HTTP server of a node or a receiver: the API on its unix socket, and read-only on TCP.
//!
//! ```text
//!   unix socket ─▶ accept ─▶ credentials, limits ─▶ connection (hyper) ──────────▶ router (axum) ─▶ route ─▶ node::view
//!   TCP ─────────▶ accept ─▶ limits ─▶ TLS ───────▶ connection (hyper) ─▶ access ──▲                  │
//!                                                            files and history: a few other threads ◀─┘
//! ```
//!
//! One thread accepts and serves all connections. It reads only published state; a route that reads a file does so on
//! another thread, and an audit runs in the node's audit thread. So no client can delay the main loop, and a slow disk
//! delays only the routes that need it. The rules of a document are in `vipwatch_node::view`, not here.

mod accept;
mod access;
mod connection;
mod credentials;
mod limited_log;
mod metrics;
mod parameters;
mod reply;
mod routes;
mod server;
mod socket;
mod textfile;
mod work;

pub use self::credentials::{WebFileError, check_web_files};
pub use self::server::WebServer;
