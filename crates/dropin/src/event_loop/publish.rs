// SPDX-License-Identifier: Apache-2.0
//! Passes a change of state to the outlets in order, and records their outcomes.

use std::io;

use vipwatch_core::{Moment, NeutronState, StateChange};
use vipwatch_linux::clock;
use vipwatch_outlets::agent::AgentOutcome;
use vipwatch_outlets::announce::AnnounceNote;
use vipwatch_outlets::state_file::WriteOutcome;

use super::EventLoop;
use crate::conntrack::ConntrackReport;
use crate::event::{Event, EventLog};

impl<L: EventLog> EventLoop<L> {
    /// Publishes a new state.
    ///
    /// ORDER: the file comes first, because it is the cheapest outlet and the agent may read it as soon as it
    /// is notified. Announcements come next, because traffic depends on them. Connection tracking precedes the
    /// agent: services that the agent starts may use the connections.
    pub(super) fn publish(&mut self, change: &StateChange) {
        let state = change.to;
        self.published = Some(state);
        self.write_state_file(state);
        self.announce(clock::now());
        if let Some(conntrack) = &mut self.conntrack {
            self.agent.delivery().withhold();
            if let Err(error) = conntrack.start(state, clock::now()) {
                self.drop_conntrack(&error);
            }
        }
        // While the helper synchronises connections, the agent waits for it.
        if self.conntrack.as_ref().is_none_or(|conntrack| conntrack.due().is_none()) {
            self.agent.delivery().want(state);
            let outcome = self.agent.tick(clock::now());
            self.log_agent(outcome);
        }
    }

    pub(super) fn write_state_file(&mut self, state: NeutronState) {
        let outcome = self.state_file.set((self.words)(state), clock::now());
        self.log_state_file(&outcome);
    }

    /// Passes a change of state to the announcer between the observations before and after it: the change to backup
    /// cancels the announcements of addresses that appeared before it, but not of those that appear after it.
    pub(super) fn update_announcer(&mut self, change: &StateChange) {
        if let Some(announcer) = &mut self.announcer {
            announcer.set_state(change.to, change.at);
        }
    }

    pub(super) fn announce(&mut self, now: Moment) {
        let notes = self.announcer.as_mut().map(|announcer| announcer.tick(now));
        self.log_announcements(notes);
    }

    /// Reads the reports of the conntrackd helper. When its commands have ended, the agent is notified.
    pub(super) fn read_conntrack(&mut self) {
        while let Some(conntrack) = &mut self.conntrack {
            match conntrack.read() {
                Ok(Some((state, report))) => {
                    self.log.record(&Event::ConntrackReported(state, &report));
                    if report == ConntrackReport::Ended {
                        self.agent.delivery().want(state);
                    }
                }
                Ok(None) => return,
                Err(error) => self.drop_conntrack(&error),
            }
        }
    }

    /// Stops using a helper that has ended, and notifies the agent without waiting for it.
    fn drop_conntrack(&mut self, error: &io::Error) {
        if let Some(mut conntrack) = self.conntrack.take() {
            // A monitor begins as a backup.
            let state = self.published.unwrap_or(NeutronState::Backup);
            conntrack.write_loss(state, clock::now());
        }
        self.log.record(&Event::ConntrackHelperLost(error));
        if let Some(state) = self.published {
            self.agent.delivery().want(state);
        }
    }

    pub(super) fn log_state_file(&mut self, outcome: &WriteOutcome) {
        match outcome {
            WriteOutcome::Written => {
                if let Some(state) = self.published {
                    self.log.record(&Event::StateWritten(state));
                }
            }
            WriteOutcome::Failed(error) => self.log.record(&Event::StateWriteFailed(error)),
            WriteOutcome::StillFailing => {}
        }
    }

    pub(super) fn log_announcements(&mut self, notes: Option<Vec<AnnounceNote>>) {
        for note in notes.into_iter().flatten() {
            self.log.record(&Event::AnnouncementReported(&note));
        }
    }

    pub(super) fn log_agent(&mut self, outcome: Option<AgentOutcome>) {
        match outcome {
            Some(AgentOutcome::Acknowledged(state)) => {
                self.log.record(&Event::AgentNotified(state));
            }
            Some(AgentOutcome::Failed(state, error)) => {
                self.log.record(&Event::AgentNotifyFailed(state, &error));
            }
            None => {}
        }
    }
}
