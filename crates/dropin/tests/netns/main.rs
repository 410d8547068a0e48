// SPDX-License-Identifier: Apache-2.0
//! Tests of the drop-in's event loop on a real kernel, in network namespaces that `cargo xtask test`
//! provides. The signals for directory changes are blocked in every thread.

#![expect(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod event_loop;
