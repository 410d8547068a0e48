// SPDX-License-Identifier: Apache-2.0
//! The findings about several nodes.
//!
//! ```text
//!              condition holds        holds for the settle time
//!   no finding ───────────────▶ pending ──────────────────────▶ open
//!       ▲                         │                              │
//!       └── condition is gone ────┴──────── condition is gone ───┘
//! ```
//!
//! The [`Evaluator`] looks at the groups that have changed since its last run, and at those with a pending condition
//! that is due. Durations are measured by the clock of the evaluator; the clocks of other nodes decide nothing. While
//! the view is stale, nothing is opened or closed, and pending conditions begin again afterwards.

mod condition;
mod evidence;
mod grouped;
mod lost_node;
mod neutron;
mod node_condition;
mod open;
mod returned;
mod schedule;
mod track;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use vipwatch_api::{ClusterNodeState, GroupState, Timestamp};
use vipwatch_core::finding::FindingSettle;
use vipwatch_core::flapping::FLAP_SPAN;
use vipwatch_core::{FindingKind, InstanceId, Moment};

use self::condition::{
    ConditionContext, FindingCondition, absent_claims, advert_interval, conditions, gone_claims,
    unconfirmed_claims,
};
use self::grouped::GroupedFindings;
use self::lost_node::LostNodes;
use self::neutron::NeutronAnswers;
use self::node_condition::NodeCondition;
pub(crate) use self::open::FindingBasis;
use self::open::{AwayNodes, ClusterFindingSubject, OpenClusterFindings, SettledCondition};
use self::returned::ReturnedNodes;
use self::schedule::EvaluationSchedule;
use self::track::{BucketTrack, GroupTrack, Unconfirmed};
use crate::group::{Group, GroupMember, SharedAddresses};
use crate::key::{Bucket, ClusterName};
use crate::neutron::NeutronAnswer;
use crate::record::FindingRecord;
use crate::view::{ClusterView, SilenceIndex, ViewSerial};

/// When a group is evaluated again that a node without a confirmation claims.
const CONFIRMATION_RETRY: Duration = Duration::from_millis(500);

/// When a group is evaluated again if no more findings could be opened.
const FULL_RETRY: Duration = Duration::from_mins(1);

/// The settings of an [`Evaluator`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EvaluatorSettings {
    /// How long a condition must hold before a finding is opened.
    pub settle: Duration,
    /// The same for findings that do not interrupt traffic.
    pub slow_settle: Duration,
    /// The lease of a node: how long after a connection a node may be missing.
    pub lease: Duration,
    /// The number of live backups that a group must have; 0 turns the finding off.
    pub min_backups: u32,
    /// How long Neutron may differ before a finding is opened; `None` if Neutron is not asked.
    pub neutron_settle: Option<Duration>,
    /// The maximum number of open findings. Every node keeps them, and forged roles could have any number of them.
    pub max_findings: usize,
}

impl Default for EvaluatorSettings {
    fn default() -> Self {
        Self {
            settle: Duration::from_secs(3),
            slow_settle: Duration::from_mins(1),
            lease: Duration::from_secs(15),
            min_backups: 1,
            neutron_settle: None,
            max_findings: crate::view::ViewLimits::default().findings,
        }
    }
}

impl EvaluatorSettings {
    /// How long the condition must hold before the finding is opened. `advert` is the time between two adverts.
    fn settle_of(&self, kind: FindingKind, advert: Duration) -> Duration {
        match kind.settle() {
            FindingSettle::Cluster => self.settle,
            FindingSettle::ClusterAdvert => self.settle + advert,
            // VRRP waits for three adverts and the skew, which is less than one advert (RFC 9568, 6.1).
            FindingSettle::ClusterElection => self.settle + 4 * advert,
            FindingSettle::ClusterSlow => self.slow_settle,
            FindingSettle::Neutron => self.neutron_settle.unwrap_or_default(),
            FindingSettle::None
            | FindingSettle::Transition
            | FindingSettle::Processes
            | FindingSettle::SecondAudit => Duration::ZERO,
        }
    }
}

/// The time of an evaluation.
#[derive(Debug, Clone, Copy)]
pub struct EvaluationTime {
    /// By the monotonic clock, for durations.
    pub now: Moment,
    /// By the clock of the node, to be shown.
    pub at: Timestamp,
}

