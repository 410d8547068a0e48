// SPDX-License-Identifier: Apache-2.0
//! The finding about a `vrrp_sync_group`: keepalived moves all its members together, so their roles must be the same.
//!
//! During an election the members change one after the other. A split needs roles that differ for longer than an advert
//! interval and [`SETTLE`].

use std::time::Duration;

use super::{Finding, SETTLE};
use crate::{FindingKind, Role, first_of};

/// Maximum number of members that the text names for each role.
const MAX_NAMED: usize = 5;

/// One member of a sync group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyncMember {
    /// The id of the instance.
    pub id: String,
    /// Its role.
    pub role: Role,
    /// Whether the kernel has an address of it.
    pub holds_address: bool,
    /// How long it has had its role.
    pub age: Duration,
}

/// Whether the roles of the members are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncState {
    /// They are, or it is not known.
    Together,
    /// They differ for less than an election.
    Changing,
    /// They differ for longer than an election.
    Split,
}

/// The facts about one sync group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyncGroupFacts {
    /// The name of the group.
    pub group: String,
    /// The members that are followed.
    pub members: Vec<SyncMember>,
    /// The longest advert interval of the members.
    pub interval: Duration,
}

impl SyncMember {
    /// Whether the member is primary; `None` if that is not known. A link that is down does not take the addresses away,
    /// so a member in fault counts as primary while it has one.
    fn is_primary(&self) -> Option<bool> {
        match self.role {
            Role::Primary | Role::Partial { .. } => Some(true),
            Role::Backup => Some(false),
            Role::Fault(_) => Some(self.holds_address),
            Role::Unknown(_) => None,
        }
    }
}

impl SyncGroupFacts {
    /// Whether the roles of the members are the same.
    pub fn state(&self) -> SyncState {
        let has = |wanted| self.members.iter().any(|member| member.is_primary() == Some(wanted));
        if !has(true) || !has(false) {
            return SyncState::Together;
        }
        let youngest = self.members.iter().map(|member| member.age).min().unwrap_or_default();
        if youngest < self.interval + SETTLE { SyncState::Changing } else { SyncState::Split }
    }

    pub(super) fn finding(&self) -> Option<Finding> {
        (self.state() == SyncState::Split).then(|| Finding::new(FindingKind::SyncGroupSplit, format!(
                "the members of vrrp_sync_group {} have different roles: primary are {}; not primary are {}",
                self.group,
                self.names(true),
                self.names(false)
            )))
    }

    /// The names of the members that are primary, or of those that are not; the latter with their roles.
    fn names(&self, is_primary: bool) -> String {
        let wanted = self.members.iter().filter(|one| one.is_primary() == Some(is_primary));
        let text = |one: &SyncMember| match one.role {
            Role::Primary => one.id.clone(),
            _ => format!("{} ({})", one.id, one.role.as_str()),
        };
        first_of(wanted.map(text), MAX_NAMED, ", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Fault;
    use crate::audit::AuditFacts;

    fn member(id: &str, role: Role, seconds: u64) -> SyncMember {
        let holds_address = role == Role::Primary;
        SyncMember { id: id.to_owned(), role, holds_address, age: Duration::from_secs(seconds) }
    }

    fn group(members: Vec<SyncMember>) -> SyncGroupFacts {
        SyncGroupFacts { group: "G".to_owned(), members, interval: Duration::from_secs(1) }
    }

    #[test]
    fn different_roles_are_a_split_only_after_an_election() {
        let roles = |age| {
            group(vec![member("A", Role::Primary, 60), member("B", Role::Backup, age)]).state()
        };
        assert_eq!(roles(1), SyncState::Changing, "B has changed just now");
        assert_eq!(roles(2), SyncState::Split);
        let mut slow = group(vec![member("A", Role::Primary, 9), member("B", Role::Backup, 9)]);
        slow.interval = Duration::from_secs(10);
        assert_eq!(slow.state(), SyncState::Changing, "an election takes longer here");
    }

    #[test]
    fn the_finding_names_the_members_and_their_roles() {
        let mut facts = AuditFacts::new(Role::Primary);
        let fault = Role::Fault(Fault::NoNetns);
        let members =
            [("B", Role::Backup), ("C", fault), ("D", Role::Partial { held: 1, total: 2 })];
        let mut members: Vec<_> =
            members.into_iter().map(|(id, role)| member(id, role, 60)).collect();
        members.push(member("A", Role::Primary, 60));
        facts.sync_group = Some(group(members));
        let findings = facts.findings();
        assert_eq!(findings[0].kind.name(), "sync-group-split");
        let expected = "the members of vrrp_sync_group G have different roles: primary are D (partial), A; not \
                        primary are B (backup), C (fault)";
        assert_eq!(findings[0].text, expected);
    }

    #[test]
    fn a_large_group_is_named_in_part() {
        let mut members: Vec<_> =
            (0..9).map(|number| member(&number.to_string(), Role::Backup, 60)).collect();
        members.push(member("A", Role::Primary, 60));
        let text = group(members).finding().unwrap().text;
        assert!(text.ends_with("3 (backup), 4 (backup) and 4 more"), "{text}");
    }

    #[test]
    fn a_group_in_fault_or_with_an_unknown_member_is_not_split() {
        let fault = || Role::Fault(Fault::NoNetns);
        let together = |members: Vec<SyncMember>| group(members).state() == SyncState::Together;
        // A member with a failed link takes the others along: they are backup.
        assert!(together(vec![member("A", fault(), 60), member("B", Role::Backup, 60)]));
        assert!(together(vec![
            member("A", Role::Primary, 60),
            member("B", Role::Unknown(String::new()), 60)
        ]));
        let mut holding = member("A", fault(), 60);
        holding.holds_address = true;
        assert!(together(vec![holding, member("B", Role::Primary, 60)]), "dont_track_primary");
        assert!(!together(vec![member("A", fault(), 60), member("B", Role::Primary, 60)]));
    }
}
