//! Discovery and the instance table on a real kernel, in network namespaces that `cargo xtask test`
//! provides.

#![expect(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod instance_table;
mod keepalived;
