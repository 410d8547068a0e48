// SPDX-License-Identifier: Apache-2.0
//! Answers queries without a node, for `--direct` and where no node runs: it reads the files and the kernel once.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use vipwatch_api::AnswerSource;
use vipwatch_core::{Fault, Role};
use vipwatch_history::{LastRole, Reader};
use vipwatch_linux::clock;

use crate::audit::Audit;
use crate::config::Config;
use crate::discovery::{ConfigScanner, DiscoveryResult, read_processes};
use crate::processes::RememberedSources;
use crate::receiver::ReceiverHandle;
use crate::state::{InstanceEntry, StateStore};
use crate::transition::time_from_millis;
use crate::view::{ApiContext, ServiceInfo, ServiceKind};
use crate::watch::look::{InstanceReading, read_roles};

/// Reads the role of every instance once, and answers all queries of the command from these roles.
pub fn context(config: &Config) -> ApiContext {
    let mut scanner = ConfigScanner::new(config.locations.clone(), config.instances.clone());
    let mut processes = read_processes(&config.locations);
    if let Some(table) = &mut processes {
        table.add_sources(RememberedSources::new(config).load().unwrap_or_default());
        scanner.set_sources(table.sources());
    }
    let DiscoveryResult { instances, problems, .. } = scanner.scan();
    let stored = Reader::open(&config.state_dir).and_then(|reader| reader.last_roles());
    let stored = stored.unwrap_or_default();
    let context = history_context(config);
    context.store.set_processes(processes.map(|table| Arc::new(table.view())));
    for reading in read_roles(&instances) {
        let since = since(&reading.role, stored.get(reading.instance.id.as_str()));
        let group = config.groups.id_of(reading.instance, &context.node);
        context.store.insert(InstanceEntry { group, ..entry(reading, since) });
    }
    context.store.update(|view| {
        view.problems = Arc::new(problems);
        view.pending_edits = Arc::new(scanner.pending());
    });
    context
}

/// Reads neither files nor the kernel, and can only answer queries of the history.
pub fn history_context(config: &Config) -> ApiContext {
    let store = Arc::new(StateStore::default());
    let stored = Reader::open(&config.state_dir).and_then(|reader| reader.epoch());
    if let Ok(epoch) = stored {
        store.begin_epoch(epoch.name.into(), epoch.floor);
    }
    let audit = Audit::new(Arc::clone(&store), ReceiverHandle::default(), None);
    ApiContext {
        store,
        audit: Arc::new(audit),
        audit_requests: None,
        state_dir: config.state_dir.clone(),
        node: config.node_name(),
        source: AnswerSource::Kernel,
        receiver_handle: ReceiverHandle::default(),
        notifier: None,
        silences: None,
        reload_requests: None,
        cluster: None,
        service: Arc::new(ServiceInfo::new(ServiceKind::Node, config)),
    }
}

/// The context of a receiver process, which has no instances.
pub fn receiver_context(config: &Config) -> ApiContext {
    ApiContext {
        source: AnswerSource::Node,
        service: Arc::new(ServiceInfo::new(ServiceKind::Receiver, config)),
        ..history_context(config)
    }
}

/// The time in the history, if the instance still has the role that the history has; else the Unix epoch,
/// which stands for an unknown time.
fn since(role: &Role, stored: Option<&LastRole>) -> SystemTime {
    let same = stored.filter(|last| last.role == role.kind());
    same.map_or(UNIX_EPOCH, |last| time_from_millis(last.since))
}

fn entry(reading: InstanceReading<'_>, since: SystemTime) -> InstanceEntry {
    let is_read = !matches!(reading.role, Role::Fault(Fault::NoNetns) | Role::Unknown(_));
    let addresses = reading.addresses.into_iter().filter(|_| is_read);
    let addresses = addresses.map(|(_, _, state)| state).collect();
    let instance = Arc::new(reading.instance.clone());
    let role_since = clock::moment_of(since);
    InstanceEntry { since, role_since, ..InstanceEntry::new(instance, reading.role, addresses) }
}