/// A change of the open findings, to be written to etcd.
///
/// The lists `notified_open` and `notified_closed` of the record are those of the view: if a target was notified since, the
/// stored record has more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClusterFindingChange {
    /// A new finding.
    Opened(FindingRecord),
    /// An open finding has another text, confidence or list of nodes.
    Changed(FindingRecord),
    /// This evaluator has found the condition of a finding that an earlier reporter has opened.
    Found {
        /// The finding, with the facts of this evaluator.
        record: FindingRecord,
        /// Whether the text, the confidence or the list of nodes differs from the record of the earlier reporter.
        is_changed: bool,
    },
    /// The finding has ended; `closed` is set. If this evaluator has not found it before, the record has only its kind and
    /// its subject.
    Closed(FindingRecord),
}

/// Decides which findings are open. Only the reporter has one, and its view contains all groups.
#[derive(Debug)]
pub struct Evaluator {
    settings: EvaluatorSettings,
    open: OpenClusterFindings,
    buckets: BTreeMap<Bucket, BucketTrack>,
    lost: LostNodes,
    grouped: GroupedFindings,
    returned: ReturnedNodes,
    unconfirmed: Unconfirmed,
    schedule: EvaluationSchedule,
    shared: SharedAddresses,
    neutron: NeutronAnswers,
    /// The last change of the view that was evaluated.
    serial: ViewSerial,
    /// The last change of a silence that was evaluated.
    silence_serial: ViewSerial,
    /// Since when the view has followed etcd without interruption; `None` while it is stale.
    connected: Option<Moment>,
    /// Whether all groups are to be evaluated: at the beginning, and after an interruption.
    is_new_connection: bool,
    has_two_nodes: bool,
    /// The time of the first evaluation.
    first: Option<Moment>,
}

impl Evaluator {
    /// An evaluator on the node `reporter`, which continues the findings that are open. `connected`: since when the view
    /// follows etcd; `None` for a view that begins to do so.
    pub fn new(
        settings: EvaluatorSettings,
        reporter: &ClusterName,
        connected: Option<Moment>,
        open: impl IntoIterator<Item = FindingRecord>,
    ) -> Self {
        Self {
            open: OpenClusterFindings::new(reporter, settings.max_findings, open),
            settings,
            buckets: BTreeMap::new(),
            lost: LostNodes::default(),
            grouped: GroupedFindings::default(),
            returned: ReturnedNodes::default(),
            unconfirmed: Unconfirmed::default(),
            schedule: EvaluationSchedule::default(),
            shared: SharedAddresses::default(),
            neutron: NeutronAnswers::default(),
            serial: ViewSerial::default(),
            silence_serial: ViewSerial::default(),
            connected,
            is_new_connection: true,
            has_two_nodes: false,
            first: None,
        }
    }

    /// The view no longer follows etcd. Open findings stay open; pending conditions begin again with the next
    /// evaluation.
    pub fn interrupt(&mut self) {
        self.connected = None;
        self.is_new_connection = true;
        for track in self.buckets.values_mut() {
            track.forget_pending();
        }
        self.lost.forget_pending();
        self.neutron.forget_pending();
    }

    /// Neutron has answered about a router. The next evaluation compares it with the view.
    pub fn neutron_answered(
        &mut self,
        router: InstanceId,
        answer: NeutronAnswer,
        requested: Moment,
    ) {
        self.neutron.set(Bucket::Router(router), answer, requested);
    }

    /// The open findings.
    pub fn open_findings(&self) -> impl Iterator<Item = &FindingRecord> {
        self.open.records()
    }

    /// What the opening of a finding rests on: the transaction that opens it compares these keys, so that a change on its way
    /// prevents it.
    pub(crate) fn basis(&self, record: &FindingRecord) -> &[FindingBasis] {
        self.open.basis(record)
    }

    /// Whether there are so many open findings that no more are opened.
    pub fn is_full(&self) -> bool {
        self.open.is_full()
    }

    /// The time of the next evaluation if the view does not change; `None` if nothing is pending, and while the view is
    /// stale.
    pub fn next_check(&self) -> Option<Moment> {
        self.connected?;
        let times = [
            self.schedule.next(),
            self.lost.next_check(),
            self.grouped.next_check(),
            self.returned.next_check(),
        ];
        times.into_iter().flatten().min()
    }

