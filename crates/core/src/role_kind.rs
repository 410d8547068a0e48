// SPDX-License-Identifier: Apache-2.0
//! A role without its details, as it is stored in the history and compared across runs of the node.

use strum::{EnumString, IntoStaticStr};

use crate::Role;

/// The five roles, the most serious first. [`Role`] has the same five, with the details that explain them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, EnumString, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum RoleKind {
    /// The instance holds none of its addresses, and a link or the namespace is missing or down.
    Fault,
    /// The kernel could not be read.
    Unknown,
    /// The instance holds some of its addresses.
    Partial,
    /// The instance holds all its addresses.
    Primary,
    /// The instance holds none of its addresses.
    Backup,
}

impl RoleKind {
    /// All roles, the most serious first.
    pub const ALL: [Self; 5] =
        [Self::Fault, Self::Unknown, Self::Partial, Self::Primary, Self::Backup];

    /// The word for the role in JSON, in the history and in state files.
    pub fn word(self) -> &'static str {
        self.into()
    }

    /// The role that `word` stands for; `None` for any other word.
    pub fn from_word(word: &str) -> Option<Self> {
        word.parse().ok()
    }
}

impl Role {
    /// The role without its details.
    pub fn kind(&self) -> RoleKind {
        match self {
            Self::Primary => RoleKind::Primary,
            Self::Partial { .. } => RoleKind::Partial,
            Self::Backup => RoleKind::Backup,
            Self::Fault(_) => RoleKind::Fault,
            Self::Unknown(_) => RoleKind::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Fault;

    #[test]
    fn a_role_and_its_kind_have_the_same_word_and_the_word_is_read_back() {
        let roles = [
            Role::Fault(Fault::NoNetns),
            Role::Unknown("permission denied".to_owned()),
            Role::Partial { held: 1, total: 2 },
            Role::Primary,
            Role::Backup,
        ];
        for (role, kind) in roles.iter().zip(RoleKind::ALL) {
            assert_eq!((role.kind(), role.as_str()), (kind, kind.word()));
            assert_eq!(RoleKind::from_word(kind.word()), Some(kind));
        }
    }

    #[test]
    fn a_word_that_is_no_role_is_ignored() {
        assert_eq!(["master", "", "Primary"].map(RoleKind::from_word), [None; 3]);
    }
}
