// SPDX-License-Identifier: Apache-2.0
//! The event loop of the drop-in: one thread, one `poll`.
//!
//! [`event_loop`] carries one event from the kernel's message to the last outlet, and is the only place
//! that decides the order. [`conntrack`] is the outlet that a helper process serves. [`event`] lists the events that the
//! loop records; the binary turns them into log lines.

pub mod conntrack;
pub mod event;
pub mod event_loop;

pub use event::{Event, EventLog};
pub use event_loop::{EventLoop, LoopEnd, LoopSettings, OptionalOutlets};