    /// Evaluates a view that follows etcd and contains all groups. `view` must be the same one each time.
    pub fn evaluate(
        &mut self,
        view: &ClusterView,
        time: EvaluationTime,
    ) -> Vec<ClusterFindingChange> {
        self.first.get_or_insert(time.now);
        let is_new_connection = std::mem::take(&mut self.is_new_connection);
        let connected = *self.connected.get_or_insert(time.now);
        let mut changes: Vec<ClusterFindingChange> = self.open.close_duplicates(time).collect();
        let are_silences_new = is_new_connection || view.silence_serial() > self.silence_serial;
        self.silence_serial = view.silence_serial();
        let silences = are_silences_new.then(|| view.silence_index());
        let grace_end = connected + self.settings.lease;
        let conditions = self.lost.evaluate(view, time.now, grace_end, &self.settings);
        let nodes = self.nodes_away(view, &conditions, silences.as_ref());
        let returned = self.returned.update(&nodes, time.now);
        self.open.set_causes(silences, AwayNodes { nodes, returned }, view, &mut changes);
        let kind = FindingKind::ClusterNodeLost;
        self.open.update_nodes(kind, conditions, view, time, &mut changes);
        for bucket in self.buckets_to_evaluate(view, time.now, is_new_connection) {
            self.evaluate_bucket(view, &bucket, time, &mut changes);
        }
        if is_new_connection {
            self.close_vanished(view, time, &mut changes);
        }
        // After the groups, so that their findings are counted.
        let without_primary = self.open.parts(FindingKind::ClusterNoPrimary);
        let grouped = self.grouped.evaluate(without_primary, time.now, &self.settings);
        let kind = FindingKind::ClusterGroupsWithoutPrimary;
        self.open.update_nodes(kind, grouped, view, time, &mut changes);
        self.serial = view.serial();
        changes
    }

    /// The nodes that stand for the findings of their groups: lost ones, also if they may come back before they have a finding of
    /// their own, and those that an operator has silenced and stopped.
    fn nodes_away(
        &self,
        view: &ClusterView,
        lost: &[NodeCondition],
        silences: Option<&SilenceIndex>,
    ) -> BTreeSet<String> {
        let silences = silences.unwrap_or(self.open.silences());
        let lost = lost.iter().map(|condition| condition.node.to_string());
        let stopped = view.nodes().filter(|node| {
            node.state == ClusterNodeState::Stopped
                && silences.covering(None, &[node.name.to_string()]).is_some()
        });
        lost.chain(stopped.map(|node| node.name.to_string())).collect()
    }

    /// The buckets that may have other findings than at the last evaluation.
    fn buckets_to_evaluate(
        &mut self,
        view: &ClusterView,
        now: Moment,
        is_new_connection: bool,
    ) -> BTreeSet<Bucket> {
        let mut due = self.schedule.take_due(now);
        due.extend(self.neutron.take_answered());
        if view.serial() == self.serial && !is_new_connection {
            return due;
        }
        let changes = view.buckets_changed_after(self.serial);
        due.extend(changes.changed);
        if changes.has_removed {
            due.extend(self.buckets.keys().filter(|bucket| !view.has_roles(bucket)).cloned());
        }
        for node in view.nodes_changed_after(self.serial) {
            due.extend(view.buckets_of_node(node));
        }
        due.extend(self.unconfirmed.confirmed_now(view));
        let has_two_nodes = view.nodes().count() >= 2;
        if is_new_connection || has_two_nodes != self.has_two_nodes {
            self.has_two_nodes = has_two_nodes;
            due.extend(view.buckets());
            due.extend(self.buckets.keys().cloned());
        }
        due.extend(self.buckets_with_other_sharing(view, &due));
        due
    }

    /// The buckets with a group that shares an address with a group of another bucket, or no longer does.
    fn buckets_with_other_sharing(
        &mut self,
        view: &ClusterView,
        due: &BTreeSet<Bucket>,
    ) -> BTreeSet<Bucket> {
        let has_other_settings = due.iter().any(|bucket| {
            let settings = track::settings_of(&view.groups_of(bucket));
            self.buckets.get(bucket).is_none_or(|track| track.settings != settings)
        });
        if !has_other_settings {
            return BTreeSet::new();
        }
        let shared = SharedAddresses::of_view(view);
        if shared == self.shared {
            return BTreeSet::new();
        }
        let before = std::mem::replace(&mut self.shared, shared);
        before.buckets().chain(self.shared.buckets()).cloned().collect()
    }

