// SPDX-License-Identifier: Apache-2.0
//! Role changes that are not reported yet: the next scan may show that the instance is gone, or that other addresses
//! decide its role.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use vipwatch_core::{Fault, InstanceId, Moment, Role};
use vipwatch_linux::clock::Stamp;

use crate::discovery::{InstanceConfig, PendingEdit};
use crate::watch::instance_table::{AddressChange, RoleChange};

/// The longest time that a change waits: a file may keep changing, and a scan may take as long as a file system blocks. On a
/// busy machine, a scan takes a second or two.
const MAX_WAIT: Duration = Duration::from_secs(5);

#[derive(Debug)]
struct WithheldChange {
    change: RoleChange,
    since: Stamp,
    /// Why the content of its file was not in use then.
    edit: Option<PendingEdit>,
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
    /// Withholds a change until the next scan. `edit` is why the content of its file is not in use.
    pub(super) fn hold(&mut self, change: RoleChange, edit: Option<PendingEdit>, now: Stamp) {
        if self.cancel(&change, edit) {
            return;
        }
        self.count += 1;
        let held = self.held.entry(change.instance.id.clone()).or_default();
        let change = RoleChange { withheld_since: Some(now), ..change };
        let number = self.count;
        held.push(WithheldChange { change, since: now, edit, number, is_in_decision: false });
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
    pub(super) fn after_earlier(
        &mut self,
        newer: RoleChange,
        edit: Option<PendingEdit>,
    ) -> Vec<RoleChange> {
        if self.cancel(&newer, edit) {
            return Vec::new();
        }
        let earlier = self.held.remove(&newer.instance.id).unwrap_or_default();
        earlier.into_iter().map(|held| held.change).chain([newer]).collect()
    }

    /// Forgets the changes of an instance if `newer` takes it back to the role from before they began: they are effects of
    /// a configuration that is not in use any more. Returns whether it does. While keepalived has not loaded the edit of
    /// its file, they are none.
    fn cancel(&mut self, newer: &RoleChange, edit: Option<PendingEdit>) -> bool {
        let RoleChange { instance, addresses, .. } = newer;
        let Some(earlier) = self.held.get(&instance.id) else { return false };
        let first = earlier.first().and_then(|held| held.change.from.as_ref());
        let is_not_loaded = matches!(edit, Some(PendingEdit::NotLoaded { .. }));
        let is_cancelled = first == Some(&newer.to)
            && !(is_not_loaded && earlier.iter().all(|held| held.edit == edit))
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

    /// The changes that the scan has decided; `edit` is the pending edit that it has found for a change. Those for which
    /// `is_open` wait for the next one.
    pub(super) fn decided(
        &mut self,
        edit: impl Fn(&RoleChange) -> Option<PendingEdit>,
        is_open: impl Fn(&RoleChange) -> bool,
        now: Moment,
    ) -> Vec<RoleChange> {
        let last = self.held.values().filter_map(|held| held.last());
        for last in last.map(|held| held.change.clone()).collect::<Vec<_>>() {
            self.cancel(&last, edit(&last));
        }
        let decided = self.take(|held| {
            let is_open = || is_open(&held.change) && now.since(held.since.moment) < MAX_WAIT;
            held.is_in_decision && !is_open()
        });
        self.held.values_mut().flatten().for_each(|held| held.is_in_decision = false);
        decided
    }

    /// When the first change has waited for [`MAX_WAIT`].
    pub(super) fn due(&self) -> Option<Moment> {
        self.held.values().flatten().map(|held| held.since.moment + MAX_WAIT).min()
    }

    /// The changes that have waited for [`MAX_WAIT`], whether a scan has ended or not.
    pub(super) fn take_overdue(&mut self, now: Moment) -> Vec<RoleChange> {
        self.take(|held| now.since(held.since.moment) >= MAX_WAIT)
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
        let withheld_since = None;
        RoleChange { instance, from, to, addresses, trigger, changer: None, withheld_since }
    }

    fn at(milliseconds: u64) -> Moment {
        Moment::new(Duration::from_millis(milliseconds))
    }

    fn stamp(milliseconds: u64) -> Stamp {
        Stamp { moment: at(milliseconds), ..Stamp::now() }
    }

    fn roles(changes: &[RoleChange]) -> Vec<Role> {
        changes.iter().map(|change| change.to.clone()).collect()
    }

    const FAULT: Role = Role::Fault(Fault::NoNetns);
    const PARTIAL: Role = Role::Partial { held: 1, total: 2 };

    #[test]
    fn a_change_that_waits_for_a_scan_is_not_reported_after_a_newer_one() {
        let mut withheld = Withheld::default();
        withheld.hold(change(Role::Primary, FAULT), None, stamp(0));
        withheld.begin_scan();
        assert!(withheld.contains(&example().id));
        let changes = withheld.after_earlier(change(FAULT, Role::Backup), None);
        assert_eq!(roles(&changes), [FAULT, Role::Backup]);
        assert!(withheld.decided(|_| None, |_| false, at(1)).is_empty(), "reported once");
    }

    #[test]
    fn a_reload_that_replaces_an_address_is_no_change_of_the_role() {
        let mut withheld = Withheld::default();
        withheld.hold(change(Role::Primary, PARTIAL), None, stamp(0));
        withheld.begin_scan();
        withheld.hold(change(PARTIAL, Role::Backup), None, stamp(1));
        assert_eq!(roles(&withheld.after_earlier(change(Role::Backup, Role::Primary), None)), []);
        withheld.hold(change(Role::Primary, PARTIAL), None, stamp(2));
        withheld.hold(change(PARTIAL, Role::Primary), None, stamp(3));
        assert_eq!(withheld.take_cancelled().len(), 2);
        withheld.begin_scan();
        assert_eq!(roles(&withheld.decided(|_| None, |_| false, at(4))), []);
        // A namespace that was replaced is a change, also if the role is the same in the new one.
        withheld.hold(change(Role::Backup, FAULT), None, stamp(5));
        let changes = withheld.after_earlier(change(FAULT, Role::Backup), None);
        assert_eq!(roles(&changes), [FAULT, Role::Backup]);
    }

    #[test]
    fn a_short_failover_is_reported_while_an_edit_waits_for_a_reload() {
        let loaded_at = std::time::SystemTime::UNIX_EPOCH;
        let not_loaded = |loaded_at| Some(PendingEdit::NotLoaded { loaded_at, is_refused: false });
        let edit = not_loaded(loaded_at);
        let fail_over = |found| {
            let mut withheld = Withheld::default();
            withheld.hold(change(Role::Primary, Role::Backup), edit, stamp(1));
            withheld.hold(change(Role::Backup, Role::Primary), edit, stamp(2));
            withheld.begin_scan();
            withheld.decided(|_| found, |_| false, at(9))
        };
        let decided = fail_over(edit);
        assert_eq!(roles(&decided), [Role::Backup, Role::Primary]);
        let read = decided.iter().map(|change| change.withheld_since.unwrap().moment);
        assert_eq!(read.collect::<Vec<_>>(), [at(1), at(2)], "not the time of the report");
        // keepalived has loaded the edit, or another one.
        for found in [None, not_loaded(loaded_at + Duration::from_secs(1))] {
            assert_eq!(roles(&fail_over(found)), []);
        }
    }

    #[test]
    fn the_first_role_of_an_instance_that_is_back_comes_after_no_earlier_change() {
        let mut withheld = Withheld::default();
        withheld.hold(change(Role::Primary, PARTIAL), None, stamp(0));
        withheld.follow(&[]);
        let first = RoleChange { from: None, ..change(PARTIAL, Role::Primary) };
        assert_eq!(roles(&withheld.after_earlier(first, None)), [Role::Primary]);
        assert_eq!(roles(&withheld.take_overdue(at(5000))), []);
    }

    #[test]
    fn a_change_that_a_scan_decides_has_the_configuration_that_the_scan_has_found() {
        let mut withheld = Withheld::default();
        withheld.hold(change(Role::Primary, Role::Backup), None, stamp(0));
        withheld.begin_scan();
        let found = Arc::new(example());
        withheld.follow(&[Arc::clone(&found)]);
        let decided = withheld.decided(|_| None, |_| false, at(1));
        assert_eq!(roles(&decided), [Role::Backup]);
        assert!(Arc::ptr_eq(&decided[0].instance, &found));
    }

    #[test]
    fn a_scan_that_does_not_end_holds_no_change_back_for_ever() {
        let mut withheld = Withheld::default();
        assert_eq!(withheld.due(), None);
        withheld.hold(change(Role::Primary, PARTIAL), None, stamp(0));
        withheld.begin_scan();
        withheld.hold(change(PARTIAL, Role::Backup), None, stamp(500));
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
        withheld.hold(change(Role::Primary, Role::Backup), None, stamp(0));
        for now in [100, 200] {
            withheld.begin_scan();
            assert!(withheld.decided(|_| None, |_| true, at(now)).is_empty());
        }
        withheld.begin_scan();
        assert_eq!(roles(&withheld.decided(|_| None, |_| true, at(5000))), [Role::Backup]);
    }
}
