// SPDX-License-Identifier: Apache-2.0
//! The outlets on a real kernel, in network namespaces that `cargo xtask test` provides.

#![expect(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod announce;
mod state_file;
