// SPDX-License-Identifier: Apache-2.0
//! Reads the cluster from etcd without a node, for the command line: once, or following the changes. Of the records, it writes
//! silences only.

use std::io;
use std::sync::{PoisonError, RwLockReadGuard};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::time::{Instant, timeout_at};
use vipwatch_api::{ClusterBasis, ClusterConnectionState, ClusterScope, ClusterSource, Timestamp};
use vipwatch_core::ErrorChain;

use crate::etcd::messages::RequestOp;
use crate::etcd::{EndpointOrder, EtcdConnection, EtcdError, EtcdSettings, prefix_end};
use crate::follow::{Followed, RangeFollower, SharedView, write};
use crate::key::{ClusterKey, ClusterName, KeySpace, SilenceId};
use crate::record::{SilenceRecord, encode};
use crate::view::{ClusterView, StoredValue, ViewChange};

/// The reason why the cluster cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The runtime of the client cannot be started.
    #[error("cannot start the client of etcd")]
    Runtime(#[source] io::Error),
    /// etcd cannot be read.
    #[error(transparent)]
    Etcd(#[from] EtcdError),
}

impl ReadError {
    /// What the user can do; `None` if that is not known.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Runtime(_) => None,
            Self::Etcd(error) => error.hint(),
        }
    }
}

/// What [`EtcdReader::wait`] has seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadProgress {
    /// The view or the connection has changed.
    Changed,
    /// The time is over.
    Unchanged,
}

/// The whole domain, read from etcd. All functions block.
pub struct EtcdReader {
    runtime: Runtime,
    settings: EtcdSettings,
    domain: ClusterName,
    view: SharedView,
    follower: RangeFollower,
    order: EndpointOrder,
    /// `None` while the connection is lost.
    connection: Option<EtcdConnection>,
    lost: Option<LostConnection>,
    /// The last answer of etcd.
    answered: Instant,
}

/// A lost connection.
struct LostConnection {
    since: Timestamp,
    error: String,
    retry: Instant,
}

impl EtcdReader {
    /// Connects and reads the whole domain once.
    pub fn open(settings: EtcdSettings, domain: ClusterName) -> Result<Self, ReadError> {
        let runtime = Builder::new_current_thread().enable_all().max_blocking_threads(1).build();
        let runtime = runtime.map_err(ReadError::Runtime)?;
        let keys = KeySpace::new(&domain);
        let view = SharedView::new(ClusterView::new(keys.clone()));
        let mut follower = RangeFollower::new(keys.clone());
        let mut ranges = RangeFollower::common(&keys);
        ranges.insert(keys.roles());
        follower.set_ranges(&ranges, &view);
        // A command needs no spread over the endpoints: the first that answers is used.
        let order = EndpointOrder::new(0);
        let (connection, lost, answered) = (None, None, Instant::now());
        let mut reader =
            Self { runtime, settings, domain, view, follower, order, connection, lost, answered };
        reader.connect()?;
        Ok(reader)
    }

    /// The view.
    pub fn view(&self) -> RwLockReadGuard<'_, ClusterView> {
        self.view.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// What answers from this view rest on.
    pub fn basis(&self) -> ClusterBasis {
        let connection = match self.lost {
            None => ClusterConnectionState::Connected,
            Some(_) => ClusterConnectionState::Stale,
        };
        ClusterBasis {
            node: None,
            source: ClusterSource::Etcd,
            domain: Some(self.domain.to_string()),
            scope: ClusterScope::Full,
            connection,
            endpoint: self.connection.as_ref().map(|connection| connection.endpoint().to_owned()),
            stale_since: self.lost.as_ref().map(|lost| lost.since),
            error: self.lost.as_ref().map(|lost| lost.error.clone()),
            revision: self.view().revision(),
            unknown: Vec::new(),
        }
    }

    /// Waits up to `limit` for a change, and a moment longer for others that belong to it. After a lost connection it connects again, and continues where it was.
    pub fn wait(&mut self, limit: Duration) -> ReadProgress {
        let end = Instant::now() + limit;
        if let Some(lost) = &self.lost {
            let retry = lost.retry;
            if end < retry {
                self.sleep_until(end);
                return ReadProgress::Unchanged;
            }
            self.sleep_until(retry);
            if let Err(error) = self.connect() {
                self.lose(&error);
                return ReadProgress::Unchanged;
            }
            return ReadProgress::Changed;
        }
        match self.follow(end) {
            Ok(progress) => progress,
            Err(error) => {
                self.lose(&error);
                ReadProgress::Changed
            }
        }
    }

    /// Adds a silence that ends after this time, with the rights of the user of the settings.
    pub fn add_silence(&mut self, record: &SilenceRecord, left: Duration) -> Result<(), EtcdError> {
        let Some(connection) = &self.connection else { return Ok(()) };
        let keys = KeySpace::new(&self.domain);
        self.runtime.block_on(async {
            let Ok(id) = record.id.parse() else { return Ok(()) };
            let key = keys.text(&ClusterKey::Silence(id));
            let lease = connection.grant(left).await?;
            let put = vec![RequestOp::put(&key, encode(record), Some(lease))];
            let written = connection.commit(Vec::new(), put, &key).await;
            if let Err(error) = written {
                connection.revoke(lease).await?;
                return Err(error);
            }
            Ok(())
        })
    }

    /// Ends a silence before its time; false if there is none with this id.
    pub fn remove_silence(&mut self, id: &SilenceId) -> Result<bool, EtcdError> {
        let Some(connection) = &self.connection else { return Ok(false) };
        if !self.view().silences().any(|(known, _)| known == id) {
            return Ok(false);
        }
        let key = KeySpace::new(&self.domain).text(&ClusterKey::Silence(id.clone()));
        self.runtime.block_on(async {
            let delete = vec![RequestOp::delete(&key)];
            // Its lease is not ended: another client may have given it other keys.
            connection.commit(Vec::new(), delete, &key).await?;
            Ok(true)
        })
    }