    fn evaluate_bucket(
        &mut self,
        view: &ClusterView,
        bucket: &Bucket,
        time: EvaluationTime,
        changes: &mut Vec<ClusterFindingChange>,
    ) {
        let mut groups = view.groups_of(bucket);
        let mut before = self.buckets.remove(bucket).unwrap_or_default();
        let mut track = BucketTrack::new(track::settings_of(&groups), groups.len());
        self.unconfirmed.replace(bucket, &groups);
        self.schedule.remove(bucket);
        for group in &mut groups {
            self.shared.mark(group);
            let mut state = before.take(&group.id);
            let settled = self.settled_conditions(group, &mut state, time.now);
            self.open.update_group(&group.id, settled, view, time, changes);
            if self.open.is_full() {
                // A condition that was not opened is looked at again.
                self.schedule.add(time.now + FULL_RETRY, bucket);
            }
            track.insert(state);
        }
        for gone in before.group_ids() {
            self.open.update_group(gone, Vec::new(), view, time, changes);
        }
        if groups.is_empty() {
            self.neutron.remove(bucket);
        } else {
            self.buckets.insert(bucket.clone(), track);
        }
    }

    /// The conditions of a group that have held long enough, or that have an open finding. One that has an open finding of an
    /// earlier reporter only has to hold as long as any other before this evaluator has found it.
    fn settled_conditions(
        &mut self,
        group: &Group,
        track: &mut GroupTrack,
        now: Moment,
    ) -> Vec<SettledCondition> {
        track.count_claimants(group, now);
        track.note_members(group);
        let own_flapping = track.flapping_since(now);
        let flapping_since = own_flapping.or_else(|| self.continued_flapping(group, now));
        if let Some(since) = flapping_since {
            self.schedule.add(since + FLAP_SPAN, &group.bucket);
        }
        let is_flapping = flapping_since.is_some();
        let (settings, has_two_nodes) = (&self.settings, self.has_two_nodes);
        let (succeeded, mut left) = track.former_nodes();
        left.extend(self.open.nodes_that_left(group));
        let (succeeded, left) = (succeeded.as_slice(), left.as_slice());
        let context = ConditionContext { settings, has_two_nodes, is_flapping, succeeded, left };
        let mut conditions = conditions(group, context);
        let lacks_backups =
            conditions.iter().any(|it| it.kind == FindingKind::ClusterTooFewBackups);
        if group.state() == GroupState::OnePrimary && !lacks_backups {
            track.forget_left();
        }
        let two_primaries =
            ClusterFindingSubject::group(FindingKind::ClusterTwoPrimaries, &group.id);
        if track.is_pending(FindingKind::ClusterTwoPrimaries) || self.open.contains(&two_primaries)
        {
            conditions.extend(unconfirmed_claims(group));
        }
        if conditions.iter().any(|one| one.kind == FindingKind::ClusterTwoPrimaries) {
            track.forget_absence(FindingKind::ClusterTwoPrimaries);
        } else {
            conditions.extend(self.absent_claims(group, track, now));
        }
        let unproved = self.unproved_end(group, &conditions, track, now);
        let without_primary = self.primary_is_away(group, &conditions, track, now);
        track.keep_pending(&conditions, now);
        let advert = advert_interval(group);
        let mut settled = Vec::new();
        for condition in conditions {
            let subject = ClusterFindingSubject::group(condition.kind, &group.id);
            let since = track.pending_since(condition.kind, now);
            let due = since + self.settings.settle_of(condition.kind, advert);
            // The missing confirmation of a claim leads to an evaluation of its own.
            let is_certain = match condition.kind {
                FindingKind::ClusterTwoPrimaries => !group.confirmed_claims().is_empty(),
                FindingKind::ClusterFlapping => own_flapping.is_some(),
                _ => true,
            };
            let is_evaluated = due <= now && is_certain;
            if due > now {
                self.schedule.add(due, &group.bucket);
            }
            if is_evaluated || self.open.contains(&subject) {
                settled.push(SettledCondition { condition, is_evaluated });
            }
        }
        settled.extend(unproved);
        settled.extend(without_primary);
        settled.extend(self.neutron_condition(group, now));
        settled
    }

