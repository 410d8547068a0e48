// SPDX-License-Identifier: Apache-2.0
//! The node service: one process that follows all instances of a host.
//!
//! ```text
//!   watch (discovery, netns events) ──▶ RoleChange ──▶ node ──┬──▶ notify   ──▶ targets of the instance
//!     ▲                                                       ├──▶ history  (vipwatch-history)
//!     │                                                       └──▶ state ──┬──▶ view ──▶ vipwatch-web ──▶ clients
//!     └── snapshot request, if a published role is wrong ──── audit ◀──────┘
//!                                                               └──▶ findings: state, log
//! ```
//!
//! [`node`] is the main loop, on one thread. Work that can block has a thread of its own and reports back
//! through a queue. [`direct`] answers the same queries without a node.

pub mod api_server;
pub mod audit;
mod cause;
mod cluster;
pub mod config;
pub mod direct;
pub mod discovery;
pub mod event;
mod evidence;
pub mod hook_runner;
pub mod log;
pub mod node;
pub mod notify;
mod packed;
pub mod panic;
pub mod processes;
pub mod receiver;
pub mod reload_requests;
pub mod selection;
pub mod service;
pub mod silence;
pub mod state;
pub mod transition;
pub mod view;
pub mod watch;
pub mod witness;

pub use config::Config;
pub use node::{Node, NodeError, log_receiver_changes};
pub use notify::instance_outlets::describe;

/// The name of this node, from `uname`.
pub fn name() -> std::sync::Arc<str> {
    rustix::system::uname().nodename().to_string_lossy().into_owned().into()
}
