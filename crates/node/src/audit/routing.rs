//! The virtual routes and rules of instances that the kernel does not have.

use std::sync::Arc;

use vipwatch_core::audit::RoutingFacts;
use vipwatch_core::routing::{RoutingQuestion, RoutingTables};
use vipwatch_core::snapshot::Snapshot;
use vipwatch_core::{NetnsName, Role};
use vipwatch_linux::netns_query::routing_tables;

use crate::discovery::InstanceConfig;
use crate::state::InstanceEntry;

/// Reads the routes and rules of a namespace, as far as its primary instances have virtual ones; `None` if there are none
/// or the namespace cannot be read.
pub(super) fn read(
    netns: Option<&NetnsName>,
    entries: impl Iterator<Item = Arc<InstanceEntry>>,
) -> Option<RoutingTables> {
    let mut question = RoutingQuestion::default();
    for entry in entries.filter(|entry| entry.role == Role::Primary) {
        question.add(&entry.instance.vrrp.routes, &entry.instance.vrrp.rules);
    }
    (!question.is_empty()).then(|| routing_tables(netns, &question).ok()).flatten()
}

/// The routes and rules of an instance that the kernel does not have; none if that is not known.
pub(super) fn missing(
    instance: &InstanceConfig,
    snapshot: &Result<Snapshot, Role>,
    tables: Option<&RoutingTables>,
) -> RoutingFacts {
    let (Ok(snapshot), Some(tables)) = (snapshot, tables) else { return RoutingFacts::default() };
    RoutingFacts {
        routes: tables.missing_routes(&instance.vrrp.routes, snapshot),
        rules: tables.missing_rules(&instance.vrrp.rules),
    }
}
