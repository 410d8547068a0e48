// SPDX-License-Identifier: Apache-2.0
//! The words of a notification: what happened, and how its delivery was concluded.

use strum::{EnumString, IntoStaticStr};

use crate::{ReportedState, RoleKind};

/// The subject of a notification. The words are the values of `on` in the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EventKind {
    /// The instance took this role, or a monitor reported the state of the same name.
    Role(RoleKind),
    /// The instance is no longer configured.
    Removed,
    /// The audit opened or closed a finding.
    Finding,
}

impl EventKind {
    /// All events of an instance, without findings: the default of `on`.
    pub const OF_INSTANCE: [Self; 6] = [
        Self::Role(RoleKind::Primary),
        Self::Role(RoleKind::Partial),
        Self::Role(RoleKind::Backup),
        Self::Role(RoleKind::Fault),
        Self::Role(RoleKind::Unknown),
        Self::Removed,
    ];

    /// The states that monitors report: the values of `on` of a receiver's target.
    pub const OF_REPORT: [Self; 4] = [
        Self::Role(RoleKind::Primary),
        Self::Role(RoleKind::Backup),
        Self::Role(RoleKind::Fault),
        Self::Role(RoleKind::Unknown),
    ];

    /// The word in JSON, in the configuration and in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Role(kind) => kind.word(),
            Self::Removed => "removed",
            Self::Finding => "finding",
        }
    }

    /// The event that `word` stands for; `None` for any other word.
    pub fn from_word(word: &str) -> Option<Self> {
        let all = Self::OF_INSTANCE.into_iter().chain([Self::Finding]);
        all.into_iter().find(|kind| kind.as_str() == word)
    }
}

impl From<ReportedState> for EventKind {
    fn from(state: ReportedState) -> Self {
        Self::Role(match state {
            ReportedState::Primary => RoleKind::Primary,
            ReportedState::Backup => RoleKind::Backup,
            ReportedState::Fault => RoleKind::Fault,
            ReportedState::Unknown => RoleKind::Unknown,
        })
    }
}

/// What happens to a notification that waits when its instance changes again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum DeliveryMode {
    /// The newer notification replaces it.
    Latest,
    /// Every notification is delivered, in order.
    Every,
}

/// How the delivery of a notification ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, EnumString, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum Conclusion {
    /// The target has accepted it.
    Delivered,
    /// All attempts failed, or the target rejected it.
    GivenUp,
    /// A newer notification replaced it.
    Superseded,
    /// The target is not configured for it, a silence covered it, or the role was back before it settled.
    Filtered,
}
