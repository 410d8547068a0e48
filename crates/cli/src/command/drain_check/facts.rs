// SPDX-License-Identifier: Apache-2.0
//! Reads the facts of the check from the node.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use vipwatch_api::client::{Client, ClientError};
use vipwatch_api::{
    AdvertsItem, ClusterGroupList, DrainFacts, DrainFailover, DrainPeer, ErrorCode, HistoryFilter,
    InstanceFilter, InstanceItem, RoleKind, TimelineItem, Timestamp, TransitionItem,
};

/// Maximum number of instances for which the adverts of other nodes are read: one request each.
const MAX_PEERS: usize = 200;
/// Maximum number of transitions that are searched for the last failovers, the newest ones.
const MAX_TRANSITIONS: u64 = 20_000;

/// Instances that were here within this time are missed if there are none now.
const RECENT: Duration = Duration::from_hours(24);

/// The end of an instance, in place of a role.
const REMOVED: &str = "removed";

/// The trigger of the end of an instance that the node did not find when it started.
const START: &str = "start";

/// Which findings are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AuditMode {
    /// Those of a new audit, with everything that the answer shows.
    Now,
    /// Those of the last audit, and only what decides the verdict.
    Last,
}

/// Reads the facts.
pub(super) fn read_facts(node: &Client, mode: AuditMode) -> Result<DrainFacts, ClientError> {
    // ORDER: the audit first, so that the roles are not older than the findings.
    let findings = match mode {
        AuditMode::Now => node.audit()?,
        AuditMode::Last => node.findings()?,
    };
    let instances = node.instances(&InstanceFilter::default())?.items;
    let recent_instances = if instances.is_empty() { recent_instances(node)? } else { Some(0) };
    let mut facts = DrainFacts {
        node: findings.node.clone(),
        at: Timestamp::now(),
        findings,
        targets: node.targets()?.items,
        cluster: read_cluster(node)?,
        captures_adverts: false,
        peers: BTreeMap::new(),
        failovers: BTreeMap::new(),
        history_error: None,
        recent_instances,
        instances,
    };
    if mode == AuditMode::Now {
        facts.captures_adverts = captures_adverts(node)?;
        facts.peers = read_peers(node, &facts.instances)?;
        match read_failovers(node) {
            Ok(failovers) => facts.failovers = failovers,
            Err(ClientError::Problem(problem)) => facts.history_error = Some(problem.detail),
            Err(error) => return Err(error),
        }
    }
    Ok(facts)
}

/// The groups of the cluster; `None` if the node is of a release without them.
fn read_cluster(node: &Client) -> Result<Option<ClusterGroupList>, ClientError> {
    match node.cluster_groups() {
        Ok(groups) => Ok(Some(groups)),
        Err(ClientError::Problem(problem)) if problem.code == ErrorCode::UnknownRoute => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether the witness of the node is on.
fn captures_adverts(node: &Client) -> Result<bool, ClientError> {
    let settings = node.config()?.settings;
    let witness = settings.get("witness").and_then(|witness| witness.get("enabled"));
    Ok(witness.and_then(serde_json::Value::as_bool).unwrap_or(false))
}

/// The newest advert of another node for each instance: first for those with addresses here.
fn read_peers(
    node: &Client,
    instances: &[InstanceItem],
) -> Result<BTreeMap<String, DrainPeer>, ClientError> {
    let is_held =
        |instance: &&InstanceItem| matches!(instance.role, RoleKind::Primary | RoleKind::Partial);
    let mut peers = BTreeMap::new();
    let (held, others): (Vec<_>, Vec<_>) = instances.iter().partition(is_held);
    for instance in held.into_iter().chain(others).take(MAX_PEERS) {
        let adverts = match node.instance(&instance.id) {
            Ok(detail) => detail.adverts,
            // The instance was removed in the meantime.
            Err(ClientError::Problem(problem)) if problem.code == ErrorCode::UnknownInstance => {
                None
            }
            Err(error) => return Err(error),
        };
        let peer = adverts.as_ref().and_then(newest_peer);
        peers.extend(peer.map(|peer| (instance.id.clone(), peer)));
    }
    Ok(peers)
}

fn newest_peer(adverts: &AdvertsItem) -> Option<DrainPeer> {
    let others = adverts.sources.iter().filter(|source| !source.own);
    let newest = others.max_by_key(|source| source.at)?;
    let advertising = newest.advertising;
    Some(DrainPeer { source: newest.source.clone(), at: newest.at, advertising })
}

/// The number of instances of the last day that are missed on a node that follows none. `None` if the history cannot be read.
fn recent_instances(node: &Client) -> Result<Option<u64>, ClientError> {
    let since = Timestamp::now() - RECENT;
    let filter = HistoryFilter { since: Some(since), ..HistoryFilter::default() };
    let mut missed = BTreeSet::new();
    let items = match node.history(&filter) {
        Ok(items) => items,
        Err(ClientError::Problem(_)) => return Ok(None),
        Err(error) => return Err(error),
    };
    for item in items {
        if let TimelineItem::Transition(transition) = item? {
            update_missed(&mut missed, transition);
        }
    }
    Ok(Some(missed.len() as u64))
}

/// An instance is not missed if the running node saw its removal, and its addresses were elsewhere. Of one that a start did not
/// find, the file may be at another place now.
pub(super) fn update_missed(missed: &mut BTreeSet<String>, transition: TransitionItem) {
    let had_none = matches!(transition.from, Some(RoleKind::Backup | RoleKind::Fault));
    if transition.to == REMOVED && transition.trigger != START && had_none {
        missed.remove(&transition.id);
    } else {
        missed.insert(transition.id);
    }
}

/// The last transition of each instance from or to `primary`.
fn read_failovers(node: &Client) -> Result<BTreeMap<String, DrainFailover>, ClientError> {
    let filter = HistoryFilter { limit: Some(MAX_TRANSITIONS), ..HistoryFilter::default() };
    let mut failovers = BTreeMap::new();
    for item in node.history(&filter)? {
        let TimelineItem::Transition(transition) = item? else { continue };
        // Without a role before, the node has just begun to follow the instance.
        let Some(from) = transition.from else { continue };
        if from == RoleKind::Primary || transition.to == RoleKind::Primary.word() {
            let (at, to, cause) = (transition.at, transition.to, transition.cause);
            failovers.insert(transition.id, DrainFailover { at, from, to, cause });
        }
    }
    Ok(failovers)
}
