//! Events in Neutron's words.
//!
//! The sentences of the Python generations are kept to the letter, at their level: upstream's
//! tests and operators' scripts look for them. What upstream has no words for is said in ours.

use vipwatch_core::{
    ChangeCause, ErrorChain, InstanceId, LinkName, NetnsName, NeutronState, StateChange,
};
use vipwatch_dropin::conntrack::ConntrackReport;
use vipwatch_dropin::{Event, EventLog};
use vipwatch_linux::monitor::Loss;
use vipwatch_outlets::agent::{AgentError, StateWords};
use vipwatch_outlets::announce::{AnnounceCounts, AnnounceNote};

use crate::log::{Level, MonitorLog};
use crate::setup::Setup;

/// The journal of one router.
#[derive(Debug)]
pub(crate) struct RouterEventLog {
    pub(crate) log: MonitorLog,
    router: InstanceId,
    netns: NetnsName,
    link: LinkName,
    cidr: String,
    words: StateWords,
}

impl RouterEventLog {
    pub(crate) fn new(log: MonitorLog, setup: &Setup) -> Self {
        Self {
            log,
            router: setup.instance.clone(),
            netns: setup.netns.clone(),
            link: setup.link,
            cidr: setup.cidr.clone(),
            words: setup.word.words(),
        }
    }

    fn role_changed(&mut self, change: &StateChange) {
        let Self { log, router, cidr, link, netns, words } = self;
        let word = words(change.to);
        if change.cause == ChangeCause::Assumed {
            let message = format_args!(
                "Timeout reading the initial status of router {router}, state is set to \"{word}\"."
            );
            log.line(Level::Warning, message);
        }
        if change.from.is_none() {
            log.line(Level::Debug, format_args!("Initial status of router {router} is {word}"));
        }
        let holds = if change.to == NeutronState::Primary { "holds" } else { "does not hold" };
        let cause = match change.cause {
            ChangeCause::FirstSnapshot => "first look",
            ChangeCause::AddressAdded => "address added",
            ChangeCause::AddressRemoved => "address removed",
            ChangeCause::LinkChanged => "link created, renamed or deleted",
            ChangeCause::Resync => "looked again after lost events",
            ChangeCause::Audit => "found by the audit",
            ChangeCause::Assumed => "assumed, nothing could be read yet",
            ChangeCause::NamespaceRemoved => "namespace removed",
        };
        log.line(
            Level::Info,
            format_args!("Router {router} is {word}: {link} in {netns} {holds} {cidr} ({cause})"),
        );
    }

    fn announcement(&mut self, note: &AnnounceNote) {
        let Self { log, router, .. } = self;
        match note {
            // Once per address, as upstream; the rounds are counted at the end.
            AnnounceNote::Sent { target, link, round, .. } if round.is_first => {
                log.line(Level::Debug, format_args!("Sent GARP to {} from {link}", target.ip));
            }
            AnnounceNote::Sent { .. } => {}
            AnnounceNote::Refused { target, link, reason } => {
                let ip = target.ip;
                let link = link.map_or_else(|| "no link".to_owned(), |link| link.to_string());
                let then =
                    if reason.is_temporary() { "; it will be when that has changed" } else { "" };
                log.line(
                    Level::Info,
                    format_args!(
                        "Address {ip} on {link} of router {router} is not announced: {reason}{then}"
                    ),
                );
            }
            AnnounceNote::Failed { target, link, error } => {
                let ip = target.ip;
                log.line(
                    Level::Warning,
                    format_args!(
                        "Failed to announce {ip} on {link} of router {router}: {error}; retrying"
                    ),
                );
            }
            AnnounceNote::Duplicate { target, link, mac } => {
                let ip = target.ip;
                log.line(
                    Level::Error,
                    format_args!(
                        "Duplicate holder: {ip} of router {router} is also at {mac}, seen on {link}"
                    ),
                );
            }
            AnnounceNote::QueryFailed(error) => log.line(
                Level::Warning,
                format_args!(
                    "Nothing is announced of router {router} for now: {}; retrying",
                    ErrorChain(error)
                ),
            ),
            AnnounceNote::ListenFailed(error) => log.line(
                Level::Warning,
                format_args!(
                    "Nobody can be asked for other holders of router {router}'s addresses: {error}"
                ),
            ),
            AnnounceNote::Ended(tally) => {
                let AnnounceCounts { announcements, frames, failed, duplicates, .. } = tally;
                let refused = refusals(tally);
                let unlisted = match tally.unlisted_answers {
                    0 => String::new(),
                    count => format!(" ({count} more answers not listed)"),
                };
                log.line(
                    Level::Info,
                    format_args!(
                        "Announced addresses of router {router}: {announcements} announcements in {frames} \
                         frames, {failed} failed, {duplicates} duplicate holders{unlisted}, refused: {refused}"
                    ),
                );
            }
        }
    }