    fn sleep_until(&self, end: Instant) {
        self.runtime.block_on(async { tokio::time::sleep_until(end).await });
    }

    fn connect(&mut self) -> Result<(), EtcdError> {
        let Self { runtime, settings, view, follower, order, .. } = self;
        let key = view.read().unwrap_or_else(PoisonError::into_inner).keys().all().to_owned();
        let connection = runtime.block_on(async {
            let (connection, position) = order.connect(settings, &key).await?;
            if follower.has_other_data(position, view) {
                follower.forget_data(view);
            }
            follower.sync(&connection, view, &mut ()).await?;
            Ok::<_, EtcdError>(connection)
        })?;
        self.order.reset();
        self.connection = Some(connection);
        self.lost = None;
        self.answered = Instant::now();
        Ok(())
    }

    fn lose(&mut self, error: &EtcdError) {
        let since = self.lost.as_ref().map_or_else(Timestamp::now, |lost| lost.since);
        let retry = Instant::now() + self.order.next_wait();
        self.lost = Some(LostConnection { since, error: ErrorChain(error).to_string(), retry });
        self.connection = None;
        self.follower.detach();
    }

    /// Applies changes until one changes the view, and those that arrive soon after it: etcd sends one transaction in
    /// several messages, one for each range, and the view between them shows a state that never was.
    fn follow(&mut self, end: Instant) -> Result<ReadProgress, EtcdError> {
        let Self { runtime, view, follower, connection, settings, answered, .. } = self;
        let Some(connection) = connection else { return Ok(ReadProgress::Unchanged) };
        let keys = write(view).keys().all().to_owned();
        runtime.block_on(async {
            // The end of the collection; `None` while the view has not changed.
            let mut collected: Option<Instant> = None;
            loop {
                if collected.is_some_and(|collected| collected <= Instant::now()) {
                    return Ok(ReadProgress::Changed);
                }
                // A connection without changes is checked by a read: a paused member sends nothing.
                let check = *answered + settings.timeout.max(MIN_CHECK);
                let limit = collected.unwrap_or(end.min(check));
                let followed = timeout_at(limit, follower.next(connection)).await;
                if followed.is_err() && collected.is_some() {
                    return Ok(ReadProgress::Changed);
                }
                if followed.is_err() && Instant::now() < check {
                    return Ok(ReadProgress::Unchanged);
                }
                let followed = if let Ok(followed) = followed {
                    followed?
                } else {
                    connection.revision(&keys).await?;
                    Followed::Nothing
                };
                *answered = Instant::now();
                match followed {
                    Followed::Nothing => {}
                    Followed::MustRead => {
                        follower.sync(connection, view, &mut ()).await?;
                        return Ok(ReadProgress::Changed);
                    }
                    Followed::Changes(changes) => {
                        let mut view = write(view);
                        let mut is_changed = false;
                        for change in changes {
                            is_changed |= apply_visible(&mut view, change);
                        }
                        if is_changed {
                            collected.get_or_insert_with(|| Instant::now() + COLLECTION);
                        }
                    }
                }
            }
        })
    }
}

/// Applies a change. True if the view shows more than another heartbeat after it.
fn apply_visible(view: &mut ClusterView, change: ViewChange) -> bool {
    let (ViewChange::Put(StoredValue { key, .. }) | ViewChange::Deleted { key, .. }) = &change;
    let node = match view.keys().parse(key) {
        Some(ClusterKey::Node(node)) => Some(node),
        _ => None,
    };
    let state =
        |view: &ClusterView| node.as_ref().and_then(|node| view.node(node)).map(|node| node.state);
    let before = state(view);
    let is_changed = view.apply(change);
    is_changed && (node.is_none() || state(view) != before)
}

/// Changes of the view within this time are one change.
const COLLECTION: Duration = Duration::from_millis(50);

/// The minimum time between two checks of a connection without changes.
const MIN_CHECK: Duration = Duration::from_secs(1);

/// Reads the whole domain once.
pub fn read_once(
    settings: EtcdSettings,
    domain: ClusterName,
) -> Result<(ClusterView, ClusterBasis), ReadError> {
    let reader = EtcdReader::open(settings, domain)?;
    let basis = reader.basis();
    let view = reader.view.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok((view, basis))
}

/// The names of the domains in etcd, found with at most `limit` requests. One request finds one domain, however many
/// keys it has.
pub fn domains(settings: &EtcdSettings, limit: usize) -> Result<Vec<ClusterName>, ReadError> {
    let runtime = Builder::new_current_thread().enable_all().max_blocking_threads(1).build();
    let runtime = runtime.map_err(ReadError::Runtime)?;
    let root = KeySpace::domains();
    let found = runtime.block_on(async {
        let (connection, _) = EndpointOrder::new(0).connect(settings, &root).await?;
        let end = prefix_end(&root);
        let mut begin = root.into_bytes();
        let mut names = Vec::new();
        for _ in 0..limit {
            let Some(key) = connection.first_key(&begin, &end).await? else { break };
            let name = std::str::from_utf8(&key).ok().and_then(KeySpace::domain_of);
            begin = match &name {
                Some(name) => prefix_end(KeySpace::new(name).all()),
                // A foreign key: the next one follows it.
                None => [key.as_slice(), &[0]].concat(),
            };
            names.extend(name);
        }
        Ok::<_, EtcdError>(names)
    })?;
    Ok(found)
}
