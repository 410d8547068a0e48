// SPDX-License-Identifier: Apache-2.0
//! Reads what a target for every notification has not received: transitions from the node's history, settled reports
//! from the receiver's journal.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use vipwatch_core::notification::{BacklogPart, BacklogRange, MAX_QUEUED, QueuedEvent};
use vipwatch_core::{ErrorChain, InstanceId};
use vipwatch_history::{DeliverySource, DeliveryStore, HistoryError, Reader, Record};
use vipwatch_linux::clock;
use vipwatch_receiver::journal::{JournalError, JournalReader};

use super::notification::{Notification, RecordedTransition};
use super::report_outlet::ReportNotification;
use super::target_queue::BacklogReader;
use crate::silence::Silences;
use crate::state::StateStore;

/// The journal of the receiver; `None` before a receiver has started.
pub(super) type SharedJournal = Arc<Mutex<Option<JournalReader>>>;

/// Where the notifications are.
pub(super) struct BacklogSources {
    /// The directory of the history.
    pub(super) state_dir: PathBuf,
    pub(super) deliveries: DeliveryStore,
    /// The configuration of the instances.
    pub(super) states: Arc<StateStore>,
    pub(super) journal: SharedJournal,
    pub(super) silences: Arc<Silences>,
}

/// Why a backlog cannot be read.
#[derive(Debug, thiserror::Error)]
enum BacklogError {
    #[error(transparent)]
    History(#[from] HistoryError),
    #[error(transparent)]
    Journal(#[from] JournalError),
}

impl BacklogError {
    /// Whether the notifications are lost with a file that is damaged or missing. Any other error may pass.
    fn is_lost(&self) -> bool {
        match self {
            Self::History(error) => error.is_damage() || matches!(error, HistoryError::Missing(_)),
            Self::Journal(error) => error.is_damage() || matches!(error, JournalError::Missing(_)),
        }
    }
}

/// The function that reads from `sources`.
pub(super) fn reader(sources: BacklogSources) -> Arc<BacklogReader> {
    let last_error = Mutex::new(None);
    Arc::new(move |settings, source, id, range| {
        let read = match source {
            DeliverySource::Node => sources.transitions(id, range),
            DeliverySource::Receiver => sources.reports(id, range),
        };
        // ORDER: retention counts a notification as missed before or while it deletes it. So the position is read after
        // the notifications, and those that count as missed meanwhile are left out.
        let part = read.and_then(|read| {
            let Some(notifications) = read else { return Ok(None) };
            let history = Reader::open(&sources.state_dir)?;
            let position = history.position(settings.name(), source, id.as_str())?;
            let is_complete = notifications.len() < MAX_QUEUED;
            let read_to = notifications.last().map_or(range.after, |last| last.seq());
            let is_left = |notification: &Arc<dyn Notification>| notification.seq() > position.seq;
            let left: Vec<_> = notifications.into_iter().filter(is_left).collect();
            let rows = u32::try_from(left.len()).unwrap_or(u32::MAX);
            let events = left.into_iter().filter_map(|content| {
                let (seq, kind) = (content.seq(), content.kind());
                let is_selected = settings.selects_at(&*content, &sources.silences);
                is_selected.then_some(QueuedEvent { seq, kind, content })
            });
            let (events, missed) = (events.collect(), position.missed);
            Ok(Some(BacklogPart { range, events, read_to, rows, missed, is_complete }))
        });
        let mut last_error = last_error.lock().unwrap_or_else(PoisonError::into_inner);
        match part {
            Ok(part) => {
                *last_error = None;
                part
            }
            Err(error) => {
                let text = ErrorChain(&error).to_string();
                // The queues read again several times each second.
                if last_error.as_ref() != Some(&text) {
                    let (target, error) = (settings.name(), &text);
                    tracing::error!(instance = %id, target, error, "cannot read undelivered notifications");
                    *last_error = Some(text);
                }
                if matches!(&error, BacklogError::History(error) if error.is_damage()) {
                    sources.states.report_history_damage();
                }
                error.is_lost().then(|| empty_part(range))
            }
        }
    })
}

/// The answer for a file that has none of the notifications.
fn empty_part(range: BacklogRange) -> BacklogPart<Arc<dyn Notification>> {
    let (events, read_to) = (Vec::new(), range.after);
    BacklogPart { range, events, read_to, rows: 0, missed: 0, is_complete: true }
}

/// Notifications in order; `None` if they are not written yet.
type ReadResult = Result<Option<Vec<Arc<dyn Notification>>>, BacklogError>;

impl BacklogSources {
    /// Transitions from the history, at most [`MAX_QUEUED`].
    fn transitions(&self, id: &InstanceId, range: BacklogRange) -> ReadResult {
        let BacklogRange { after, before, .. } = range;
        // The writer's thread may not have written the last of them yet.
        if before < i64::MAX && !self.deliveries.has_written(before) {
            return Ok(None);
        }
        let instance = self.states.entry(id).map(|entry| Arc::clone(&entry.instance));
        let history = Reader::open(&self.state_dir)?;
        let records = history.transitions_between(id.as_str(), after, before, MAX_QUEUED)?;
        let read_at = clock::now();
        let transition = |record: Record| -> Arc<dyn Notification> {
            let (id, instance) = (id.clone(), instance.clone());
            Arc::new(RecordedTransition { record, id, instance, read_at })
        };
        Ok(Some(records.into_iter().map(transition).collect()))
    }

    /// Settled reports from the journal, at most [`MAX_QUEUED`].
    fn reports(&self, id: &InstanceId, range: BacklogRange) -> ReadResult {
        let BacklogRange { after, before, .. } = range;
        let journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(journal) = journal else { return Ok(None) };
        let Some(reports) = journal.settled_between(id, after, before, MAX_QUEUED)? else {
            return Ok(None);
        };
        let report = |settled| -> Arc<dyn Notification> {
            Arc::new(ReportNotification::from_journal(settled))
        };
        Ok(Some(reports.into_iter().map(report).collect()))
    }
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
            to: Some(vipwatch_core::RoleKind::Primary),
            trigger: "address".to_owned(),
            reason: None,
            cause: None,
        }
    }

    /// Number of transitions in the answer; `None` if the queue must read again.
    fn read_count(reader: &BacklogReader) -> Option<u32> {
        let settings = TargetSettings::Ipv6(PathBuf::new());
        let id = "a".parse().unwrap();
        reader(&settings, DeliverySource::Node, &id, RANGE).map(|part| part.rows)
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
        let reader = reader(BacklogSources {
            state_dir: directory.path().to_owned(),
            deliveries,
            states: Arc::clone(&states),
            journal: SharedJournal::default(),
            silences: Arc::new(Silences::new(Vec::new()).unwrap()),
        });
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
