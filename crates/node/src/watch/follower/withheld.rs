// SPDX-License-Identifier: Apache-2.0
//! Role changes that are not reported yet: the next scan may show that the instance is gone, or that other addresses
//! decide its role.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use vipwatch_core::{Fault, InstanceId, Moment, Role};

use crate::discovery::InstanceConfig;
use crate::watch::instance_table::{AddressChange, RoleChange};

/// The longest time that a change waits: a file may keep changing, and a scan may take as long as a file system blocks. On a
/// busy machine, a scan takes a second or two.
const MAX_WAIT: Duration = Duration::from_secs(5);

#[derive(Debug)]
struct WithheldChange {
    change: RoleChange,
    since: Moment,
    /// The place of the change among those of all instances.
    number: u64,
    /// The scan in progress decides it, because it began after the change; otherwise the next one.
    is_in_decision: bool,
}

/// The withheld changes.
#[derive(Debug, Default)]
pub(super) struct Withheld {
    /// Those of each instance, in their order.
    held: HashMap<InstanceId, Vec<WithheldChange>>,
    /// The number of changes so far.
    count: u64,
    /// The addresses of instances with changes that ended where they began.
    cancelled: Vec<AddressChange>,
}

impl Withheld {
    /// Withholds a change until the next scan.
    pub(super) fn hold(&mut self, change: RoleChange, now: Moment) {
        if self.cancel(&change) {
            return;
        }
        self.count += 1;
        let held = self.held.entry(change.instance.id.clone()).or_default();
        let number = self.count;
        held.push(WithheldChange { change, since: now, number, is_in_decision: false });
    }

    /// A scan begins: it decides all changes that are withheld now.
    pub(super) fn begin_scan(&mut self) {
        self.held.values_mut().flatten().for_each(|held| held.is_in_decision = true);
    }

    /// Whether a change of this instance is withheld.
    pub(super) fn contains(&self, id: &InstanceId) -> bool {
        self.held.contains_key(id)
    }

    /// A change that is not withheld, after the earlier ones of its instance.
    pub(super) fn after_earlier(&mut self, newer: RoleChange) -> Vec<RoleChange> {
        if self.cancel(&newer) {
            return Vec::new();
        }
        let earlier = self.held.remove(&newer.instance.id).unwrap_or_default();
        earlier.into_iter().map(|held| held.change).chain([newer]).collect()
    }

    /// Forgets the changes of an instance if `newer` takes it back to the role from before they began: they are effects of
    /// a configuration that is not in use any more. Returns whether it does.
    fn cancel(&mut self, newer: &RoleChange) -> bool {
        let RoleChange { instance, addresses, .. } = newer;
        let Some(earlier) = self.held.get(&instance.id) else { return false };
        let first = earlier.first().and_then(|held| held.change.from.as_ref());
        let is_cancelled = first == Some(&newer.to)
            && earlier.iter().all(|held| held.change.to != Role::Fault(Fault::NoNetns));
        if is_cancelled {
            self.held.remove(&instance.id);
            let addresses = Arc::clone(addresses);
            self.cancelled.push(AddressChange { id: instance.id.clone(), addresses });
        }
        is_cancelled
    }

    /// Forgets the changes of instances that are no longer configured. The others are about the new configuration.
    pub(super) fn follow(&mut self, instances: &[Arc<InstanceConfig>]) {
        let by_id: HashMap<_, _> = instances.iter().map(|one| (&one.id, one)).collect();
        self.held.retain(|id, held| {
            let Some(instance) = by_id.get(id) else { return false };
            for held in held {
                held.change.instance = Arc::clone(instance);
            }
            true
        });
    }

    /// The changes that the scan has decided. Those for which `is_open` waits for the next one.
    pub(super) fn decided(
        &mut self,
        is_open: impl Fn(&RoleChange) -> bool,
        now: Moment,
    ) -> Vec<RoleChange> {
        let decided = self.take(|held| {
            let is_open = || is_open(&held.change) && now.since(held.since) < MAX_WAIT;
            held.is_in_decision && !is_open()
        });
        self.held.values_mut().flatten().for_each(|held| held.is_in_decision = false);
        decided
    }

    /// When the first change has waited for [`MAX_WAIT`].
    pub(super) fn due(&self) -> Option<Moment> {
        self.held.values().flatten().map(|held| held.since + MAX_WAIT).min()
    }

    /// The changes that have waited for [`MAX_WAIT`], whether a scan has ended or not.
    pub(super) fn take_overdue(&mut self, now: Moment) -> Vec<RoleChange> {
        self.take(|held| now.since(held.since) >= MAX_WAIT)
    }

    /// Takes these changes of all instances, in their order.
    fn take(&mut self, is_wanted: impl Fn(&WithheldChange) -> bool) -> Vec<RoleChange> {
        let each = self.held.values_mut();
        let mut taken: Vec<_> =
            each.flat_map(|held| held.extract_if(.., |held| is_wanted(held))).collect();
        self.held.retain(|_, held| !held.is_empty());
        taken.sort_unstable_by_key(|held| held.number);
        taken.into_iter().map(|held| held.change).collect()
    }

