// SPDX-License-Identifier: Apache-2.0
//! The ranges of etcd that a view follows: each is read once, and watched from that revision on.
//!
//! The position in each range survives a lost connection, so that a new connection continues there. If etcd has compacted a
//! position, all ranges are read again.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard};

use crate::etcd::{EtcdConnection, EtcdError, WatchId, WatchMessage, Watcher};
use crate::key::KeySpace;
use crate::view::{ClusterView, StoredValue, ViewChange};

/// A view that the thread of the session changes and other threads read.
pub(crate) type SharedView = RwLock<ClusterView>;

/// The view, for a change. A panic of a reader leaves it unchanged.
pub(crate) fn write(view: &SharedView) -> RwLockWriteGuard<'_, ClusterView> {
    view.write().unwrap_or_else(PoisonError::into_inner)
}

/// Receives every value of a read, before it is applied to the view.
pub(crate) trait ValueVisitor {
    /// The values of a range at a revision.
    fn values(&mut self, values: &[StoredValue]);
}

/// Ignores the values.
impl ValueVisitor for () {
    fn values(&mut self, _: &[StoredValue]) {}
}

/// What a stream has delivered.
#[derive(Debug)]
pub(crate) enum Followed {
    /// Changes, which are not applied yet.
    Changes(Vec<ViewChange>),
    /// The positions are lost: [`RangeFollower::sync`] reads all ranges again.
    MustRead,
    /// Nothing new.
    Nothing,
}

/// The followed ranges.
pub(crate) struct RangeFollower {
    keys: KeySpace,
    /// The next revision of each range by its prefix; 0 for a range that is not read yet.
    positions: BTreeMap<Arc<str>, i64>,
    stream: Option<FollowStream>,
}

/// The watches on one connection.
struct FollowStream {
    watcher: Watcher,
    prefixes: HashMap<WatchId, Arc<str>>,
}

impl RangeFollower {
    pub(crate) fn new(keys: KeySpace) -> Self {
        Self { keys, positions: BTreeMap::new(), stream: None }
    }

    /// The ranges that every view follows.
    pub(crate) fn common(keys: &KeySpace) -> BTreeSet<String> {
        let reporter = keys.text(&crate::key::ClusterKey::Reporter);
        [keys.nodes(), keys.members(), reporter, keys.findings(), keys.closed_findings()].into()
    }

    /// Sets the ranges to follow. [`Self::sync`] reads the new ones.
    pub(crate) fn set_ranges(&mut self, wanted: &BTreeSet<String>, view: &SharedView) {
        let roles = self.keys.roles();
        let is_dropped = |prefix: &Arc<str>| !wanted.contains(&**prefix);
        let dropped: Vec<Arc<str>> =
            self.positions.keys().filter(|prefix| is_dropped(prefix)).cloned().collect();
        for prefix in dropped {
            self.positions.remove(&prefix);
            self.cancel(&prefix);
            let is_covered = wanted.contains(&roles) && prefix.starts_with(&roles);
            if !is_covered {
                write(view).forget_range(&prefix);
            }
        }
        for prefix in wanted {
            self.positions.entry(prefix.as_str().into()).or_insert(0);
        }
    }

    fn cancel(&mut self, prefix: &str) {
        let Some(stream) = &mut self.stream else { return };
        let watch = stream.prefixes.iter().find(|(_, known)| &***known == prefix);
        if let Some(watch) = watch.map(|(watch, _)| *watch) {
            stream.prefixes.remove(&watch);
            stream.watcher.cancel(watch);
        }
    }

    /// The connection is lost. The positions stay.
    pub(crate) fn detach(&mut self) {
        self.stream = None;
    }

    /// Reads the ranges without a position, and watches all ranges. Returns the number of ranges that were read.
    pub(crate) async fn sync(
        &mut self,
        connection: &EtcdConnection,
        view: &SharedView,
        visitor: &mut impl ValueVisitor,
    ) -> Result<usize, EtcdError> {
        let is_new = |(prefix, next): (&Arc<str>, &i64)| (*next == 0).then(|| prefix.to_string());
        let new: Vec<String> = self.positions.iter().filter_map(is_new).collect();
        if !new.is_empty() {
            self.read(connection, &new, view, visitor).await?;
        }
        if let Some(stream) = &mut self.stream {
            for prefix in &new {
                let (prefix, next) = (Arc::from(prefix.as_str()), self.positions[prefix.as_str()]);
                let watch = stream.watcher.add(&prefix, next);
                stream.prefixes.insert(watch, prefix);
            }
        } else {
            self.open(connection).await?;
        }
        Ok(new.len())
    }

    /// Opens a stream with a watch for each range.
    async fn open(&mut self, connection: &EtcdConnection) -> Result<(), EtcdError> {
        let mut positions = self.positions.iter();
        let Some((first, next)) = positions.next() else { return Ok(()) };
        let (mut watcher, watch) = connection.watch(first, *next).await?;
        let mut prefixes = HashMap::from([(watch, first.clone())]);
        for (prefix, next) in positions {
            prefixes.insert(watcher.add(prefix, *next), prefix.clone());
        }
        self.stream = Some(FollowStream { watcher, prefixes });
        Ok(())
    }

