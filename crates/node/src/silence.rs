// SPDX-License-Identifier: Apache-2.0
//! Silences: for a limited time, hooks and webhooks are not notified of transitions and findings of one instance, or of
//! all. State files, agents and announcements do not know silences.
//!
//! The HTTP server adds and removes silences, the notifier asks for them, and the main loop stores each change in the
//! history, so that a restart does not end them.
//!
//! A silence that has ended is kept for some time: a target for every transition that was down reads its backlog from the
//! history, and does not receive the transitions that happened during the silence.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use vipwatch_api::timestamp_from_millis;
use vipwatch_core::InstanceId;
use vipwatch_history::SilenceRow;
use vipwatch_linux::clock::{from_unix_millis, unix_millis};
use vipwatch_linux::wake_queue::WakeQueue;

/// Maximum number of silences at a time, and of those that have ended and are kept.
const MAX_SILENCES: usize = 1000;

/// How long a silence is kept after its end. A target for every transition may receive transitions of before and after
/// the silence later than that only if it has been down for so long.
const ENDED_SILENCES_KEPT: Duration = Duration::from_hours(24 * 90);

/// Maximum length of a silence.
pub const MAX_SILENCE: Duration = Duration::from_hours(24 * 30);

/// Maximum length of the reason, in characters.
pub const MAX_REASON_CHARS: usize = 500;

/// Why a silence cannot be added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SilenceError {
    /// The reason is empty or too long, or has control characters.
    #[error("the reason must have 1 to {MAX_REASON_CHARS} characters, and no control characters")]
    InvalidReason,
    /// The length is zero or too long.
    #[error("a silence lasts from 1 second to 30 days")]
    InvalidLength,
    /// There are too many silences.
    #[error("there are {MAX_SILENCES} silences already; remove one first")]
    TooMany,
}

/// The silences that other clients of etcd have added for this node, by the id there and the instance.
pub(crate) type ClusterSilences = BTreeMap<(String, Option<String>), SilenceRow>;

/// The silences of this node.
#[derive(Debug)]
pub struct Silences {
    state: Mutex<SilenceState>,
    /// BOUND: one entry for each request that adds or removes a silence. The main loop empties the queue in every turn.
    changes: WakeQueue<()>,
}

#[derive(Debug, Default)]
struct SilenceState {
    /// Those that have not ended, and those that [`Silences::take_ended`] has not returned yet; by number.
    rows: Vec<SilenceRow>,
    /// Those that have ended; by their end.
    ended: Vec<SilenceRow>,
    /// They have a number when they have ended.
    of_cluster: ClusterSilences,
    /// The number of the last silence.
    last_number: i64,
}

impl Silences {
    /// The silences that the last run stored.
    pub fn new(stored: Vec<SilenceRow>) -> io::Result<Self> {
        let last_number = stored.iter().map(|row| row.number).max().unwrap_or(0);
        let now = unix_millis(SystemTime::now());
        let (rows, mut ended): (Vec<_>, Vec<_>) =
            stored.into_iter().partition(|row| row.until > now);
        ended.sort_by_key(|row| row.until);
        let of_cluster = ClusterSilences::new();
        let state = Mutex::new(SilenceState { rows, ended, of_cluster, last_number });
        Ok(Self { state, changes: WakeQueue::new()? })
    }

    /// Adds silences that the last run stored, after the start.
    pub(crate) fn add_stored(&self, stored: Vec<SilenceRow>) {
        if stored.is_empty() {
            return;
        }
        let now = unix_millis(SystemTime::now());
        let mut state = self.lock();
        // This run may have used their numbers.
        let first = state.last_number + 1;
        let renumbered = (first..).zip(stored).map(|(number, row)| SilenceRow { number, ..row });
        let (rows, ended): (Vec<_>, Vec<_>) = renumbered.partition(|row| row.until > now);
        state.last_number += i64::try_from(rows.len() + ended.len()).unwrap_or_default();
        state.rows.extend(rows);
        state.keep_ended(ended.into_iter(), now);
        drop(state);
        self.changes.push(());
    }

