//! Looks for himself: answers without a node, from one look at the files and the kernel.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use vipwatch_engine::discovery::{Discovery, Scout};
use vipwatch_engine::look::look;
use vipwatch_engine::roster::Cause;
use vipwatch_history::{Latencies, Reader};

use crate::audit::Auditor;
use crate::board::{Board, Entry};
use crate::config::Config;
use crate::desk::{Office, Source};
use crate::reception::Front;

/// Looks once, and can answer from then on.
pub fn office(config: &Config) -> Office {
    let discovery = Scout::new(config.places.clone(), config.instances.clone()).look();
    let Discovery { instances, troubles, .. } = discovery;
    // What is still so as it was recorded is so since then.
    let recorded = Reader::open(&config.state_dir).and_then(|reader| reader.last_roles());
    let recorded = recorded.unwrap_or_default();
    let entries = look(&instances).into_iter().map(|seen| {
        let known = recorded.get(seen.found.id.as_str());
        let since = known.filter(|last| last.role == seen.standing.word());
        let since = since.and_then(|last| u64::try_from(last.since).ok());
        let entry = Entry {
            found: Arc::new(seen.found.clone()),
            standing: seen.standing,
            since: since
                .map_or(SystemTime::UNIX_EPOCH, |at| UNIX_EPOCH + Duration::from_millis(at)),
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
    let office = archive(config);
    office.board.update(|view| (view.entries, view.troubles) = (entries, Arc::new(troubles)));
    office
}

/// Looks at nothing: can answer from the history only.
pub fn archive(config: &Config) -> Office {
    let board = Board::default();
    Office {
        board: Arc::new(board),
        auditor: Arc::new(Auditor::default()),
        state_dir: config.state_dir.clone(),
        node: crate::name(),
        source: Source::Kernel,
        front: Front::default(),
    }
}