    /// Reads ranges at one revision.
    async fn read(
        &mut self,
        connection: &EtcdConnection,
        prefixes: &[String],
        view: &SharedView,
        visitor: &mut impl ValueVisitor,
    ) -> Result<(), EtcdError> {
        let revision = connection.revision(self.keys.all()).await?;
        let roles = self.keys.roles();
        let small: Vec<String> =
            prefixes.iter().filter(|prefix| **prefix != roles).cloned().collect();
        let replace = |range: crate::etcd::RangeValues| {
            visitor.values(&range.values);
            write(view).replace_range(&range.prefix, range.values, revision);
        };
        connection.read_prefixes(&small, revision, replace).await?;
        if prefixes.contains(&roles) {
            self.read_all_roles(connection, revision, view, visitor).await?;
        }
        for prefix in prefixes {
            self.positions.insert(prefix.as_str().into(), revision + 1);
        }
        Ok(())
    }

    /// Reads all roles, bucket by bucket: there can be a hundred thousand of them.
    async fn read_all_roles(
        &self,
        connection: &EtcdConnection,
        revision: i64,
        view: &SharedView,
        visitor: &mut impl ValueVisitor,
    ) -> Result<(), EtcdError> {
        let roles = self.keys.roles();
        let mut seen = BTreeSet::new();
        let mut bucket: Vec<StoredValue> = Vec::new();
        let mut prefix = String::new();
        let mut finish = |prefix: &str, values: Vec<StoredValue>| {
            if !values.is_empty() {
                write(view).replace_range(prefix, values, revision);
                seen.insert(prefix.to_owned());
            }
        };
        let page = |values: Vec<StoredValue>| {
            visitor.values(&values);
            for value in values {
                let next = bucket_prefix(&value.key, &roles);
                if next != prefix {
                    finish(&prefix, std::mem::take(&mut bucket));
                    next.clone_into(&mut prefix);
                }
                bucket.push(value);
            }
        };
        connection.read_prefix(&roles, revision, page).await?;
        finish(&prefix, bucket);
        let known: Vec<String> =
            write(view).buckets().map(|bucket| self.keys.bucket(&bucket)).collect();
        for prefix in known.into_iter().filter(|prefix| !seen.contains(prefix)) {
            write(view).replace_range(&prefix, Vec::new(), revision);
        }
        Ok(())
    }

    /// Waits for the next changes. It can be dropped at any time, and called again.
    pub(crate) async fn next(
        &mut self,
        connection: &EtcdConnection,
    ) -> Result<Followed, EtcdError> {
        let Some(stream) = &mut self.stream else { return std::future::pending().await };
        let message = match connection.next_message(&mut stream.watcher).await {
            // A foreign value that is too long for this client: reading skips it, and a watch cannot.
            Err(EtcdError::TooLong { .. }) => {
                self.forget_positions();
                return Ok(Followed::MustRead);
            }
            message => message?,
        };
        match message {
            WatchMessage::Changes { watch, changes } => {
                let Some(prefix) = stream.prefixes.get(&watch).cloned() else {
                    return Ok(Followed::Nothing);
                };
                let last = changes.iter().map(revision_of).max().unwrap_or(0);
                self.advance(&prefix, last);
                Ok(Followed::Changes(changes))
            }
            WatchMessage::Progress { watch, revision } => {
                if let Some(prefix) = stream.prefixes.get(&watch).cloned() {
                    self.advance(&prefix, revision);
                }
                Ok(Followed::Nothing)
            }
            WatchMessage::Compacted { .. } => {
                self.forget_positions();
                Ok(Followed::MustRead)
            }
        }
    }

    /// The changes of a range up to this revision have arrived. A revision can come in several parts, so that a new
    /// connection asks for the last one again; the view ignores changes that it has.
    fn advance(&mut self, prefix: &Arc<str>, revision: i64) {
        if let Some(next) = self.positions.get_mut(prefix) {
            *next = (*next).max(revision);
        }
    }

    fn forget_positions(&mut self) {
        self.stream = None;
        self.positions.values_mut().for_each(|next| *next = 0);
    }
}

/// The prefix of the bucket of a key below `roles`; the key itself if it has none.
fn bucket_prefix<'a>(key: &'a str, roles: &str) -> &'a str {
    let rest = key.strip_prefix(roles).unwrap_or_default();
    rest.find('/').map_or(key, |slash| &key[..=roles.len() + slash])
}

/// The revision of a change.
pub(crate) fn revision_of(change: &ViewChange) -> i64 {
    match change {
        ViewChange::Put(value) => value.mod_revision,
        ViewChange::Deleted { mod_revision, .. } => *mod_revision,
    }
}
