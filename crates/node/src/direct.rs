//! Looks for himself: answers without a node, from one look at the files and the kernel.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use crate::discovery::{ConfigScanner, DiscoveryResult};
use crate::watch::instance_table::Cause;
use crate::watch::look::look;
use vipwatch_history::{Latencies, Reader};
use vipwatch_linux::clock::from_unix_millis;

use crate::audit::AuditState;
use crate::config::Config;
use crate::query_server::{QueryContext, QuerySource};
use crate::receiver::ReceiverHandle;
use crate::state::{InstanceEntry, StateStore};

/// Looks once, and can answer from then on.
pub fn context(config: &Config) -> QueryContext {
    let discovery = ConfigScanner::new(config.places.clone(), config.instances.clone()).look();
    let DiscoveryResult { instances, problems, .. } = discovery;
    // What is still so as it was recorded is so since then.
    let recorded = Reader::open(&config.state_dir).and_then(|reader| reader.last_roles());
    let recorded = recorded.unwrap_or_default();
    let entries = look(&instances).into_iter().map(|seen| {
        let known = recorded.get(seen.found.id.as_str());
        let since = known.filter(|last| last.role == seen.role.as_str());
        let entry = InstanceEntry {
            found: Arc::new(seen.found.clone()),
            role: seen.role,
            since: since.map_or(SystemTime::UNIX_EPOCH, |last| from_unix_millis(last.since)),
            seq: 0,
            cause: Cause::Start,
            latencies: Latencies::default(),
            failures: BTreeMap::new(),
            agent: None,
            stages: Arc::from([]),
            is_news: false,
        };
        (entry.found.id.clone(), Arc::new(entry))
    });
    let entries = entries.collect();
    let context = archive(config);
    context.store.update(|view| (view.entries, view.problems) = (entries, Arc::new(problems)));
    context
}

/// Looks at nothing: can answer from the history only.
pub fn archive(config: &Config) -> QueryContext {
    let store = StateStore::default();
    QueryContext {
        store: Arc::new(store),
        audit: Arc::new(AuditState::default()),
        state_dir: config.state_dir.clone(),
        node: crate::name(),
        source: QuerySource::Kernel,
        receiver_handle: ReceiverHandle::default(),
    }
}
