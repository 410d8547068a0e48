//! Reads transitions from the history that a target for every transition has not received.

use std::path::PathBuf;
use std::sync::Arc;

use vipwatch_core::InstanceId;
use vipwatch_core::notification::{BacklogPart, BacklogRange, MAX_QUEUED, QueuedEvent};
use vipwatch_history::{DeliveryStore, HistoryError, Reader, Record};
use vipwatch_linux::clock;

use super::notification::{Notification, RecordedTransition};
use super::target::TargetSettings;
use super::target_queue::BacklogReader;
use crate::discovery::InstanceConfig;
use crate::state::StateStore;

/// The function that reads from the history in `state_dir`. `states` has the configuration of the instances.
pub(super) fn reader(
    state_dir: PathBuf,
    deliveries: DeliveryStore,
    states: Arc<StateStore>,
) -> Arc<BacklogReader> {
    Arc::new(move |settings, id, range| {
        // The writer's thread may not have written the last of them yet.
        if range.before < i64::MAX && !deliveries.has_written(range.before) {
            return None;
        }
        let instance = states.entry(id).map(|entry| Arc::clone(&entry.instance));
        let read = Reader::open(&state_dir)
            .and_then(|reader| read(&reader, settings, id, instance.as_ref(), range));
        match read {
            Ok(part) => Some(part),
            Err(error) => {
                let (target, error) = (settings.name(), error.to_string());
                tracing::error!(instance = %id, target, error, "cannot read undelivered transitions");
                let (events, read_to) = (Vec::new(), range.after);
                Some(BacklogPart { range, events, read_to, rows: 0, missed: 0, is_complete: true })
            }
        }
    })
}

fn read(
    reader: &Reader,
    settings: &TargetSettings,
    id: &InstanceId,
    instance: Option<&Arc<InstanceConfig>>,
    range: BacklogRange,
) -> Result<BacklogPart<Arc<dyn Notification>>, HistoryError> {
    let BacklogRange { after, before, .. } = range;
    let records = reader.transitions_between(id.as_str(), after, before, MAX_QUEUED)?;
    let (rows, read_to) = (records.len(), records.last().map_or(after, |last| last.seq));
    let read_at = clock::now();
    let event = |record: Record| {
        let (id, instance) = (id.clone(), instance.cloned());
        let content = RecordedTransition { record, id, instance, read_at };
        let (seq, kind) = (content.seq(), content.kind());
        let content: Arc<dyn Notification> = Arc::new(content);
        settings.selects(kind).then_some(QueuedEvent { seq, kind, content })
    };
    Ok(BacklogPart {
        range,
        events: records.into_iter().filter_map(event).collect(),
        read_to,
        rows: u32::try_from(rows).unwrap_or(u32::MAX),
        missed: reader.missed(settings.name(), id.as_str())?,
        is_complete: rows < MAX_QUEUED,
    })
}
