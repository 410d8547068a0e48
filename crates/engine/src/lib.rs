//! The loop and the outlets. Synchronous: one thread, one `poll`, no runtime.
//!
//! [`spine`] is the walk of an event, from the kernel's message to the last outlet, and the
//! only place that decides order. The [`outlet`]s are where it ends: a file, the network, a
//! helper that runs conntrackd, the agent's socket. None of them ever makes the spine wait. [`event`]
//! is what the spine has to say about itself; whoever runs it finds the words.
//!
//! [`discovery`] finds what there is to watch on a node, and [`look`] asks the kernel once where it
//! all stands; a [`roster`] follows it.

pub mod discovery;
pub mod event;
pub mod keepalived_conf;
pub mod look;
pub mod outlet;
pub mod roster;
pub mod spine;

pub use event::{Event, Journal};
pub use spine::{Ending, Helpers, Settings, Spine};
