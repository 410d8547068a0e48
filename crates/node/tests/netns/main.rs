// SPDX-License-Identifier: Apache-2.0
//! Discovery and the instance table on a real kernel, in network namespaces that `cargo xtask test`
//! provides.

#![expect(clippy::unwrap_used, reason = "a panic fails the test with its message")]

mod instance_table;
mod keepalived;
