// SPDX-License-Identifier: Apache-2.0
//! The cluster view: each node publishes the roles of its instances in etcd, watches those of the other nodes, and merges
//! them into groups.
//!
//! ```text
//!   node ──▶ record (JSON) ──▶ key ──▶ etcd ──▶ view ──▶ group ──▶ findings
//! ```
//!
//! The modules `key`, `record`, `view`, `group`, `neutron` and `findings` are pure: they read no clock, file or socket.

pub mod document;
pub mod etcd;
pub mod findings;
mod follow;
pub mod group;
pub mod key;
pub mod neutron;
pub mod reader;
pub mod record;
pub mod session;
pub mod view;

#[cfg(test)]
mod sample;
#[cfg(test)]
mod simulation;
