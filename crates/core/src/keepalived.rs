// SPDX-License-Identifier: Apache-2.0
//! Reads keepalived's configuration: which VRRP instances there are, and which addresses they have.
//!
//! ```text
//!   files ── lines ──► logical lines ── blocks ──► statements ── draft ──► instances ── vmac ──► links
//! ```
//!
//! Every step does the same as the keepalived in [`Program`], also with invalid text. Where the result may differ, a
//! [`Problem`] says so. The module opens no files: the caller does, with [`Files`].

mod auth_hmac;
mod blocks;
mod command_line;
mod definitions;
mod draft;
mod globals;
mod keywords;
mod lines;
mod loaded;
mod numbers;
mod problem;
mod repeat;
mod routing;
mod sync_group;
mod text;
mod version;
mod vmac;
mod vrrp;

pub use auth_hmac::{AuthHmac, AuthHmacMode};
pub use command_line::{CommandLine, DEFAULT_CONFIG};
pub use lines::{ConfigurationText, Files, Include, Source};
pub use loaded::loaded_parts;
pub use problem::{FilePosition, Impact, Message, Problem, Problems};
pub use routing::{VirtualRoute, VirtualRule};
pub use text::{has_secret, without_secrets};
pub use version::Version;
pub use vrrp::{
    Configuration, Harm, Program, ProtocolSettings, StartupDelay, VirtualAddress, VrrpInstance,
    configuration,
};
