// SPDX-License-Identifier: Apache-2.0
//! Facts about a namespace that were read from the kernel. [`crate::tracker`] interprets them.

use ipnet::IpNet;

use crate::LinkName;
use crate::snapshot::Snapshot;

/// A kernel interface index. It is unique within one namespace only; a link that is created again under
/// the same name gets another index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkIndex(pub u32);

/// Whether the kernel answers for an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Usability {
    /// The kernel answers for the address.
    Usable,
    /// IPv6 duplicate address detection (RFC 4862 §5.4) has not ended, or found another host with the
    /// address.
    NotUsable,
}

/// Why all links and addresses of a namespace were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapshotReason {
    /// The first read after the start.
    First,
    /// The kernel dropped events, or events could not be read.
    Resync,
    /// A periodic check of the state that was built from events.
    Audit,
}

/// One fact about a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Observation {
    /// An address was added, or one of its attributes changed.
    AddressSeen {
        /// The link it is on.
        link: LinkIndex,
        /// The local address and its prefix length.
        cidr: IpNet,
        /// Whether the kernel answers for it.
        usability: Usability,
    },
    /// An address was removed.
    AddressRemoved {
        /// The link it was on.
        link: LinkIndex,
        /// The local address and its prefix length.
        cidr: IpNet,
    },
    /// A link was created or renamed, or one of its attributes changed.
    LinkSeen {
        /// The index of the link.
        link: LinkIndex,
        /// The current name of the link.
        name: LinkName,
    },
    /// A link was deleted or left the namespace.
    LinkRemoved {
        /// The index of the link.
        link: LinkIndex,
    },
    /// All links, and the addresses in the scope of the monitor. It replaces all earlier observations.
    Snapshot {
        /// Why it was taken.
        reason: SnapshotReason,
        /// Links and addresses; the monitor may have left out addresses that are not watched.
        snapshot: Snapshot,
    },
    /// The first snapshot takes too long: consumers get an assumed state until it arrives.
    FirstSnapshotOverdue,
    /// The name of the namespace was removed (`ip netns delete`); its addresses no longer matter.
    NamespaceRemoved,
}
