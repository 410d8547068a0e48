// SPDX-License-Identifier: Apache-2.0
//! The virtual routes and rules of instances that the kernel does not have.

use std::sync::Arc;

use vipwatch_core::audit::RoutingFacts;
use vipwatch_core::routing::{RoutingQuestion, RoutingTables};
use vipwatch_core::snapshot::Snapshot;
use vipwatch_core::{NetnsName, Role};
use vipwatch_linux::netns_query::routing_tables;

use crate::discovery::InstanceConfig;
use crate::state::InstanceEntry;

/// The routes and rules of a namespace, as far as its primary instances have virtual ones.
#[derive(Debug)]
pub(super) struct RoutingReading {
    tables: RoutingTables,
    /// The instances with routes or rules that were asked for. An instance that was configured or became primary later
    /// is not among them.
    instances: Vec<Arc<InstanceConfig>>,
}

impl RoutingReading {
    /// Reads the routes and rules that these instances need. The kernel is not asked if they need none.
    pub(super) fn take(
        netns: Option<&NetnsName>,
        entries: impl Iterator<Item = Arc<InstanceEntry>>,
    ) -> Self {
        let mut question = RoutingQuestion::default();
        let mut instances = Vec::new();
        for entry in entries.filter(|entry| entry.role == Role::Primary) {
            let vrrp = &entry.instance.vrrp;
            if !vrrp.routes.is_empty() || !vrrp.rules.is_empty() {
                question.add(&vrrp.routes, &vrrp.rules);
                instances.push(Arc::clone(&entry.instance));
            }
        }
        // A namespace that cannot be entered has unknown tables.
        let tables = (!question.is_empty()).then(|| routing_tables(netns, &question).ok());
        Self { tables: tables.flatten().unwrap_or_default(), instances }
    }

    /// The routes and rules of an instance that the kernel does not have; none if that is not known.
    pub(super) fn missing(
        &self,
        instance: &Arc<InstanceConfig>,
        snapshot: &Result<Snapshot, Role>,
    ) -> RoutingFacts {
        let is_asked = self.instances.iter().any(|asked| Arc::ptr_eq(asked, instance));
        let Some(snapshot) = snapshot.as_ref().ok().filter(|_| is_asked) else {
            return RoutingFacts::default();
        };
        RoutingFacts {
            routes: self.tables.missing_routes(&instance.vrrp.routes, snapshot),
            rules: self.tables.missing_rules(&instance.vrrp.rules),
        }
    }
}
