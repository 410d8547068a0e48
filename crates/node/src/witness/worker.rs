// SPDX-License-Identifier: Apache-2.0
//! The thread that decides which packet sockets exist, and reads their queues. The sockets are in tables of file
//! descriptors of their own, so that a killed node is gone quickly ([`CaptureTables`]).

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vipwatch_core::snapshot::LinkFacts;
use vipwatch_core::witness::LinkWitness;
use vipwatch_core::{ErrorChain, Moment, NetnsName};
use vipwatch_linux::clock;
use vipwatch_linux::inotify::{ChangedNames, DirectoryWatcher, WatchTopic};
use vipwatch_linux::netns::{DIRECTORY, Netns, NetnsError, NetnsId};
use vipwatch_linux::netns_query::{NetnsQuery, NetnsQueryError};
use vipwatch_linux::vrrp_capture::{
    CaptureId, CaptureMode, CaptureScratch, CaptureTables, OpenedCaptures,
};
use vipwatch_linux::worker::{Heartbeat, beat_every};

use super::evidence::{CaptureStatus, LinkEvidence, LinkKey};
use super::links::{WantedLink, WatchedLink, wanted_links};
use super::review::Reviewer;
use super::{Command, CommandKey, CommandQueue};
use crate::config::WitnessConfig;
use crate::discovery::InstanceConfig;
use crate::evidence::{EvidenceUpdate, EvidenceUpdates};
use crate::state::StateStore;
use vipwatch_core::FindingKind;

/// Time between two reads of the queues.
pub(super) const DRAIN_INTERVAL: Duration = Duration::from_secs(1);

/// Delay between a request of the main loop and its execution. State files come first: during a burst of changes, the threads
/// that read the adverts would take processors from the main loop, and one read covers the changes of several namespaces.
const REQUEST_DELAY: Timespec = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };

/// Delay between a change in the directory of names and the check of all names, so that one check covers many changes.
const NAMES_DELAY: Duration = Duration::from_millis(50);

/// Time between two attempts to open a socket in a namespace that does not exist, if the directory of names cannot be
/// watched; and time between two attempts to watch it.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// Time between two attempts to open a socket that the kernel has refused.
const REFUSED_RETRY_INTERVAL: Duration = Duration::from_mins(1);

/// The state of the thread.
pub(super) struct WitnessWorker {
    commands: CommandQueue,
    config: WitnessConfig,
    store: Arc<StateStore>,
    instances: Vec<Arc<InstanceConfig>>,
    links: HashMap<LinkKey, WatchedLink>,
    sockets: CaptureTables,
    /// Watches the directory of the namespaces' names; `None` if the host has no inotify instance left.
    names: Option<DirectoryWatcher>,
    /// Whether the directory is watched. If not, the names are checked with every drain.
    is_watching_names: bool,
    names_check: Option<Moment>,
    /// The names of namespaces that were added or removed since the last check.
    changed_names: ChangedNames,
    next_drain: Moment,
    next_retry: Moment,
    scratch: CaptureScratch,
    /// Looks links up by their names; opened for the first search.
    query: Option<NetnsQuery>,
    reviewer: Reviewer,
    evidence: EvidenceUpdates,
}

/// What one turn of the loop found in the queue of commands.
#[derive(Debug, Default)]
struct Requests {
    is_stop: bool,
    is_changed: bool,
    drains: BTreeSet<Option<NetnsName>>,
    searches: BTreeSet<Option<NetnsName>>,
}

impl WitnessWorker {
    pub(super) fn new(
        commands: CommandQueue,
        config: WitnessConfig,
        store: Arc<StateStore>,
        reviewer: Reviewer,
        evidence: EvidenceUpdates,
    ) -> Self {
        let now = clock::now();
        Self {
            commands,
            config,
            store,
            instances: Vec::new(),
            links: HashMap::new(),
            sockets: CaptureTables::default(),
            names: DirectoryWatcher::new().ok(),
            is_watching_names: false,
            names_check: None,
            changed_names: ChangedNames::None,
            next_drain: now,
            next_retry: now,
            scratch: CaptureScratch::new(),
            query: None,
            reviewer,
            evidence,
        }
    }