    /// The addresses of the instances with cancelled changes, since the last call.
    pub(super) fn take_cancelled(&mut self) -> Vec<AddressChange> {
        std::mem::take(&mut self.cancelled)
    }
}

#[cfg(test)]
mod tests {
    use vipwatch_core::Trigger;

    use super::*;
    use crate::discovery::example;

    fn change(from: Role, to: Role) -> RoleChange {
        let (instance, addresses) = (Arc::new(example()), Arc::from([]));
        let (from, trigger) = (Some(from), Trigger::Address);
        RoleChange { instance, from, to, addresses, trigger, changer: None }
    }

    fn at(milliseconds: u64) -> Moment {
        Moment::new(Duration::from_millis(milliseconds))
    }

    fn roles(changes: &[RoleChange]) -> Vec<Role> {
        changes.iter().map(|change| change.to.clone()).collect()
    }

    const FAULT: Role = Role::Fault(Fault::NoNetns);
    const PARTIAL: Role = Role::Partial { held: 1, total: 2 };

    #[test]
    fn a_change_that_waits_for_a_scan_is_not_reported_after_a_newer_one() {
        let mut withheld = Withheld::default();
        withheld.hold(change(Role::Primary, FAULT), at(0));
        withheld.begin_scan();
        assert!(withheld.contains(&example().id));
        let changes = withheld.after_earlier(change(FAULT, Role::Backup));
        assert_eq!(roles(&changes), [FAULT, Role::Backup]);
        assert!(withheld.decided(|_| false, at(1)).is_empty(), "reported once");
    }

    #[test]
    fn a_reload_that_replaces_an_address_is_no_change_of_the_role() {
        let mut withheld = Withheld::default();
        withheld.hold(change(Role::Primary, PARTIAL), at(0));
        withheld.begin_scan();
        withheld.hold(change(PARTIAL, Role::Backup), at(1));
        assert_eq!(roles(&withheld.after_earlier(change(Role::Backup, Role::Primary))), []);
        withheld.hold(change(Role::Primary, PARTIAL), at(2));
        withheld.hold(change(PARTIAL, Role::Primary), at(3));
        assert_eq!(withheld.take_cancelled().len(), 2);
        withheld.begin_scan();
        assert_eq!(roles(&withheld.decided(|_| false, at(4))), []);
        // A namespace that was replaced is a change, also if the role is the same in the new one.
        withheld.hold(change(Role::Backup, FAULT), at(5));
        let changes = withheld.after_earlier(change(FAULT, Role::Backup));
        assert_eq!(roles(&changes), [FAULT, Role::Backup]);
    }

    #[test]
    fn the_first_role_of_an_instance_that_is_back_comes_after_no_earlier_change() {
        let mut withheld = Withheld::default();
        withheld.hold(change(Role::Primary, PARTIAL), at(0));
        withheld.follow(&[]);
        let first = RoleChange { from: None, ..change(PARTIAL, Role::Primary) };
        assert_eq!(roles(&withheld.after_earlier(first)), [Role::Primary]);
        assert_eq!(roles(&withheld.take_overdue(at(5000))), []);
    }

    #[test]
    fn a_change_that_a_scan_decides_has_the_configuration_that_the_scan_has_found() {
        let mut withheld = Withheld::default();
        withheld.hold(change(Role::Primary, Role::Backup), at(0));
        withheld.begin_scan();
        let found = Arc::new(example());
        withheld.follow(&[Arc::clone(&found)]);
        let decided = withheld.decided(|_| false, at(1));
        assert_eq!(roles(&decided), [Role::Backup]);
        assert!(Arc::ptr_eq(&decided[0].instance, &found));
    }

    #[test]
    fn a_scan_that_does_not_end_holds_no_change_back_for_ever() {
        let mut withheld = Withheld::default();
        assert_eq!(withheld.due(), None);
        withheld.hold(change(Role::Primary, PARTIAL), at(0));
        withheld.begin_scan();
        withheld.hold(change(PARTIAL, Role::Backup), at(500));
        assert_eq!(withheld.due(), Some(at(5000)));
        assert_eq!(roles(&withheld.take_overdue(at(4999))), []);
        assert_eq!(roles(&withheld.take_overdue(at(5000))), [PARTIAL]);
        assert!(withheld.contains(&example().id), "the second one has not waited long enough");
        assert_eq!(withheld.due(), Some(at(5500)));
        assert_eq!(roles(&withheld.take_overdue(at(5500))), [Role::Backup]);
        assert_eq!(withheld.due(), None);
    }

    #[test]
    fn a_file_that_never_settles_holds_no_change_back_for_ever() {
        let mut withheld = Withheld::default();
        withheld.hold(change(Role::Primary, Role::Backup), at(0));
        for now in [100, 200] {
            withheld.begin_scan();
            assert!(withheld.decided(|_| true, at(now)).is_empty());
        }
        withheld.begin_scan();
        assert_eq!(roles(&withheld.decided(|_| true, at(5000))), [Role::Backup]);
    }
}
