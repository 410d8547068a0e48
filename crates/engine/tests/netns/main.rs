//! The engine on a real kernel. Needs namespaces of its own, and the signals of directories
//! held back in every thread, which `cargo xtask test` arranges.

#![expect(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod announce;
mod keepalived;
mod roster;
mod spine;
