//! keepalived's configuration, as far as it says which addresses are virtual.
//!
//! ```text
//!   files ── lines ──► logical lines ── blocks ──► statements ── draft ──► instances ── vmac ──► links
//! ```
//!
//! Every step does what keepalived 2.2.7 does, also with text that makes no sense: a file is read as
//! keepalived reads it, or a problem says what differs. Nothing here opens a file: the caller does, see
//! [`Files`].

mod blocks;
mod definitions;
mod draft;
mod globals;
mod keywords;
mod lines;
mod numbers;
mod problem;
mod repeat;
mod text;
mod vmac;
mod vrrp;

pub use lines::{Files, Include, Source};
pub use problem::{FilePosition, Problem, Weight};
pub use vrrp::{Configuration, VirtualAddress, VrrpInstance, configuration};