    pub(super) fn run(mut self, heartbeat: &Heartbeat) {
        loop {
            heartbeat.beat();
            self.wait();
            let requests = self.take_requests();
            if requests.is_stop {
                break;
            }
            if requests.is_changed {
                self.apply_links(heartbeat);
            }
            self.check_names();
            if !requests.searches.is_empty() {
                let is_requested = |key: &LinkKey| requests.searches.contains(&key.netns);
                let links = self.links.iter_mut().filter(|(key, _)| is_requested(key));
                links.for_each(|(_, link)| link.search_now());
                self.open_missing(heartbeat, is_requested);
                self.drain(heartbeat, is_requested);
            }
            if !requests.drains.is_empty() {
                let is_requested = |key: &LinkKey| requests.drains.contains(&key.netns);
                self.open_missing(heartbeat, is_requested);
                self.drain(heartbeat, is_requested);
                // The main loop publishes the role after its request: the next drain reviews the evidence again.
                let links = self.links.iter_mut().filter(|(key, _)| is_requested(key));
                links.for_each(|(_, link)| link.is_review_due = true);
                self.evidence
                    .push_all(requests.drains.into_iter().map(EvidenceUpdate::AdvertsRead));
            }
            if self.next_drain <= clock::now() {
                self.drain_all(heartbeat);
            }
        }
        self.close(|_| true);
    }

