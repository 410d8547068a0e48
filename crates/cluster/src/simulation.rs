// SPDX-License-Identifier: Apache-2.0
//! A cluster in one thread: sessions of several nodes, an etcd in memory and a paused clock, with random faults.
//!
//! ```text
//!   keepalived ──▶ node ──▶ session (the product) ──▶ link ──▶ etcd ──▶ content ──▶ properties
//!       ▲                                              ▲        ▲
//!       └───────────────────── faults ─────────────────┴────────┘
//! ```
//!
//! A seed decides everything: two runs have the same trace. The seam is [`GrpcClient`](crate::etcd): all of the client
//! but gRPC itself is the product.
//!
//! ```sh
//! VIPWATCH_SIM_SEED=123 cargo test -p vipwatch-cluster --lib simulation
//! VIPWATCH_SIM_SEEDS=2000 cargo test -p vipwatch-cluster --lib simulation
//! VIPWATCH_SIM_FAULTS=watch-lost,node-restarted cargo test -p vipwatch-cluster --lib simulation
//! ```
//!
//! `VIPWATCH_SIM_FIRST` is the first of the seeds; `+` and `-` before a fault change the usual list. Optimised code needs
//! half of the time: `--config 'profile.dev.package.vipwatch-cluster.opt-level=1'`.

mod content;
mod fault;
mod keepalived;
mod link;
mod network;
mod node;
mod properties;
mod random;
mod run;
mod store;
mod stream;
mod trace;

pub(crate) use self::link::{EtcdChannel, EtcdLink};
pub(crate) use self::stream::AnswerStream;

/// The number of nodes.
const NODES: usize = 3;

/// The number of groups.
const GROUPS: usize = 20;

/// The names of the nodes.
const NAMES: [&str; NODES] = ["a", "b", "c"];

/// The prefix of all keys of the simulated domain.
const PREFIX: &str = "/vipwatch/v1/sim/";

#[cfg(test)]
mod mutations;
#[cfg(test)]
mod tests;
