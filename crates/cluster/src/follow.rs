// SPDX-License-Identifier: Apache-2.0
//! The ranges of etcd that a view follows: each is read once, and watched from that revision on.
//!
//! The position in each range survives a lost connection, so that a new connection continues there. If etcd has compacted a
//! position, all ranges are read again.
//!
//! A few buckets have a watch each. Many buckets have one watch of all roles together, and changes of other buckets are
//! dropped on arrival: etcd sends the changes of many watches of one stream in turns of 100 ms.

mod compare;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::ControlFlow;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::etcd::{
    EtcdConnection, EtcdError, EtcdPosition, RangePage, RangeValues, WatchId, WatchMessage, Watcher,
};
use crate::key::{ClusterKey, KeySpace};
use crate::view::{ClusterView, StoredValue, ViewChange};

pub(crate) use self::compare::{Differences, Suspects};

/// The maximum number of buckets with a watch each.
const MAX_BUCKET_WATCHES: usize = 256;

/// The maximum length of a message of a stream that stays open, in bytes. The client of etcd keeps a buffer for the longest
/// message of a stream until the stream ends.
const MAX_KEPT_MESSAGE: usize = 64 * 1024;

/// A view that the thread of the session changes and other threads read.
pub(crate) type SharedView = RwLock<ClusterView>;

/// The view, for a change. A panic of a reader leaves it unchanged.
pub(crate) fn write(view: &SharedView) -> RwLockWriteGuard<'_, ClusterView> {
    view.write().unwrap_or_else(PoisonError::into_inner)
}

/// The view, to read it.
pub(crate) fn read(view: &SharedView) -> RwLockReadGuard<'_, ClusterView> {
    view.read().unwrap_or_else(PoisonError::into_inner)
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
    /// The buckets of this node. They have room in a view of all roles that is full.
    own_buckets: BTreeSet<String>,
    stream: Option<FollowStream>,
    /// The cluster of etcd that has counted the positions; `None` before the first connection.
    cluster: Option<u64>,
}

/// The watches on one connection.
struct FollowStream {
    watcher: Watcher,
    prefixes: HashMap<WatchId, Arc<str>>,
    /// The watch of all roles, if the buckets have no watches of their own.
    all_roles: Option<AllRolesWatch>,
    /// The length of the longest message with new changes, in bytes.
    longest: usize,
}

/// One watch for all buckets.
#[derive(Debug, Clone, Copy)]
struct AllRolesWatch {
    id: WatchId,
    /// All changes before this revision have arrived.
    next: i64,
}

impl RangeFollower {
    pub(crate) fn new(keys: KeySpace) -> Self {
        let (positions, own_buckets) = (BTreeMap::new(), BTreeSet::new());
        Self { keys, positions, own_buckets, stream: None, cluster: None }
    }

    /// The ranges that every view follows.
    pub(crate) fn common(keys: &KeySpace) -> BTreeSet<String> {
        let reporter = keys.text(&ClusterKey::Reporter);
        let findings = [keys.findings(), keys.closed_findings(), keys.silences()];
        [keys.nodes(), keys.members(), reporter].into_iter().chain(findings).collect()
    }

    /// Sets the buckets of this node, whether or not they are ranges of their own.
    pub(crate) fn set_own_buckets(&mut self, buckets: BTreeSet<String>) {
        self.own_buckets = buckets;
    }

    /// Has the ranges read again by the next [`Self::sync`] that have records beyond a limit, and room since. Returns
    /// whether there are any.
    pub(crate) fn read_surplus_again(&mut self, view: &SharedView) -> bool {
        let prefixes = self.positions.keys().map(ToString::to_string);
        let outdated = write(view).take_outdated(prefixes);
        self.read_again(&outdated);
        !outdated.is_empty()
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
        let Some(stream) = self.stream.take() else { return };
        let Some(watch) = stream.all_roles else { return };
        let roles = self.keys.roles();
        for (_, next) in self.positions.iter_mut().filter(|(prefix, _)| is_bucket(prefix, &roles)) {
            // A bucket that is not read yet has no position.
            if *next > 0 {
                *next = (*next).max(watch.next);
            }
        }
    }

