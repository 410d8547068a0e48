// SPDX-License-Identifier: Apache-2.0
//! The way of a complete report: journal, reply, debounce, sink.

use std::collections::BTreeMap;
use std::sync::Arc;

use vipwatch_core::InstanceId;
use vipwatch_core::debounce::ReportedState;

use super::{Server, now};
use crate::control::ControlMessage;
use crate::journal::{Completion, ReportSeqs, StoreResult, StoredReports};
use crate::reply::Reply;
use crate::report_sink::SettledReport;
use crate::report_states::ReportOutcome;
use crate::request::Report;
use crate::{JOURNAL_FORMAT_PROBLEM, JOURNAL_PROBLEM};

/// Maximum number of instances that the receiver stores. A node has about a thousand.
const MAX_INSTANCES: usize = 100_000;

impl Server {
    /// Gives a report to the journal. The monitor gets its reply when the report is stored, or a 503 at once if the
    /// journal cannot take it.
    pub(super) fn store(&mut self, token: u64, report: Report) {
        let is_new = !self.states.contains(&report.instance);
        let refusal = if is_new && self.states.len() >= MAX_INSTANCES {
            Some("too many instances")
        } else if self.journal.store(token, report.instance.clone(), report.state) {
            None
        } else {
            Some("too many reports wait for the disk")
        };
        if let Some(reason) = refusal {
            self.change_view(|view| view.unavailable += 1);
            return self.reply(token, &Reply::Unavailable(reason.to_owned()), report.is_keep_alive);
        }
        self.storing.insert(token, report);
        let pending = self.storing.len();
        self.change_view(|view| view.pending = pending);
        self.stop_polling(token);
    }

    /// Processes the completions of the journal's writer since the last call.
    pub(super) fn process_completions(&mut self) {
        for completion in self.journal.take_completions() {
            match completion {
                Completion::Stored(result) => self.acknowledge(result),
                Completion::Opened(stored) => {
                    self.change_view(|view| view.set_problem(JOURNAL_PROBLEM, None));
                    self.restore(stored);
                }
                Completion::Replaced => self.fill_new_journal(),
                Completion::Excess(seqs) => self.count_missed(seqs),
                Completion::OtherFormat(text) => {
                    self.change_view(|view| view.set_problem(JOURNAL_FORMAT_PROBLEM, text));
                }
            }
        }
    }

    /// Replies to the monitor after its report was stored or could not be stored.
    fn acknowledge(&mut self, result: StoreResult) {
        let StoreResult { request_id: token, seq } = result;
        let Some(report) = self.storing.remove(&token) else { return };
        let pending = self.storing.len();
        self.change_view(|view| view.pending = pending);
        self.show_store_error(&report.instance, seq.as_ref().err());
        // A monitor that has closed its connection gets no reply; its report is applied all the same.
        if let Some(connection) = self.connections.get_mut(&token) {
            connection.is_storing = false;
        }
        match seq {
            Ok(seq) => {
                self.change_view(|view| view.accepted += 1);
                let outcome = self.states.apply(&report.instance, report.state, seq, now());
                self.act_on(&outcome, &report.instance, report.state, seq);
                self.reply(token, &Reply::Stored, report.is_keep_alive);
            }
            Err(error) => {
                self.change_view(|view| view.unavailable += 1);
                let reason = format!("cannot write the journal: {error}");
                self.reply(token, &Reply::Unavailable(reason), report.is_keep_alive);
            }
        }
    }

    /// Restores the states that the previous process has stored, and acts on its unsettled reports.
    pub(super) fn restore(&mut self, stored: StoredReports) {
        let concluded = self.sink.concluded_seqs();
        let mut outdated = 0;
        for (instance, stored) in stored {
            if concluded.get(&instance).is_some_and(|seq| *seq > stored.last_seq()) {
                // The targets have received a later state than the file has. Without the stored state, the next report
                // is delivered in any case.
                outdated += 1;
                self.journal.forget(instance);
                continue;
            }
            if let Some(settled) = self.states.restore(&instance, &stored, now()) {
                self.sink.restore(&settled);
            }
            self.show_state(&instance);
            for (seq, state) in stored.unsettled {
                let outcome = self.states.replay(&instance, state, seq, now());
                self.act_on(&outcome, &instance, state, seq);
            }
        }
        if outdated > 0 {
            tracing::warn!(
                instances = outdated,
                "journal is older than the stored deliveries; its states are discarded"
            );
        }
    }