    fn lock(&self) -> MutexGuard<'_, SilenceState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a silence for `instance`, or for all instances and the node.
    pub fn add(
        &self,
        instance: Option<&InstanceId>,
        length: Duration,
        reason: &str,
        created_by: &str,
    ) -> Result<SilenceRow, SilenceError> {
        let is_long = reason.chars().count() > MAX_REASON_CHARS;
        if reason.trim().is_empty() || is_long || reason.contains(char::is_control) {
            return Err(SilenceError::InvalidReason);
        }
        if length < Duration::from_secs(1) || length > MAX_SILENCE {
            return Err(SilenceError::InvalidLength);
        }
        let now = SystemTime::now();
        let mut state = self.lock();
        if state.rows.iter().filter(|row| row.until > unix_millis(now)).count() >= MAX_SILENCES {
            return Err(SilenceError::TooMany);
        }
        state.last_number += 1;
        let row = SilenceRow {
            number: state.last_number,
            instance: instance.map(ToString::to_string),
            created_at: unix_millis(now),
            until: unix_millis(now + length),
            reason: reason.to_owned(),
            created_by: created_by.to_owned(),
            ended_by: None,
        };
        state.rows.push(row.clone());
        drop(state);
        self.changes.push(());
        Ok(row)
    }

    /// Ends a silence for the user `ended_by`; false if there is none with this number.
    pub fn remove(&self, number: i64, ended_by: &str) -> bool {
        let now = unix_millis(SystemTime::now());
        let mut state = self.lock();
        let removed: Vec<_> = state.rows.extract_if(.., |row| row.number == number).collect();
        let is_removed = !removed.is_empty();
        let end = |row| SilenceRow { until: now, ended_by: Some(ended_by.to_owned()), ..row };
        state.keep_ended(removed.into_iter().map(end), now);
        drop(state);
        if is_removed {
            self.changes.push(());
        }
        is_removed
    }

    /// The silences of this node that are in force at `now`, by number.
    pub fn in_force(&self, now: SystemTime) -> Vec<SilenceRow> {
        let now = unix_millis(now);
        self.lock().rows.iter().filter(|row| row.until > now).cloned().collect()
    }

    /// Whether a silence covers `instance` at `now`.
    pub fn covers(&self, instance: &InstanceId, now: SystemTime) -> bool {
        self.until(Some(instance), now).is_some()
    }

    /// Whether a silence covered `instance`, or the node for `None`, at the time `at`. Silences that ended long ago are
    /// not known any more.
    pub(crate) fn covered(&self, instance: Option<&InstanceId>, at: SystemTime) -> bool {
        let at = unix_millis(at);
        let state = self.lock();
        let mut rows = state.rows.iter().chain(&state.ended).chain(state.of_cluster.values());
        rows.any(|row| row.created_at <= at && at < row.until && is_about(row, instance))
    }

    /// When the last silence that covers `instance` ends, or that covers the node for `None`; `None` if there is none.
    pub fn until(&self, instance: Option<&InstanceId>, now: SystemTime) -> Option<SystemTime> {
        let now = unix_millis(now);
        let state = self.lock();
        let rows = state.rows.iter().chain(state.of_cluster.values());
        let in_force = rows.filter(|row| row.until > now);
        let covering = in_force.filter(|row| is_about(row, instance));
        covering.map(|row| row.until).max().map(from_unix_millis)
    }

    /// When the next silence ends; `None` if there is none.
    pub fn next_end(&self) -> Option<SystemTime> {
        let state = self.lock();
        let rows = state.rows.iter().chain(state.of_cluster.values());
        rows.map(|row| row.until).min().map(from_unix_millis)
    }

    /// The silences that other clients of etcd have added for this node.
    pub(crate) fn of_cluster(&self) -> ClusterSilences {
        self.lock().of_cluster.clone()
    }

    /// Sets the silences of the cluster. Those that are missing or over have ended. Returns whether they differ from those before.
    pub(crate) fn set_of_cluster(&self, mut silences: ClusterSilences, now: SystemTime) -> bool {
        let now = unix_millis(now);
        silences.retain(|_, row| row.until > now);
        let mut state = self.lock();
        let before = std::mem::replace(&mut state.of_cluster, silences.clone());
        let is_changed = before != silences;
        let differs = |key: &(String, Option<String>), row: &SilenceRow| {
            before
                .get(key)
                .is_none_or(|known| known.until != row.until || known.created_by != row.created_by)
        };
        for (key, row) in silences.iter().filter(|(key, row)| differs(key, row)) {
            log("silence of the cluster began", key, row);
        }
        let mut ended = Vec::new();
        for (key, row) in before.into_iter().filter(|(key, _)| !silences.contains_key(key)) {
            log("silence of the cluster ended", &key, &row);
            state.last_number += 1;
            let until = row.until.min(now);
            ended.push(SilenceRow { number: state.last_number, until, ..row });
        }
        state.keep_ended(ended.into_iter(), now);
        is_changed
    }