    /// An open finding that no node holds an address continues until a live node claims one or receives adverts: that a node has
    /// gone is no evidence that another one has taken over. A node that has just registered still has the role of the process
    /// before, and claims nothing until it has confirmed the present one.
    fn unproved_end(
        &mut self,
        group: &Group,
        conditions: &[FindingCondition],
        track: &mut GroupTrack,
        now: Moment,
    ) -> Option<SettledCondition> {
        let subject = ClusterFindingSubject::group(FindingKind::ClusterNoPrimary, &group.id);
        let condition = self.open.condition(&subject)?;
        let holds = conditions.iter().any(|one| one.kind == condition.kind);
        let is_held = group.claims().any(|claim| claim.seen != Some(0));
        let is_heard = group.members.iter().any(GroupMember::hears_primary);
        if holds || is_held || is_heard || !group.ambiguities.is_empty() {
            return None;
        }
        if group.members.iter().any(GroupMember::is_live) {
            track.forget_absence(condition.kind);
        } else {
            // No live member reports a role: the group may come back within a lease.
            let end = track.absent_since(condition.kind, now) + self.settings.lease;
            if end <= now {
                return None;
            }
            self.schedule.add(end, &group.bucket);
        }
        if group.claims().next().is_some() {
            // A heartbeat changes no role.
            self.schedule.add(now + CONFIRMATION_RETRY, &group.bucket);
        }
        // The words of a finding that only an earlier reporter has found may be those of any client of etcd.
        Some(SettledCondition { condition, is_evaluated: self.open.is_evaluated(&subject) })
    }

    /// An open finding that a group has too few backups continues for one lease after the primary's node has gone: a restart
    /// gives it no backup.
    fn primary_is_away(
        &mut self,
        group: &Group,
        conditions: &[FindingCondition],
        track: &mut GroupTrack,
        now: Moment,
    ) -> Option<SettledCondition> {
        let subject = ClusterFindingSubject::group(FindingKind::ClusterTooFewBackups, &group.id);
        let condition = self.open.condition(&subject)?;
        let holds = conditions.iter().any(|one| one.kind == condition.kind);
        if gone_claims(group).next().is_none() {
            track.forget_absence(condition.kind);
            return None;
        }
        if holds || group.claims().next().is_some() {
            return None;
        }
        let end = track.absent_since(condition.kind, now) + self.settings.lease;
        if end <= now {
            return None;
        }
        self.schedule.add(end, &group.bucket);
        Some(SettledCondition { condition, is_evaluated: self.open.is_evaluated(&subject) })
    }

    /// An open split without a live witness: its claims continue for one lease after a node has gone.
    fn absent_claims(
        &mut self,
        group: &Group,
        track: &mut GroupTrack,
        now: Moment,
    ) -> Option<FindingCondition> {
        let subject = ClusterFindingSubject::group(FindingKind::ClusterTwoPrimaries, &group.id);
        let open = self.open.condition(&subject)?;
        let Some(condition) = absent_claims(group, &open.nodes) else {
            track.forget_absence(open.kind);
            return None;
        };
        let end = track.absent_since(open.kind, now) + self.settings.lease;
        if end <= now {
            return None;
        }
        self.schedule.add(end, &group.bucket);
        Some(condition)
    }

    /// The difference from Neutron, if it is settled or has an open finding. The finding of an earlier reporter stays until
    /// Neutron has answered.
    fn neutron_condition(&mut self, group: &Group, now: Moment) -> Option<SettledCondition> {
        let is_clear = group.ambiguities.is_empty();
        let settle = self.settings.neutron_settle.filter(|_| is_clear)?;
        let subject = ClusterFindingSubject::group(FindingKind::ClusterNeutronDiffers, &group.id);
        let Some(difference) = self.neutron.compare(group, now) else {
            let condition = self.open.condition(&subject)?;
            return Some(SettledCondition { condition, is_evaluated: false });
        };
        let is_evaluated = difference.age >= settle;
        let is_shown = is_evaluated || self.open.contains(&subject);
        let condition = difference.condition.filter(|_| is_shown)?;
        Some(SettledCondition { condition, is_evaluated })
    }

    /// An earlier reporter found that the group is flapping, and this one does not know all changes that count yet.
    fn continued_flapping(&self, group: &Group, now: Moment) -> Option<Moment> {
        let subject = ClusterFindingSubject::group(FindingKind::ClusterFlapping, &group.id);
        let begin = self.first.filter(|begin| now.since(*begin) < FLAP_SPAN)?;
        self.open.is_continued(&subject).then_some(begin)
    }

    /// Closes the findings of an earlier reporter about groups that no longer exist.
    fn close_vanished(
        &mut self,
        view: &ClusterView,
        time: EvaluationTime,
        changes: &mut Vec<ClusterFindingChange>,
    ) {
        let groups: BTreeSet<&str> =
            self.buckets.values().flat_map(BucketTrack::group_ids).collect();
        let vanished: Vec<String> =
            self.open.groups().filter(|group| !groups.contains(group)).map(str::to_owned).collect();
        for group in vanished {
            self.open.update_group(&group, Vec::new(), view, time, changes);
        }
    }
}

#[cfg(test)]
mod tests;