    /// Whether etcd at a new connection counts its revisions again: it was restored from a backup, or has lost its data.
    pub(crate) fn has_other_data(&mut self, position: EtcdPosition, view: &SharedView) -> bool {
        let EtcdPosition { cluster, revision } = position;
        let is_other_cluster = self.cluster.replace(cluster).is_some_and(|known| known != cluster);
        is_other_cluster || revision < write(view).revision()
    }

    /// Forgets the view and the positions: etcd has other data.
    pub(crate) fn forget_data(&mut self, view: &SharedView) {
        write(view).forget_all();
        self.forget_positions();
    }

    /// The followed buckets.
    fn buckets(&self) -> impl Iterator<Item = (&Arc<str>, &i64)> {
        let roles = self.keys.roles();
        self.positions.iter().filter(move |(prefix, _)| is_bucket(prefix, &roles))
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
        self.close_unsuitable();
        if self.stream.is_some() {
            self.watch_new(&new);
        } else {
            self.open(connection).await?;
        }
        Ok(new.len())
    }

    /// Has these ranges read again by the next [`Self::sync`]. Changes of different ranges arrive in any order, and a read
    /// has all of them up to now.
    pub(crate) fn read_again(&mut self, prefixes: &BTreeSet<String>) {
        for prefix in prefixes {
            if let Some(next) = self.positions.get_mut(prefix.as_str()) {
                *next = 0;
                self.cancel(prefix);
            }
        }
    }

    /// Opens a stream again that has had a long message, so that the memory of the message is free.
    pub(crate) async fn free_long_messages(
        &mut self,
        connection: &EtcdConnection,
    ) -> Result<(), EtcdError> {
        if self.stream.as_ref().is_some_and(|stream| stream.longest > MAX_KEPT_MESSAGE) {
            self.detach();
            self.open(connection).await?;
        }
        Ok(())
    }

    /// Closes a stream with too many watches, or with one watch of all roles for a few buckets.
    fn close_unsuitable(&mut self) {
        let count = self.buckets().count();
        let Some(stream) = &self.stream else { return };
        let is_suitable = match stream.all_roles {
            None => count <= MAX_BUCKET_WATCHES,
            // Not at the same number, so that one bucket more or less does not close the stream again and again.
            Some(_) => count > MAX_BUCKET_WATCHES / 2,
        };
        if !is_suitable {
            self.detach();
        }
    }

    /// Adds watches of new ranges to the stream. A watch of all roles delivers the changes of a new bucket already: it was
    /// read at a revision that no earlier message has reached.
    fn watch_new(&mut self, new: &[String]) {
        let roles = self.keys.roles();
        let Some(stream) = &mut self.stream else { return };
        for prefix in new {
            if stream.all_roles.is_some() && is_bucket(prefix, &roles) {
                continue;
            }
            let (prefix, next) = (Arc::from(prefix.as_str()), self.positions[prefix.as_str()]);
            let watch = stream.watcher.add(&prefix, next);
            stream.prefixes.insert(watch, prefix);
        }
    }

    /// Opens a stream with a watch for each range, or with one for all buckets.
    async fn open(&mut self, connection: &EtcdConnection) -> Result<(), EtcdError> {
        let roles = self.keys.roles();
        let first_of_buckets = self.buckets().map(|(_, next)| *next).min();
        let is_together = self.buckets().count() > MAX_BUCKET_WATCHES;
        let single =
            self.positions.iter().filter(|(prefix, _)| !is_together || !is_bucket(prefix, &roles));
        let mut single = single.map(|(prefix, next)| (prefix.clone(), *next));
        let Some((first, next)) = single.next() else { return Ok(()) };
        let (mut watcher, watch) = connection.watch(&first, next).await?;
        let mut prefixes = HashMap::from([(watch, first)]);
        for (prefix, next) in single {
            prefixes.insert(watcher.add(&prefix, next), prefix);
        }
        let all_roles = first_of_buckets.filter(|_| is_together).map(|next| {
            let id = watcher.add(&roles, next);
            prefixes.insert(id, roles.into());
            AllRolesWatch { id, next }
        });
        self.stream = Some(FollowStream { watcher, prefixes, all_roles, longest: 0 });
        Ok(())
    }

