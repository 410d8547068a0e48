//! Reads transitions from the history that a target for every transition has not received.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use vipwatch_core::notification::{BacklogPart, BacklogRange, MAX_QUEUED, QueuedEvent};
use vipwatch_core::{ErrorChain, InstanceId};
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
    let last_error = Mutex::new(None);
    Arc::new(move |settings, id, range| {
        // The writer's thread may not have written the last of them yet.
        if range.before < i64::MAX && !deliveries.has_written(range.before) {
            return None;
        }
        let instance = states.entry(id).map(|entry| Arc::clone(&entry.instance));
        let read = Reader::open(&state_dir)
            .and_then(|reader| read(&reader, settings, id, instance.as_ref(), range));
        let mut last_error = last_error.lock().unwrap_or_else(PoisonError::into_inner);
        match read {
            Ok(part) => {
                *last_error = None;
                Some(part)
            }
            Err(error) => {
                let text = ErrorChain(&error).to_string();
                // The queues read again several times each second.
                if last_error.as_ref() != Some(&text) {
                    let (target, error) = (settings.name(), &text);
                    tracing::error!(instance = %id, target, error, "cannot read undelivered transitions");
                    *last_error = Some(text);
                }
                if error.is_damage() {
                    states.report_history_damage();
                }
                // The transitions are lost with a file that is damaged or missing. Any other error may pass.
                let is_lost = error.is_damage() || matches!(error, HistoryError::Missing(_));
                is_lost.then(|| empty_part(range))
            }
        }
    })
}

/// The answer for a history that has none of the transitions.
fn empty_part(range: BacklogRange) -> BacklogPart<Arc<dyn Notification>> {
    let (events, read_to) = (Vec::new(), range.after);
    BacklogPart { range, events, read_to, rows: 0, missed: 0, is_complete: true }
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

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;

    use vipwatch_history::{FILE, Latencies, Retention, Writer};

    use super::*;
    use crate::notify::target::TargetSettings;

    const RANGE: BacklogRange = BacklogRange { after: 0, before: i64::MAX, moved: 0 };

    fn transition(seq: i64) -> Record {
        Record {
            seq,
            at: 1,
            instance: "a".to_owned(),
            netns: None,
            from: None,
            to: "primary".to_owned(),
            cause: "address".to_owned(),
            reason: None,
        }
    }

    /// Number of transitions in the answer; `None` if the queue must read again.
    fn read_count(reader: &BacklogReader) -> Option<u32> {
        let settings = TargetSettings::Ipv6(PathBuf::new());
        reader(&settings, &"a".parse().unwrap(), RANGE).map(|part| part.rows)
    }

    #[test]
    fn a_history_that_cannot_be_read_for_a_moment_is_read_again() {
        let directory = tempfile::tempdir().unwrap();
        let keep = Retention { age: std::time::Duration::MAX, ..Retention::default() };
        let (writer, _) = Writer::open(directory.path(), keep).unwrap();
        let deliveries = writer.delivery_store();
        writer.record(transition(1), Latencies::default());
        drop(writer);
        let states = Arc::new(StateStore::default());
        let reader = reader(directory.path().to_owned(), deliveries, Arc::clone(&states));
        assert_eq!(read_count(&*reader), Some(1));
        let (file, aside) = (directory.path().join(FILE), directory.path().join("aside"));
        std::fs::rename(&file, &aside).unwrap();
        std::fs::create_dir(&file).unwrap();
        assert_eq!(read_count(&*reader), None);
        std::fs::remove_dir(&file).unwrap();
        std::fs::rename(&aside, &file).unwrap();
        assert_eq!(read_count(&*reader), Some(1));
        File::create(&file).unwrap().write_all(&[7; 8192]).unwrap();
        assert_eq!(read_count(&*reader), Some(0), "a damaged file does not have them any more");
        assert!(states.take_history_damage());
    }
}
