//! What the kernel told us. Facts only: nothing here says what they mean.

use ipnet::IpNet;

use crate::LinkName;

/// Kernel interface index, unique only within one namespace, never reused for a new link
/// under the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkIndex(pub u32);

/// Whether anybody would answer for an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Usability {
    /// The address is in use.
    Usable,
    /// IPv6 duplicate address detection has not ended yet (RFC 4862 §5.4), or found another
    /// holder.
    NotUsable,
}

/// Why the kernel was asked for everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapshotReason {
    /// Nothing was known yet.
    First,
    /// Events were lost, or could not be read.
    Resync,
    /// Nothing is wrong as far as we know; this is to find out.
    Audit,
}

/// Everything the kernel holds, in one consistent picture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inventory {
    /// Why it was taken.
    pub look: SnapshotReason,
    /// Every link of the namespace.
    pub links: Vec<(LinkIndex, LinkName)>,
    /// Addresses; the taker may have left out those nobody watches.
    pub addresses: Vec<(LinkIndex, IpNet, Usability)>,
}

/// One fact about a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Observation {
    /// An address was added, or something about it changed.
    AddressSeen {
        /// The link it is on.
        link: LinkIndex,
        /// The local address and its prefix length.
        cidr: IpNet,
        /// Whether it is in use.
        usability: Usability,
    },
    /// An address was removed.
    AddressRemoved {
        /// The link it was on.
        link: LinkIndex,
        /// The local address and its prefix length.
        cidr: IpNet,
    },
    /// A link was created, renamed, or changed in a way that is none of our business.
    LinkSeen {
        /// Its identity.
        link: LinkIndex,
        /// Its name now.
        name: LinkName,
    },
    /// A link was deleted or left the namespace.
    LinkRemoved {
        /// Its identity.
        link: LinkIndex,
    },
    /// The picture from a dump; it replaces what was known, it does not add to it.
    Inventory(Inventory),
    /// The first look has taken so long that somebody must be told something.
    FirstLookOverdue,
    /// The namespace lost its name; what it holds no longer matters to anybody.
    NamespaceRemoved,
}
