// SPDX-License-Identifier: Apache-2.0
//! Turns the events of the event loop into log lines.
//!
//! The sentences of Neutron's Python monitors are kept to the letter, at their level: Neutron's tests and operators'
//! scripts search for them. Events that Neutron does not log have sentences of this program.

mod announcement;

use vipwatch_core::{
    ChangeCause, ErrorChain, InstanceId, LinkName, NetnsName, NeutronState, StateChange,
};
use vipwatch_dropin::conntrack::ConntrackReport;
use vipwatch_dropin::{Event, EventLog};
use vipwatch_linux::monitor::{Loss, WatchError};
use vipwatch_outlets::agent::{AgentError, StateWords};
use vipwatch_outlets::state_file::StateFileError;

use crate::log::{Level, MonitorLog};
use crate::setup::Setup;

/// The event log of one router.
#[derive(Debug)]
pub(crate) struct RouterEventLog {
    /// The file and syslog.
    pub(crate) output: MonitorLog,
    router: InstanceId,
    netns: NetnsName,
    link: LinkName,
    /// The watched address, as it was given.
    cidr: String,
    words: StateWords,
    /// Whether the agent has acknowledged a state since the start.
    has_notified: bool,
}

impl RouterEventLog {
    pub(crate) fn new(output: MonitorLog, setup: &Setup) -> Self {
        Self {
            output,
            router: setup.instance.clone(),
            netns: setup.netns.clone(),
            link: setup.link,
            cidr: setup.cidr.clone(),
            words: setup.word.words(),
            has_notified: false,
        }
    }

    fn state_changed(&mut self, change: &StateChange) {
        let Self { output, router, cidr, link, netns, words, .. } = self;
        let word = words(change.to);
        if change.cause == ChangeCause::Assumed {
            let message = format_args!(
                "Timeout reading the initial status of router {router}, state is set to \"{word}\"."
            );
            output.line(Level::Warning, message);
        }
        if change.from.is_none() {
            output.line(Level::Debug, format_args!("Initial status of router {router} is {word}"));
        }
        let holds = if change.to == NeutronState::Primary { "holds" } else { "does not hold" };
        let cause = describe_cause(change.cause);
        output.line(
            Level::Info,
            format_args!("Router {router} is {word}: {link} in {netns} {holds} {cidr} ({cause})"),
        );
    }

    fn link_missing(&mut self) {
        let Self { output, netns, link, .. } = self;
        output.line(
            Level::Info,
            format_args!("Device {link} not present in the namespace {netns}, waiting for it"),
        );
    }

    fn snapshot_failed(&mut self, error: &WatchError) {
        let Self { output, router, .. } = self;
        let error = ErrorChain(error);
        output.line(
            Level::Error,
            format_args!("Failed to get status of router {router}: {error}; retrying"),
        );
    }

    fn events_lost(&mut self, loss: &Loss) {
        let Self { output, router, .. } = self;
        let reason = match loss {
            Loss::Overrun => "the kernel dropped events".to_owned(),
            Loss::Truncated => "an event was too large".to_owned(),
            Loss::Malformed(malformed) => malformed.to_string(),
        };
        output.line(
            Level::Info,
            format_args!("Lost events of router {router} ({reason}): reading a new snapshot"),
        );
    }

    fn audit_disagreed(&mut self, count: u32) {
        let Self { output, router, .. } = self;
        output.line(
            Level::Error,
            format_args!(
                "The audit of router {router} disagreed with the tracked state ({count} so far); this is a defect"
            ),
        );
    }

    fn state_written(&mut self, state: NeutronState) {
        let Self { output, router, words, .. } = self;
        let word = words(state);
        output.line(Level::Debug, format_args!("Wrote router {router} state {word}"));
    }

    fn state_write_failed(&mut self, error: &StateFileError) {
        let Self { output, router, .. } = self;
        let error = ErrorChain(error);
        output.line(
            Level::Error,
            format_args!("Failed to write router {router} state: {error}; retrying"),
        );
    }

    fn state_file_overwritten(&mut self) {
        let Self { output, router, .. } = self;
        output.line(
            Level::Warning,
            format_args!(
                "Another process wrote a different state for router {router}: restoring it"
            ),
        );
    }

