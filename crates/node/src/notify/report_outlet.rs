// SPDX-License-Identifier: Apache-2.0
//! Delivers the states that monitors reported, once they have settled, to the targets of `[receiver]`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use std::time::SystemTime;

use vipwatch_api::{NotificationBody, ReportDocument, Schema};
use vipwatch_core::{EventKind, InstanceId, Moment};
use vipwatch_history::DeliverySource;
use vipwatch_linux::clock;
use vipwatch_receiver::journal::{JournalReader, ReportSeqs};
use vipwatch_receiver::{ReportSink, SettledReport};

use super::notification::{Notification, Subject};
use super::notifier::Notifier;
use super::target::TargetSettings;
use crate::config::ReceiverConfig;
use crate::event::{self, NodeIdentity};

/// How long pending deliveries may take when the receiver is stopped.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// A settled report as a notification.
#[derive(Debug)]
pub(crate) struct ReportNotification {
    settled: SettledReport,
    read_at: Moment,
    /// The report was settled before this run, before a reload, or is read from the journal.
    is_repeated: bool,
}

impl ReportNotification {
    /// A report that was settled earlier.
    pub(super) fn from_journal(settled: SettledReport) -> Self {
        Self { settled, read_at: clock::now(), is_repeated: true }
    }
}

impl Notification for ReportNotification {
    fn instance(&self) -> Option<&InstanceId> {
        Some(&self.settled.instance)
    }

    fn subject(&self) -> Subject {
        Subject::Instance(self.settled.instance.clone())
    }

    fn seq(&self) -> i64 {
        self.settled.seq
    }

    fn kind(&self) -> EventKind {
        self.settled.state.into()
    }

    fn at(&self) -> SystemTime {
        self.settled.at
    }

    fn read_at(&self) -> Moment {
        self.read_at
    }

    fn measured_from(&self) -> Option<Moment> {
        (!self.is_repeated).then_some(self.read_at)
    }

    fn body(&self, identity: &NodeIdentity) -> NotificationBody {
        let SettledReport { instance, state, from, seq, at } = &self.settled;
        NotificationBody::Report(ReportDocument {
            schema: Schema::Report,
            node: identity.node.to_string(),
            epoch: identity.epoch.to_string(),
            source: DeliverySource::Receiver.as_str().to_owned(),
            seq: *seq,
            at: event::time(*at),
            id: instance.to_string(),
            from: from.map(|from| from.as_str().to_owned()),
            to: state.as_str().to_owned(),
            state: state.neutron_server_name().to_owned(),
        })
    }
}

/// Gives settled reports to the notifier. The receiver calls it from its thread.
#[derive(Debug, Clone)]
pub(crate) struct ReportOutlet(Notifier);

impl ReportOutlet {
    /// An outlet for the targets of `config`.
    pub(crate) fn new(notifier: Notifier, config: &ReceiverConfig) -> Self {
        notifier.configure(DeliverySource::Receiver, &TargetSettings::of_receiver(config));
        notifier.reopen(DeliverySource::Receiver);
        Self(notifier)
    }

    /// Replaces the targets by those of `config`. A target that is new, or that has not received the last report of a
    /// router, receives it: `settled` has the last report of each. A target for every report receives those that are
    /// missing before it first.
    pub(crate) fn configure(
        &self,
        config: &ReceiverConfig,
        settled: impl FnOnce() -> Vec<SettledReport>,
    ) {
        self.0.configure(DeliverySource::Receiver, &TargetSettings::of_receiver(config));
        // ORDER: a report that is settled after the targets were replaced reaches all of them.
        for report in settled() {
            self.resume(&report);
        }
    }

    /// Delivers the last report of a router again, to the targets that have not received it.
    fn resume(&self, settled: &SettledReport) {
        let notification: Arc<dyn Notification> =
            Arc::new(ReportNotification::from_journal(settled.clone()));
        self.0.resume_report(&notification);
    }
}

/// The names of all targets in a configuration.
pub fn target_names(config: &ReceiverConfig) -> Vec<String> {
    let targets = TargetSettings::of_receiver(config);
    targets.iter().map(|target| format!("{} {}", target.kind().word(), target.name())).collect()
}

impl ReportSink for ReportOutlet {
    fn deliver(&mut self, settled: &SettledReport) {
        let SettledReport { instance, state, seq, .. } = settled;
        let (reported, state) = (state.as_str(), state.neutron_server_name());
        tracing::info!(%instance, reported, state, seq, "reported state settled");
        let (settled, read_at) = (settled.clone(), clock::now());
        let notification: Arc<dyn Notification> =
            Arc::new(ReportNotification { settled, read_at, is_repeated: false });
        self.0.deliver_to_all(DeliverySource::Receiver, &notification);
    }

    fn restore(&mut self, settled: &SettledReport) {
        self.resume(settled);
    }

    fn concluded_seqs(&self) -> BTreeMap<InstanceId, i64> {
        self.0.concluded_seqs(DeliverySource::Receiver)
    }

    fn set_journal(&mut self, journal: JournalReader) {
        self.0.set_journal(journal);
    }

    fn needs_every_report(&self) -> bool {
        self.0.needs_every_report()
    }

    fn received_seqs(&self) -> BTreeMap<InstanceId, i64> {
        self.0.received_reports()
    }

    fn count_missed(&mut self, seqs: ReportSeqs, on_stored: Arc<dyn Fn() + Send + Sync>) {
        self.0.count_missed_reports(seqs, on_stored);
    }

    fn forget(&mut self, instance: &InstanceId) {
        self.0.forget(DeliverySource::Receiver, None, instance);
    }

    fn close(&mut self) {
        let pending = self.0.close(DeliverySource::Receiver, Duration::ZERO);
        if pending > 0 {
            let seconds = SHUTDOWN_TIMEOUT.as_secs();
            tracing::info!(pending, seconds, "shutting down: waiting for pending deliveries");
        }
        let left = self.0.close(DeliverySource::Receiver, SHUTDOWN_TIMEOUT);
        if left > 0 {
            tracing::warn!(
                left,
                "shut down with pending deliveries: the next process delivers them"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reported_state_and_its_event_have_the_same_word() {
        use vipwatch_core::ReportedState::{Backup, Fault, Primary, Unknown};
        for state in [Primary, Backup, Fault, Unknown] {
            assert_eq!(EventKind::from(state).as_str(), state.as_str());
        }
    }
}
