//! The event loop of the drop-in on a real kernel, in network namespaces that `cargo xtask test`
//! provides, with the signals of directory changes blocked in every thread.

#![expect(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod event_loop;
