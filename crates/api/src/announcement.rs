// SPDX-License-Identifier: Apache-2.0
//! The answer of `vipwatch announce`. No route has it: the command sends the announcements itself.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::Schema;

/// The result of announcements.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnnounceDocument {
    /// [`Schema::Announce`]
    pub schema: Schema,
    /// The name of the node.
    pub node: String,
    /// The addresses that were announced.
    pub announced: Vec<AnnouncedItem>,
    /// The addresses that are not announced, with the reason.
    pub refused: Vec<RefusedItem>,
    /// The addresses with an error while their frames were sent.
    pub failed: Vec<FailedItem>,
    /// Other stations that hold an announced address.
    pub duplicates: Vec<DuplicateItem>,
    /// The number of frames that were sent.
    pub frames: u64,
}

/// An announced address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnnouncedItem {
    /// The address.
    pub ip: IpAddr,
    /// The name of the link that holds it.
    pub link: String,
    /// The MAC address of the link.
    pub mac: String,
    /// The number of rounds.
    pub rounds: u16,
}

/// An address that is not announced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedItem {
    /// The address.
    pub ip: IpAddr,
    /// The name of the link that holds it; null if no link does.
    pub link: Option<String>,
    /// The reason.
    pub reason: String,
}

/// An address with an error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedItem {
    /// The address.
    pub ip: IpAddr,
    /// The name of the link that holds it.
    pub link: String,
    /// The error.
    pub error: String,
}

/// Another station that holds an announced address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DuplicateItem {
    /// The address.
    pub ip: IpAddr,
    /// The name of the link on which the station answers.
    pub link: String,
    /// The MAC address of the station.
    pub mac: String,
}