    fn conntrack_reported(&mut self, state: NeutronState, report: &ConntrackReport) {
        let Self { output, router, words, .. } = self;
        let word = words(state);
        match report {
            ConntrackReport::Executing(command) => output
                .line(Level::Debug, format_args!("Executing \"{command}\" on router {router}")),
            ConntrackReport::Failed { command, reason } => output.line(
                Level::Warning,
                format_args!("\"{command}\" failed on router {router}: {reason}"),
            ),
            ConntrackReport::Ended => output.line(
                Level::Debug,
                format_args!("Synced connection tracking state on {word} for router {router}"),
            ),
        }
    }

    fn conntrack_helper_lost(&mut self, error: &std::io::Error) {
        let Self { output, router, .. } = self;
        output.line(
            Level::Error,
            format_args!(
                "Lost the conntrackd helper of router {router}: {error}; connections are not synchronised \
                 until the monitor is restarted"
            ),
        );
    }

    fn conntrack_timed_out(&mut self, state: NeutronState) {
        let Self { output, router, words, .. } = self;
        let word = words(state);
        output.line(
            Level::Warning,
            format_args!(
                "conntrackd takes too long on router {router}: notifying the agent of {word} now"
            ),
        );
    }

    fn agent_notified(&mut self, state: NeutronState) {
        let Self { output, router, words, has_notified, .. } = self;
        let word = words(state);
        // The first one is always logged: it shows an operator, and `vipwatch-neutron-switch`, that the agent answers
        // this monitor.
        let level = if *has_notified { Level::Debug } else { Level::Info };
        *has_notified = true;
        output.line(level, format_args!("Notified agent router {router}, state {word}"));
    }

    fn agent_notify_failed(&mut self, state: NeutronState, error: &AgentError) {
        let Self { output, router, words, .. } = self;
        let word = words(state);
        let level = level_of(error);
        let error = ErrorChain(error);
        output.line(
            level,
            format_args!("Failed to notify agent router {router}, state {word}: {error}; retrying"),
        );
    }

    fn namespace_removed(&mut self) {
        let Self { output, router, netns, .. } = self;
        output.line(
            Level::Warning,
            format_args!("The namespace {netns} of router {router} was removed: exiting"),
        );
    }
}

impl EventLog for RouterEventLog {
    fn record(&mut self, event: &Event<'_>) {
        match event {
            Event::StateChanged(change) => self.state_changed(change),
            Event::LinkMissing => self.link_missing(),
            Event::SnapshotFailed(error) => self.snapshot_failed(error),
            Event::EventsLost(loss) => self.events_lost(loss),
            Event::AuditDisagreed(count) => self.audit_disagreed(*count),
            Event::StateWritten(state) => self.state_written(*state),
            Event::StateWriteFailed(error) => self.state_write_failed(error),
            Event::StateFileOverwritten => self.state_file_overwritten(),
            Event::AnnouncementReported(note) => self.announcement_reported(note),
            Event::ConntrackReported(state, report) => self.conntrack_reported(*state, report),
            Event::ConntrackHelperLost(error) => self.conntrack_helper_lost(error),
            Event::ConntrackTimedOut(state) => self.conntrack_timed_out(*state),
            Event::AgentNotified(state) => self.agent_notified(*state),
            Event::AgentNotifyFailed(state, error) => self.agent_notify_failed(*state, error),
            Event::NamespaceRemoved => self.namespace_removed(),
        }
    }
}

fn describe_cause(cause: ChangeCause) -> &'static str {
    match cause {
        ChangeCause::FirstSnapshot => "first snapshot",
        ChangeCause::AddressAdded => "address added",
        ChangeCause::AddressRemoved => "address removed",
        ChangeCause::LinkChanged => "link created, renamed or deleted",
        ChangeCause::Resync => "snapshot after lost events",
        ChangeCause::Audit => "found by the audit",
        ChangeCause::Assumed => "assumed, no snapshot could be read yet",
        ChangeCause::NamespaceRemoved => "namespace removed",
    }
}

fn level_of(error: &AgentError) -> Level {
    match error {
        // Normal when many routers fail over at once; the retry follows within milliseconds.
        AgentError::Busy(_) => Level::Debug,
        AgentError::Rejected(_)
        | AgentError::ForeignOwner { .. }
        | AgentError::ForeignServer { .. }
        | AgentError::NotASocket(_) => Level::Error,
        AgentError::Missing(_)
        | AgentError::Refused(_)
        | AgentError::NotPermitted(_)
        | AgentError::Broken
        | AgentError::Reset
        | AgentError::Timeout
        | AgentError::Closed
        | AgentError::Unreadable(_)
        | AgentError::Garbage
        | AgentError::ServerError(_)
        | AgentError::Socket { .. } => Level::Warning,
    }
}
