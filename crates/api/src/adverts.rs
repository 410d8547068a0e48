// SPDX-License-Identifier: Apache-2.0
//! The VRRP adverts of an instance: a part of `GET /v1/instances/{id}`.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Whether the adverts of a link are captured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, strum::Display)]
#[strum(serialize_all = "kebab-case")]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum CaptureState {
    /// They are captured.
    Running,
    /// The namespace does not exist.
    NoNamespace,
    /// The link does not exist.
    NoLink,
    /// The link is down or has no carrier.
    LinkDown,
    /// The node has no permission to capture them.
    Refused,
    /// The packet socket failed.
    Failed,
}

/// Whether a source of the captured adverts advertises. Without sent adverts, this is about other hosts only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum AdvertPresence {
    /// At least one source advertises.
    Advertised,
    /// No source has advertised for longer than the master-down interval.
    Silent,
    /// It cannot be said: the capture has just begun, does not run, or has lost packets, or adverts cannot be decoded.
    Unknown,
}

/// The captured adverts of one instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AdvertsItem {
    /// The link on which adverts are captured.
    pub link: String,
    /// Whether they are captured.
    pub capture: CaptureState,
    /// The error of the packet socket; null if there is none.
    pub error: Option<String>,
    /// Whether sent adverts are captured too. If not, this node's own adverts are not in the list.
    pub sent: bool,
    /// Since when adverts are captured without an interruption.
    pub since: Timestamp,
    /// Whether a source advertises.
    pub presence: AdvertPresence,
    /// For how long no source has advertised, in milliseconds; null unless `presence` is `silent`.
    pub silent_ms: Option<u64>,
    /// The sources, those with the newest adverts first; at most 8.
    pub sources: Vec<AdvertSourceItem>,
    /// The number of adverts for this virtual router that cannot be decoded.
    pub undecoded: u32,
    /// When the last of them was captured; null if there was none.
    pub last_undecoded_at: Option<Timestamp>,
    /// The numbers of packets on the link that were not believed, by their error.
    pub bad: BTreeMap<String, u64>,
    /// When the last of them was captured; null if there was none.
    pub last_bad_at: Option<Timestamp>,
    /// The number of packets that were lost because the queue of the capture was full.
    pub dropped: u64,
    /// When packets were last lost; null if none was.
    pub overrun_at: Option<Timestamp>,
    /// The number of other virtual router ids on the link that no followed instance of this node has.
    pub other_vrids: u32,
}

/// The signature of an advert.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AdvertSignature {
    /// The id of the key.
    pub key_id: u8,
    /// This host's clock minus the sender's, in milliseconds, when the advert arrived.
    pub clock_difference_ms: i64,
}

/// The newest advert of one source, and figures about its earlier ones.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AdvertSourceItem {
    /// The source address.
    pub source: String,
    /// Whether this host sent the adverts.
    pub own: bool,
    /// Whether the source advertises now: it has not handed over, and its adverts have not stopped.
    pub advertising: bool,
    /// The priority; 0 if the source has handed over.
    pub priority: u8,
    /// The priority before the last change; null if it has not changed.
    pub previous_priority: Option<u8>,
    /// The announced interval, in milliseconds.
    pub interval_ms: u64,
    /// The version of VRRP: 2 or 3.
    pub version: u8,
    /// `none`, `pass` or `ah`.
    pub authentication: String,
    /// The signature (`auth_hmac`) of the newest advert, which the node cannot verify; null if it is not signed.
    pub signature: Option<AdvertSignature>,
    /// Whether the adverts are sent to unicast peers. The other ones are multicast.
    pub unicast: bool,
    /// The addresses.
    pub addresses: Vec<String>,
    /// The time of the newest advert.
    pub at: Timestamp,
    /// The age of the newest advert in milliseconds, when the answer was made.
    pub age_ms: u64,
    /// The time of the first advert of the current series.
    pub since: Timestamp,
    /// The number of adverts.
    pub adverts: u64,
    /// The number of adverts that are missing within series.
    pub lost: u64,
    /// The smoothed deviation from the announced interval, in microseconds.
    pub jitter_us: u64,
    /// Settings that differ from this node's configuration, in words; empty for own adverts.
    pub differences: Vec<String>,
}
