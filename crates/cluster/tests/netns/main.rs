// SPDX-License-Identifier: Apache-2.0
//! The client of etcd and the session of a node, with real etcd.

#![expect(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod access;
mod client;
mod failure;
mod limits;
mod node;
mod reader;
mod reporter;
mod session;
mod support;