    /// Reads ranges at one revision, each up to the limits of the view.
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
        self.read_ranges(connection, &small, revision, view, visitor).await?;
        if prefixes.contains(&roles) {
            self.read_all_roles(connection, revision, view, visitor).await?;
        }
        for prefix in prefixes {
            self.positions.insert(prefix.as_str().into(), revision + 1);
        }
        Ok(())
    }

    async fn read_ranges(
        &self,
        connection: &EtcdConnection,
        prefixes: &[String],
        revision: i64,
        view: &SharedView,
        visitor: &mut impl ValueVisitor,
    ) -> Result<(), EtcdError> {
        let mut incomplete = Vec::new();
        let replace = |range: RangeValues| {
            visitor.values(&range.values);
            let mut view = write(view);
            view.replace_range(&range.prefix, range.values, revision);
            if range.left > 0 {
                view.add_surplus(&range.prefix, range.left);
                incomplete.push(range.prefix);
            }
        };
        let limit = |prefix: &str| write(view).read_limit(prefix);
        connection.read_prefixes(prefixes, revision, limit, replace).await?;
        for prefix in incomplete {
            self.read_own(connection, &prefix, revision, view, visitor).await?;
        }
        Ok(())
    }

    /// Reads the keys of this node in a range with more keys than are read.
    async fn read_own(
        &self,
        connection: &EtcdConnection,
        prefix: &str,
        revision: i64,
        view: &SharedView,
        visitor: &mut impl ValueVisitor,
    ) -> Result<(), EtcdError> {
        let Some(own) = write(view).own().cloned() else { return Ok(()) };
        let key = match prefix {
            _ if prefix == self.keys.nodes() => self.keys.text(&ClusterKey::Node(own)),
            _ if prefix == self.keys.members() => self.keys.text(&ClusterKey::Member(own)),
            _ if is_bucket(prefix, &self.keys.roles()) => format!("{prefix}{own}/"),
            _ => return Ok(()),
        };
        let limit = |_: &str| write(view).limits().bucket();
        let replace = |range: RangeValues| {
            visitor.values(&range.values);
            write(view).replace_own(prefix, range.values, revision);
        };
        connection.read_prefixes(&[key], revision, limit, replace).await
    }

    /// Reads all roles, bucket by bucket: there can be a hundred thousand of them. A view that is full has the buckets of
    /// this node nevertheless.
    async fn read_all_roles(
        &self,
        connection: &EtcdConnection,
        revision: i64,
        view: &SharedView,
        visitor: &mut impl ValueVisitor,
    ) -> Result<(), EtcdError> {
        let roles = self.keys.roles();
        let mut reader = BucketReader::new(view, roles.clone(), revision);
        let page = |page: RangePage| {
            visitor.values(&page.values);
            reader.add(page)
        };
        connection.read_prefix(&roles, revision, page).await?;
        let (seen, is_complete) = reader.finish();
        if !is_complete {
            let missing: Vec<String> = self.own_buckets.difference(&seen).cloned().collect();
            self.read_ranges(connection, &missing, revision, view, visitor).await?;
        }
        let known: Vec<String> =
            write(view).buckets().map(|bucket| self.keys.bucket(&bucket)).collect();
        let is_gone = |prefix: &String| {
            !seen.contains(prefix) && (is_complete || !self.own_buckets.contains(prefix))
        };
        for prefix in known.into_iter().filter(is_gone) {
            write(view).replace_range(&prefix, Vec::new(), revision);
        }
        write(view).all_roles_were_read(revision);
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
                let known = match &stream.all_roles {
                    Some(all) if all.id == watch => all.next,
                    _ => self.positions.get(&prefix).copied().unwrap_or(0),
                };
                // A new stream repeats the last revision. That is no reason to open another one.
                if last > known {
                    stream.longest = stream.longest.max(changes.iter().map(bytes_of).sum());
                }
                let changes = match &mut stream.all_roles {
                    Some(all) if all.id == watch => {
                        all.next = all.next.max(last);
                        self.in_followed_buckets(changes)
                    }
                    _ => {
                        self.advance(&prefix, last);
                        changes
                    }
                };
                Ok(Followed::Changes(changes))
            }
            WatchMessage::Progress { watch, revision } => {
                match &mut stream.all_roles {
                    Some(all) if all.id == watch => all.next = all.next.max(revision),
                    _ => {
                        if let Some(prefix) = stream.prefixes.get(&watch).cloned() {
                            self.advance(&prefix, revision);
                        }
                    }
                }
                Ok(Followed::Nothing)
            }
            WatchMessage::Compacted { .. } => {
                self.forget_positions();
                Ok(Followed::MustRead)
            }
        }
    }

    /// The changes of followed buckets that are newer than the last read of the bucket.
    fn in_followed_buckets(&self, mut changes: Vec<ViewChange>) -> Vec<ViewChange> {
        let roles = self.keys.roles();
        changes.retain(|change| {
            let next = self.positions.get(bucket_prefix(key_of(change), &roles));
            next.is_some_and(|next| *next > 0 && revision_of(change) >= *next)
        });
        changes
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

/// Divides the roles of a read into buckets, and stops when the view is full.
struct BucketReader<'a> {
    view: &'a SharedView,
    roles: String,
    revision: i64,
    /// The prefix of the present bucket, its values and their bytes.
    prefix: String,
    values: Vec<StoredValue>,
    bytes: usize,
    /// The values of the present bucket beyond its limit.
    surplus: u64,
    /// The buckets before it.
    seen: BTreeSet<String>,
    is_complete: bool,
}

