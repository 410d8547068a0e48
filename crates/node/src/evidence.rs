// SPDX-License-Identifier: Apache-2.0
//! Messages of the workers to the main loop: the evidence about transitions has changed.

use vipwatch_core::cause::AddressChanger;
use vipwatch_core::{InstanceId, NetnsName};
use vipwatch_linux::wake_queue::WakeQueue;

/// Evidence that a worker has read or that has changed.
#[derive(Debug)]
pub(crate) enum EvidenceUpdate {
    /// The adverts on the links of a namespace were read; `None` is the node's own namespace.
    AdvertsRead(Option<NetnsName>),
    /// The processes of an instance's keepalived were read after a transition, as the main loop had requested.
    ProcessesRead {
        /// The instance.
        id: InstanceId,
        /// The sequence number of the transition.
        transition: i64,
        /// The process that changed its address; `None` if it is not known.
        changer: Option<AddressChanger>,
    },
    /// A process of a keepalived has started, ended, stopped or continued.
    ProcessesChanged,
    /// Another host has advertised the addresses of this primary instance too, and advertises them no more.
    SplitEnded(InstanceId),
    /// This host holds the addresses of the instance, and its next advert is late.
    OwnAdvertLate(InstanceId),
}

/// The updates for the main loop.
///
/// BOUND: one entry for each request of the main loop, for each scan that finds a changed process, for each end of a split,
/// and for each late advert. The main loop empties the queue in every turn.
pub(crate) type EvidenceUpdates = WakeQueue<EvidenceUpdate>;
