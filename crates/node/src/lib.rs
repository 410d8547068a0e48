//! One process per node: every instance followed, told of, remembered and answered for.
//!
//! ```text
//!            follow ──▶ Change ──▶ node ──┬──▶ dispatch ──▶ outlets of the instance
//!   (finds, listens)                      ├──▶ history     (vipwatch-history)
//!                                         └──▶ board ──┬──▶ desk ──▶ whoever asks: client
//!                                                      └──▶ audit ──▶ log
//! ```
//!
//! [`node`] is the loop, on one thread; everything that may wait has a thread of its own and
//! reports back. [`config`] is what an operator says, [`transition`] what a change is.

pub mod audit;
pub mod board;
pub mod client;
pub mod config;
pub mod desk;
pub mod direct;
mod dispatch;
pub mod duty;
pub mod follow;
mod lane;
pub mod log;
pub mod node;
mod outlet;
pub mod panic;
pub mod reception;
pub mod selection;
pub mod service;
pub mod transition;

pub use config::Config;
pub use dispatch::describe;
pub use node::{Node, NodeError};

/// This node's name, which is the first thing one asks of an answer from many nodes.
pub fn name() -> std::sync::Arc<str> {
    rustix::system::uname().nodename().to_string_lossy().into_owned().into()
}
