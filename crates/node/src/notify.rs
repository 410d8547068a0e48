// SPDX-License-Identifier: Apache-2.0
//! Delivers transitions, removals, findings and reported states to the configured targets.

pub(crate) mod announce;
mod attempt;
mod backlog;
pub(crate) mod earlier_run;
pub(crate) mod hook;
mod inline_views;
pub(crate) mod instance_outlets;
mod ipv6;
pub(crate) mod notification;
pub mod notifier;
pub(crate) mod post;
pub mod report_outlet;
mod setup;
mod slots;
pub(crate) mod target;
mod target_queue;
mod undelivered_reports;

pub use self::notifier::Notifier;
pub use self::setup::NotifierSetup;

/// The name under which completed announcements are stored.
pub(crate) const ANNOUNCE: &str = "announce";
