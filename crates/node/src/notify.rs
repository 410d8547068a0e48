//! Delivers transitions and reported states to the configured targets.

pub(crate) mod announce;
pub(crate) mod hook;
pub(crate) mod keyed_queue;
pub(crate) mod notifier;
pub(crate) mod outlet;
pub(crate) mod post;
pub(crate) mod queue;
pub mod report_notifier;
pub(crate) mod webhook;