    /// Waits for a command, a change of a name, or the next drain. Without links there is no timer.
    fn wait(&self) {
        let now = clock::now();
        let mut left = beat_every();
        if !self.links.is_empty() {
            let due = self.names_check.map_or(self.next_drain, |check| check.min(self.next_drain));
            left = left.min(due.since(now));
        }
        let sources: [Option<BorrowedFd<'_>>; 2] =
            [Some(self.commands.as_fd()), self.names.as_ref().map(AsFd::as_fd)];
        let mut polled: Vec<PollFd<'_>> = sources
            .into_iter()
            .flatten()
            .map(|source| PollFd::from_borrowed_fd(source, PollFlags::IN))
            .collect();
        // An interrupted wait is a turn without work.
        if poll(&mut polled, Timespec::try_from(left).ok().as_ref()).is_ok_and(|ready| ready > 0) {
            let _ = poll(&mut [], Some(&REQUEST_DELAY));
        }
    }

    fn take_requests(&mut self) -> Requests {
        let mut requests = Requests::default();
        for (key, command) in self.commands.take_all() {
            match (key, command) {
                (_, Command::Stop) => requests.is_stop = true,
                (_, Command::Configure(config)) => {
                    self.config = config;
                    requests.is_changed = true;
                }
                (_, Command::Follow(instances)) => {
                    self.instances = instances;
                    requests.is_changed = true;
                }
                (CommandKey::Drain(netns), Command::Drain) => {
                    requests.drains.insert(netns);
                }
                (CommandKey::Search(netns), _) => {
                    requests.searches.insert(netns);
                }
                (_, Command::Drain | Command::Search) => {}
            }
        }
        requests
    }

    /// Closes the sockets of links that are no longer wanted, and opens those of new ones.
    fn apply_links(&mut self, heartbeat: &Heartbeat) {
        let wanted = wanted_links(&self.instances, &self.config);
        let is_kept = |key: &LinkKey, link: &WatchedLink| {
            let is_same =
                |new: &WantedLink| new.mode == link.wanted.mode && new.groups == link.wanted.groups;
            wanted.get(key).is_some_and(is_same)
        };
        let removed: HashSet<LinkKey> = self
            .links
            .iter()
            .filter(|(key, link)| !is_kept(key, link))
            .map(|(key, _)| key.clone())
            .collect();
        self.close(|key| removed.contains(key));
        let now = clock::now();
        self.store.witness.change(|links| {
            for key in &removed {
                self.links.remove(key);
                links.remove(key);
            }
            for (key, wanted) in wanted {
                let evidence = links.entry(key.clone()).or_insert_with(|| LinkEvidence {
                    status: CaptureStatus::NoNetns,
                    has_sent: wanted.mode == CaptureMode::ReceivedAndSent,
                    has_membership: false,
                    witness: LinkWitness::new(now),
                });
                evidence.witness.follow(wanted.routers.iter().copied());
                match self.links.get_mut(&key) {
                    Some(known) => {
                        known.wanted = wanted;
                        known.is_review_due = true;
                    }
                    None => drop(self.links.insert(key, WatchedLink::new(wanted))),
                }
            }
        });
        self.reviewer.follow(&self.instances);
        self.watch_names();
        self.drain_all(heartbeat);
        self.report_refusals();
    }

    fn watch_names(&mut self) {
        self.next_retry = clock::now() + RETRY_INTERVAL;
        let Some(names) = &mut self.names else { return };
        let watched = names.watch(Path::new(DIRECTORY), WatchTopic::NetnsNames);
        self.is_watching_names = watched.is_ok();
        if watched.unwrap_or(false) {
            self.changed_names = ChangedNames::Any;
            self.names_check = Some(clock::now());
        }
    }

    /// After a change in the directory of names: closes the sockets in namespaces with a name that was removed, or that
    /// stands for another namespace now, and has sockets in new namespaces opened.
    fn check_names(&mut self) {
        let now = clock::now();
        if let Some(names) = &mut self.names {
            self.changed_names.join(names.read().netns_names);
        }
        if self.changed_names != ChangedNames::None {
            self.names_check.get_or_insert(now + NAMES_DELAY);
        }
        if self.names_check.is_none_or(|check| check > now) {
            return;
        }
        self.names_check = None;
        let changed = std::mem::take(&mut self.changed_names);
        let mut current: BTreeMap<NetnsName, Option<NetnsId>> = BTreeMap::new();
        let mut gone: HashSet<LinkKey> = HashSet::new();
        for (key, link) in &mut self.links {
            let Some(name) = key.netns.as_ref().filter(|name| changed.contains(name.as_str()))
            else {
                continue;
            };
            if link.capture.is_none() {
                link.retry_at = now;
                continue;
            }
            let id = *current
                .entry(name.clone())
                // A name that cannot be checked keeps its socket.
                .or_insert_with(|| NetnsId::of_name(name).unwrap_or(link.netns));
            if id != link.netns {
                gone.insert(key.clone());
            }
        }
        self.close(|key| gone.contains(key));
        for key in &gone {
            self.set_status(key, CaptureStatus::NoNetns);
        }
    }

    fn set_status(&self, key: &LinkKey, status: CaptureStatus) {
        self.store.witness.change(|links| {
            if let Some(evidence) = links.get_mut(key) {
                evidence.status = status;
            }
        });
    }

    /// Closes the sockets of these links; the links stay.
    fn close(&mut self, is_wanted: impl Fn(&LinkKey) -> bool) {
        let links = self.links.iter_mut().filter(|(key, _)| is_wanted(key));
        let now = clock::now();
        let captures = links.filter_map(|(_, link)| {
            link.retry_at = now;
            link.capture.take()
        });
        let captures: Vec<CaptureId> = captures.collect();
        if !captures.is_empty() {
            self.sockets.close(&captures);
        }
    }

    fn drain_all(&mut self, heartbeat: &Heartbeat) {
        let now = clock::now();
        self.next_drain = now + DRAIN_INTERVAL;
        if !self.is_watching_names {
            self.changed_names = ChangedNames::Any;
            self.names_check = Some(now);
            self.check_names();
        }
        if self.next_retry <= now {
            self.watch_names();
        }
        self.open_missing(heartbeat, |_| true);
        self.drain(heartbeat, |_| true);
    }

    fn drain(&mut self, heartbeat: &Heartbeat, is_wanted: impl Fn(&LinkKey) -> bool) {
        heartbeat.beat();
        let mut wanted: Vec<_> = self.links.iter_mut().filter(|(key, _)| is_wanted(key)).collect();
        let open = wanted
            .iter_mut()
            .filter_map(|(key, link)| Some((link.capture?, (&**key, &mut **link))));
        self.sockets.for_each(open.collect(), |(key, link), capture| {
            link.drain(key, capture, &self.store.witness, &mut self.scratch, clock::now());
        });
        let now = clock::now();
        let unbound =
            wanted.iter_mut().filter(|(_, link)| link.needs_lookup && link.next_search <= now);
        let found = unbound.filter_map(|(key, link)| {
            let capture = link.capture?;
            let found = look_up(&mut self.query, key, link.netns);
            Some((capture, (&**key, &mut **link, found)))
        });
        self.sockets.for_each(found.collect(), |(key, link, found), capture| {
            link.bind(key, capture, found, &self.store.witness);
        });
        for (_, link) in wanted {
            if link.is_review_due {
                link.is_review_due = self.reviewer.review(&link.wanted.instances, &self.store);
            }
        }
    }

    /// Opens the sockets that are missing and due; each namespace is entered once.
    fn open_missing(&mut self, heartbeat: &Heartbeat, is_wanted: impl Fn(&LinkKey) -> bool) {
        let now = clock::now();
        let mut by_netns: BTreeMap<Option<NetnsName>, Vec<LinkKey>> = BTreeMap::new();
        for (key, link) in &self.links {
            if link.capture.is_none() && link.retry_at <= now && is_wanted(key) {
                by_netns.entry(key.netns.clone()).or_default().push(key.clone());
            }
        }
        if by_netns.is_empty() {
            return;
        }
        for (netns, keys) in by_netns {
            heartbeat.beat();
            self.open_in(netns.as_ref(), &keys);
        }
        self.report_refusals();
    }

    fn open_in(&mut self, netns: Option<&NetnsName>, keys: &[LinkKey]) {
        let links = keys.iter().filter_map(|key| Some((key, self.links.get(key)?)));
        let (keys, requests): (Vec<_>, Vec<_>) =
            links.map(|(key, link)| (key, link.wanted.request(key.link))).unzip();
        let mut next = 0;
        while next < requests.len() {
            let OpenedCaptures { netns: id, captures } =
                match self.sockets.open(netns, &requests[next..]) {
                    Ok(opened) => opened,
                    Err(error) => return self.fail(&keys[next..], &netns_status(&error)),
                };
            for capture in captures {
                let key = keys[next];
                next += 1;
                match (capture, self.links.get_mut(key)) {
                    (Ok(capture), Some(link)) => link.set_capture(capture, id),
                    (Ok(capture), None) => self.sockets.close(&[capture]),
                    (Err(error), _) => self.fail(&[key], &open_status(&error)),
                }
            }
        }
    }

    /// Records that the sockets of these links cannot be opened.
    fn fail(&mut self, keys: &[&LinkKey], status: &CaptureStatus) {
        let pause = match status {
            CaptureStatus::NoNetns => RETRY_INTERVAL,
            _ => REFUSED_RETRY_INTERVAL,
        };
        for key in keys {
            if let Some(link) = self.links.get_mut(*key) {
                link.retry_at = clock::now() + pause;
            }
            self.set_status(key, status.clone());
        }
    }

    /// Reports refused sockets once as a problem of the node, until none is refused.
    fn report_refusals(&self) {
        let refused = self.store.witness.change(|links| {
            let errors = links.values().filter_map(|link| match &link.status {
                CaptureStatus::Refused(error) => Some(error.clone()),
                _ => None,
            });
            let errors: Vec<String> = errors.collect();
            errors.first().map(|first| (errors.len(), first.clone()))
        });
        let text = refused
            .map(|(count, error)| format!("cannot capture VRRP adverts on {count} links: {error}"));
        let known = self.store.health_problem(FindingKind::NodeWitness);
        match (&text, known) {
            (Some(text), None) => tracing::warn!(problem = text, "witness is incomplete"),
            (None, Some(_)) => tracing::info!("witness is complete again"),
            _ => {}
        }
        self.store.set_health(FindingKind::NodeWitness, text);
    }
}

/// Looks the link up by its name in the namespace of its socket.
fn look_up(
    query: &mut Option<NetnsQuery>,
    key: &LinkKey,
    socket_netns: Option<NetnsId>,
) -> Result<Option<LinkFacts>, NetnsQueryError> {
    let netns = key.netns.as_ref().map(Netns::open).transpose()?;
    // The name stands for another namespace now: the check of the names closes the socket.
    if netns.as_ref().map(Netns::id) != socket_netns {
        return Ok(None);
    }
    let query = match query {
        Some(query) => query,
        None => query.insert(NetnsQuery::open().or_else(|_| NetnsQuery::open_own())?),
    };
    let found = query.link_by_name(netns.as_ref(), key.link)?;
    // The name may be an alternative one, which keepalived does not know.
    Ok(found.filter(|facts| facts.name == key.link))
}

/// The status of a link in a namespace that cannot be entered.
fn netns_status(error: &NetnsError) -> CaptureStatus {
    let source = match error {
        NetnsError::Missing(_) | NetnsError::NotANamespace(_) => return CaptureStatus::NoNetns,
        NetnsError::Open { source, .. } | NetnsError::Enter { source, .. } => source,
    };
    let text = ErrorChain(error).to_string();
    if source.kind() == std::io::ErrorKind::PermissionDenied {
        CaptureStatus::Refused(text)
    } else {
        CaptureStatus::Failed(text)
    }
}

/// The status of a link without a socket, because it cannot be opened.
fn open_status(error: &std::io::Error) -> CaptureStatus {
    let text = format!("cannot open a packet socket: {error}");
    if error.kind() == std::io::ErrorKind::PermissionDenied {
        CaptureStatus::Refused(text)
    } else {
        CaptureStatus::Failed(text)
    }
}