    /// Ends the silences of the cluster that are over. Returns whether there are any.
    pub(crate) fn end_of_cluster(&self, now: SystemTime) -> bool {
        let is_over = |row: &SilenceRow| row.until <= unix_millis(now);
        let has_ended = self.lock().of_cluster.values().any(is_over);
        has_ended && self.set_of_cluster(self.of_cluster(), now)
    }

    /// The silences that have ended since the last call.
    pub fn take_ended(&self, now: SystemTime) -> Vec<SilenceRow> {
        let now = unix_millis(now);
        let mut state = self.lock();
        let ended: Vec<_> = state.rows.extract_if(.., |row| row.until <= now).collect();
        state.keep_ended(ended.iter().cloned(), now);
        ended
    }

    /// Whether silences were added or removed since the last call.
    pub(crate) fn take_changes(&self) -> bool {
        !self.changes.take_all().is_empty()
    }

    /// All silences, to store them. Those of the cluster are as if they ended now: the next run learns from etcd whether they go on.
    pub(crate) fn rows(&self) -> Vec<SilenceRow> {
        let (state, now) = (self.lock(), unix_millis(SystemTime::now()));
        let numbered = (state.last_number + 1..).zip(state.of_cluster.values().cloned());
        let of_cluster = numbered.map(|(number, row)| {
            let until = row.until.min(now);
            SilenceRow { number, until, ..row }
        });
        state.ended.iter().chain(&state.rows).cloned().chain(of_cluster).collect()
    }
}

impl SilenceState {
    fn keep_ended(&mut self, ended: impl Iterator<Item = SilenceRow>, now: i64) {
        self.ended.extend(ended);
        self.ended.sort_by_key(|row| row.until);
        let kept = i64::try_from(ENDED_SILENCES_KEPT.as_millis()).unwrap_or(i64::MAX);
        self.ended.retain(|row| row.until > now - kept);
        self.ended.drain(..self.ended.len().saturating_sub(MAX_SILENCES));
    }
}

/// Logs the begin or the end of a silence that another client of etcd has added: it mutes this node.
fn log(event: &str, (id, instance): &(String, Option<String>), row: &SilenceRow) {
    tracing::info!(
        id,
        instance = instance.as_deref().unwrap_or("all"),
        created_by = row.created_by,
        until = %timestamp_from_millis(row.until),
        reason = row.reason,
        "{event}"
    );
}

/// Whether the silence is about `instance`, or about the node for `None`.
fn is_about(row: &SilenceRow, instance: Option<&InstanceId>) -> bool {
    let id = row.instance.as_deref();
    id.is_none() || id == instance.map(InstanceId::as_str)
}