impl<'a> BucketReader<'a> {
    fn new(view: &'a SharedView, roles: String, revision: i64) -> Self {
        write(view).begin_roles();
        Self {
            view,
            roles,
            revision,
            prefix: String::new(),
            values: Vec::new(),
            bytes: 0,
            surplus: 0,
            seen: BTreeSet::new(),
            is_complete: true,
        }
    }

    fn add(&mut self, page: RangePage) -> ControlFlow<()> {
        let limit = write(self.view).limits().bucket();
        let own = write(self.view).own().map(|own| format!("/{own}/"));
        for value in page.values {
            let prefix = bucket_prefix(&value.key, &self.roles);
            if prefix != self.prefix {
                let prefix = prefix.to_owned();
                self.finish_bucket();
                self.prefix = prefix;
            }
            let is_own = own.as_ref().is_some_and(|own| value.key.contains(own.as_str()));
            let is_full = self.values.len() >= limit.records || self.bytes >= limit.bytes;
            if is_full && !is_own {
                self.surplus += 1;
            } else {
                self.bytes += value.bytes();
                self.values.push(value);
            }
        }
        if !write(self.view).is_full_of_roles() {
            return ControlFlow::Continue(());
        }
        self.is_complete = page.left == 0;
        write(self.view).add_surplus(&self.roles, page.left);
        ControlFlow::Break(())
    }

    fn finish_bucket(&mut self) {
        let (values, surplus) =
            (std::mem::take(&mut self.values), std::mem::take(&mut self.surplus));
        self.bytes = 0;
        if values.is_empty() {
            return;
        }
        let mut view = write(self.view);
        view.replace_range(&self.prefix, values, self.revision);
        view.add_surplus(&self.prefix, surplus);
        self.seen.insert(std::mem::take(&mut self.prefix));
    }

    /// The buckets that were read, and whether those are all. A bucket that was read in part is left out: its group
    /// would look as if nodes were missing.
    fn finish(mut self) -> (BTreeSet<String>, bool) {
        if self.is_complete {
            self.finish_bucket();
        } else {
            let rest = u64::try_from(self.values.len()).unwrap_or(u64::MAX);
            write(self.view).add_surplus(&self.roles, rest.saturating_add(self.surplus));
        }
        (self.seen, self.is_complete)
    }
}

/// Whether a followed range is a bucket of roles, and not the range of all roles or another one.
fn is_bucket(prefix: &str, roles: &str) -> bool {
    prefix.len() > roles.len() && prefix.starts_with(roles)
}

fn key_of(change: &ViewChange) -> &str {
    match change {
        ViewChange::Put(value) => &value.key,
        ViewChange::Deleted { key, .. } => key,
    }
}

/// The length of the key and of the value of a change.
fn bytes_of(change: &ViewChange) -> usize {
    match change {
        ViewChange::Put(value) => value.bytes(),
        ViewChange::Deleted { key, .. } => key.len(),
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