    /// Writes all states into a new journal, which replaces a damaged one.
    fn fill_new_journal(&mut self) {
        for record in self.states.records() {
            if let Some(state) = record.settled {
                let instance = record.instance.clone();
                self.journal.restore_settled(instance, record.seq, state, record.acted_seq);
            }
            if let Some((seq, state)) = record.held {
                self.journal.restore_report(record.instance, seq, state);
            }
        }
    }

    /// Delivers, settles or holds back the report `seq`, as the debounce has decided.
    fn act_on(
        &mut self,
        outcome: &ReportOutcome,
        instance: &InstanceId,
        state: ReportedState,
        seq: i64,
    ) {
        // ORDER: the view is updated before the delivery. A target that is configured meanwhile gets the states of
        // the view, and would miss one that is delivered and not yet in the view.
        self.show_state(instance);
        match outcome {
            ReportOutcome::Deliver(settled) => return self.deliver(settled),
            // Without this row, the next process would apply the report again.
            ReportOutcome::Settle => self.journal.settle(instance.clone(), seq, state, false),
            ReportOutcome::Hold => {}
        }
        self.change_view(|view| view.coalesced += 1);
    }

    /// Delivers the held-back reports after their interval.
    pub(super) fn settle_due(&mut self) {
        for settled in self.states.settle_due(now()) {
            self.show_state(&settled.instance);
            self.deliver(&settled);
        }
    }

    fn deliver(&mut self, settled: &SettledReport) {
        // ORDER: the journal knows of the report before a target can ask for those that come before a later one.
        if self.sink.needs_every_report() {
            self.journal.keep(settled.clone());
        }
        self.sink.deliver(settled);
        self.journal.settle(settled.instance.clone(), settled.seq, settled.state, true);
    }

    /// Has the journal delete old reports, and the settled ones that all targets have received.
    pub(super) fn clean_up(&mut self) {
        let received = self.sink.received_seqs();
        self.journal.clean_up(received, self.policy.keep_undelivered);
    }

    /// Has the sink count reports as missed that are beyond the limit. The journal deletes them afterwards.
    fn count_missed(&mut self, seqs: ReportSeqs) {
        let last = seqs.iter().filter_map(|(id, seqs)| Some((id.clone(), *seqs.last()?)));
        let last: BTreeMap<InstanceId, i64> = last.collect();
        let control = self.control.clone();
        let on_stored = move || control.push(ControlMessage::DeleteUndelivered(last.clone()));
        self.sink.count_missed(seqs, Arc::new(on_stored));
    }

    fn show_state(&self, instance: &InstanceId) {
        let Some(report) = self.states.router_report(instance) else { return };
        self.change_view(|view| {
            view.instances.insert(instance.clone(), report);
        });
    }

    /// Shows in the view that the journal could not be opened at the start.
    pub(super) fn show_journal_open_error(&self) {
        let error = self.journal.open_error().map(str::to_owned);
        self.change_view(|view| view.set_problem(JOURNAL_PROBLEM, error));
    }

    /// Shows in the view why the last report could not be stored, or that it was stored. Each new reason is
    /// logged once.
    fn show_store_error(&self, instance: &InstanceId, error: Option<&String>) {
        let Ok(mut view) = self.view.lock() else { return };
        let known = view.problems.get(JOURNAL_PROBLEM);
        match error {
            Some(error) if Some(error) != known => {
                tracing::error!(%instance, error, "cannot store a report in the journal");
            }
            None if known.is_some() => tracing::info!("journal stores reports again"),
            _ => {}
        }
        view.set_problem(JOURNAL_PROBLEM, error.cloned());
    }
}