    fn conntrack(&mut self, role: NeutronState, report: &ConntrackReport) {
        let Self { log, router, words, .. } = self;
        let word = words(role);
        match report {
            ConntrackReport::Executing(command) => {
                log.line(Level::Debug, format_args!("Executing \"{command}\" on router {router}"));
            }
            ConntrackReport::Failed { command, reason } => log.line(
                Level::Warning,
                format_args!("\"{command}\" failed on router {router}: {reason}"),
            ),
            ConntrackReport::Ended => log.line(
                Level::Debug,
                format_args!("Synced connection tracking state on {word} for router {router}"),
            ),
        }
    }
}

impl EventLog for RouterEventLog {
    fn note(&mut self, event: &Event<'_>) {
        let Self { log, router, netns, link, words, .. } = self;
        match event {
            Event::RoleChanged(change) => self.role_changed(change),
            Event::Conntrack(role, report) => self.conntrack(*role, report),
            Event::Announcement(note) => self.announcement(note),
            Event::LinkMissing => log.line(
                Level::Info,
                format_args!("Device {link} not present in the namespace {netns}, waiting for it"),
            ),
            Event::LookFailed(error) => log.line(
                Level::Error,
                format_args!(
                    "Failed to get status of router {router}: {}; retrying",
                    ErrorChain(*error)
                ),
            ),
            Event::EventsLost(loss) => {
                let what = match loss {
                    Loss::Overrun => "the kernel dropped events".to_owned(),
                    Loss::Truncated => "an event was too large".to_owned(),
                    Loss::Malformed(malformed) => malformed.to_string(),
                };
                log.line(
                    Level::Info,
                    format_args!("Lost events of router {router} ({what}): looking again"),
                );
            }
            Event::AuditDisagreed(count) => log.line(
                Level::Error,
                format_args!(
                    "The audit of router {router} disagreed with what was known ({count} so far); this is a defect"
                ),
            ),
            Event::StateWritten(role) => {
                let word = words(*role);
                log.line(Level::Debug, format_args!("Wrote router {router} state {word}"));
            }
            Event::StateNotWritten(error) => log.line(
                Level::Error,
                format_args!("Failed to write router {router} state: {}; retrying", ErrorChain(*error)),
            ),
            Event::StateRestored => log.line(
                Level::Warning,
                format_args!("Somebody else wrote another state for router {router}: restoring it"),
            ),
            Event::ConntrackLost(error) => log.line(
                Level::Error,
                format_args!(
                    "Lost the conntrackd helper of router {router}: {error}; connections are not synchronised \
                     until the monitor is restarted"
                ),
            ),
            Event::ConntrackLate(role) => {
                let word = words(*role);
                log.line(
                    Level::Warning,
                    format_args!(
                        "conntrackd takes too long on router {router}: telling the agent {word} now"
                    ),
                );
            }
            Event::AgentTold(role) => {
                let word = words(*role);
                log.line(
                    Level::Debug,
                    format_args!("Notified agent router {router}, state {word}"),
                );
            }
            Event::AgentNotTold(role, error) => {
                let word = words(*role);
                log.line(
                    level_of(error),
                    format_args!(
                        "Failed to notify agent router {router}, state {word}: {}; retrying",
                        ErrorChain(*error)
                    ),
                );
            }
            Event::NamespaceGone => log.line(
                Level::Warning,
                format_args!("The namespace {netns} of router {router} is gone: leaving"),
            ),
        }
    }
}

/// `none`, or how many for which reason.
fn refusals(tally: &AnnounceCounts) -> String {
    let each: Vec<String> =
        tally.refusals().map(|(reason, count)| format!("{count} because {reason}")).collect();
    if each.is_empty() { "none".to_owned() } else { each.join(", ") }
}

fn level_of(error: &AgentError) -> Level {
    match error {
        // Normal when many routers fail over at once; the retry comes in milliseconds.
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
