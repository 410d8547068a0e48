// SPDX-License-Identifier: Apache-2.0
//! The state of an HA router as Neutron's monitors report it to the L3 agent: primary or backup.

/// Whether this node holds the instance's virtual address, as Neutron's monitors report it.
///
/// Releases of Neutron name the states differently (`master` was the older name of `primary`). The
/// outlets translate the names; this type has one spelling only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NeutronState {
    /// The address is on the watched link and usable.
    Primary,
    /// The address is not on the watched link, or not usable.
    Backup,
}

impl NeutronState {
    /// The name of the state in vipwatch's own output: `primary` or `backup`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Primary => "primary",
            Self::Backup => "backup",
        }
    }
}
