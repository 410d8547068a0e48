//! What an instance is, as far as the kernel shows it.

/// Whether this node holds the instance's virtual address.
///
/// Other programs have other words for it (Neutron said `master` once); they are
/// translated where those programs are spoken to, never here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NeutronState {
    /// The address is on the watched link and usable.
    Primary,
    /// It is not.
    Backup,
}

impl NeutronState {
    /// Our own word for it; others have theirs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Primary => "primary",
            Self::Backup => "backup",
        }
    }
}
