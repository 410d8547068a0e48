// SPDX-License-Identifier: Apache-2.0
//! The dashboard in real Chromium, with a node and real keepalived in namespaces that `cargo xtask test` provides.

#![expect(clippy::unwrap_used, reason = "a panic fails the test with its message")]

mod accessibility;
mod cluster;
mod hostile;
mod keyboard;
mod live;
mod modules;
mod proxy;
mod reconnect;
mod routes;
mod scale;
mod support;
mod token;