// Readable after a change.
vipwatch_linux::as_fd!(Silences.changes);

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> InstanceId {
        text.parse().unwrap()
    }

    #[test]
    fn a_silence_covers_its_instance_until_it_ends() {
        let silences = Silences::new(Vec::new()).unwrap();
        let hour = Duration::from_hours(1);
        silences.add(Some(&id("a")), hour, "upgrade", "root").unwrap();
        let now = SystemTime::now();
        assert!(silences.covers(&id("a"), now) && !silences.covers(&id("b"), now));
        assert!(silences.until(None, now).is_none(), "the node is not silenced");
        assert!(silences.take_changes() && !silences.take_changes());
        let later = now + hour * 2;
        assert!(!silences.covers(&id("a"), later));
        assert_eq!(silences.in_force(later), []);
        assert_eq!(silences.take_ended(later).len(), 1);
        assert_eq!((silences.take_ended(later), silences.next_end()), (vec![], None));
    }

    #[test]
    fn a_silence_for_all_covers_every_instance_and_the_node_and_can_be_removed() {
        let stored = Silences::new(Vec::new()).unwrap();
        let row = stored.add(None, Duration::from_mins(1), "reboot", "root").unwrap();
        let silences = Silences::new(vec![row]).unwrap();
        let now = SystemTime::now();
        assert!(silences.covers(&id("a"), now) && silences.until(None, now).is_some());
        let second = silences.add(Some(&id("a")), Duration::from_mins(2), "x", "root").unwrap();
        assert_eq!(second.number, 2, "a number of the last run is not used again");
        assert!(silences.remove(1, "root") && !silences.remove(1, "root"));
        assert!(silences.covers(&id("a"), now) && !silences.covers(&id("b"), now));
    }

    #[test]
    fn the_time_of_a_silence_is_known_after_its_end_and_after_a_restart() {
        let silences = Silences::new(Vec::new()).unwrap();
        let (a, b) = (id("a"), id("b"));
        let added = silences.add(Some(&a), Duration::from_hours(1), "upgrade", "root").unwrap();
        let (began, inside) = (from_unix_millis(added.created_at), SystemTime::now());
        assert!(silences.remove(added.number, "root"));
        assert!(!silences.covers(&a, inside) && silences.in_force(inside).is_empty());
        let end = silences.rows()[0].until;
        let before = began - Duration::from_millis(1);
        for silences in [Silences::new(silences.rows()).unwrap(), silences] {
            let is_covered = |id: &InstanceId, at: SystemTime| silences.covered(Some(id), at);
            assert_eq!(is_covered(&a, began), added.created_at < end);
            assert!(!is_covered(&a, before) && !is_covered(&a, from_unix_millis(end)));
            assert!(!is_covered(&b, began) && silences.take_ended(SystemTime::now()).is_empty());
            let long_after = SystemTime::now() + ENDED_SILENCES_KEPT * 2;
            silences.add(None, Duration::from_secs(1), "x", "root").unwrap();
            assert_eq!(silences.take_ended(long_after).len(), 1);
            assert_eq!(silences.rows(), [], "the memory of ended silences is limited");
        }
    }

    #[test]
    fn a_silence_without_a_reason_or_without_a_valid_length_is_refused() {
        let silences = Silences::new(Vec::new()).unwrap();
        let add = |length, reason: &str| silences.add(None, length, reason, "root").unwrap_err();
        let minute = Duration::from_mins(1);
        assert_eq!(add(minute, " "), SilenceError::InvalidReason);
        assert_eq!(add(minute, &"x".repeat(501)), SilenceError::InvalidReason);
        assert_eq!(add(minute, "x\u{1b}[2J"), SilenceError::InvalidReason);
        assert_eq!(add(Duration::ZERO, "x"), SilenceError::InvalidLength);
        assert_eq!(add(MAX_SILENCE + minute, "x"), SilenceError::InvalidLength);
        for _ in 0..MAX_SILENCES {
            silences.add(None, minute, "x", "root").unwrap();
        }
        assert_eq!(add(minute, "x"), SilenceError::TooMany);
    }

    /// A silence of the whole node that a command has added, from now on.
    fn of_cluster(now: SystemTime, length: Duration) -> ClusterSilences {
        let row = SilenceRow {
            number: 0,
            instance: None,
            created_at: unix_millis(now),
            until: unix_millis(now + length),
            reason: "reboot".to_owned(),
            created_by: "root".to_owned(),
            ended_by: None,
        };
        [(("cli.x".to_owned(), None), row)].into()
    }

    #[test]
    fn a_silence_of_the_cluster_ends_by_its_time_and_its_transitions_stay_covered() {
        let silences = Silences::new(Vec::new()).unwrap();
        let (now, hour) = (SystemTime::now(), Duration::from_hours(1));
        let silence = of_cluster(now, hour);
        assert!(silences.set_of_cluster(silence.clone(), now));
        assert!(!silences.set_of_cluster(silence.clone(), now), "the same one");
        let end = silences.next_end().unwrap();
        assert!(silences.covers(&id("a"), now) && !silences.end_of_cluster(now));
        assert!(silences.end_of_cluster(end), "what it held is looked at again");
        assert!(silences.next_end().is_none() && !silences.end_of_cluster(end));
        assert!(!silences.set_of_cluster(silence, end), "etcd still has it");
        assert!(silences.covered(None, now + hour / 2) && !silences.covered(None, end));
    }

    #[test]
    fn the_time_of_a_removed_silence_of_the_cluster_is_known_after_a_restart() {
        let silences = Silences::new(Vec::new()).unwrap();
        let (now, second) = (SystemTime::now(), Duration::from_secs(1));
        let began = now - second * 3;
        silences.set_of_cluster(of_cluster(began, second * 100), now);
        let running = Silences::new(silences.rows()).unwrap();
        assert!(running.in_force(now).is_empty(), "it is no silence of this node");
        assert!(silences.set_of_cluster(ClusterSilences::new(), now));
        silences.add(None, second, "x", "root").unwrap();
        let stored = Silences::new(silences.rows()).unwrap();
        for silences in [&running, &silences, &stored] {
            assert!(silences.covered(Some(&id("a")), began + second));
        }
        let mut rows = stored.rows();
        rows.dedup_by_key(|row| row.number);
        assert_eq!(rows.len(), 2, "each row of the history has a number of its own");
    }
}
