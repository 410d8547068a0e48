//! Sets what a router of Neutron's needs in its namespace to forward IPv6, and to let it be.
//!
//! | | `all.forwarding` | gateway's `accept_ra` | gateway's `forwarding` |
//! |---|---|---|---|
//! | primary | 1 | 2; 0 if its default route is configured | 1 |
//! | otherwise | as it is | 0 | 0 |
//!
//! `all.forwarding` is not taken back, as Neutron does not: that would send reports about groups that a
//! backup must not send.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::discovery::netns_of_router;
use vipwatch_core::debounce::ReportedState;
use vipwatch_core::keepalived::{Source, configuration};
use vipwatch_core::{Backoff, ErrorChain, InstanceId, Jitter};
use vipwatch_linux::file::read_text;
use vipwatch_linux::netns::{NetnsError, visit};
use vipwatch_linux::sysctl::{ipv6_links, set_ipv6};

use super::ReportNotification;
use super::delivery_log::DeliveryLog;
use crate::notify::keyed_queue::Next;
use crate::notify::outlet::Notification;
use crate::notify::webhook::{FIRST_PAUSE, LONGEST_PAUSE};

/// Neutron's link to the outside begins so.
const GATEWAY: &str = "qg-";

/// A router with thousands of addresses has a long file.
const LONGEST_CONF: u64 = 16 << 20;

/// One router to be set up.
#[derive(Debug)]
pub(super) struct Ipv6Job {
    settlement: Arc<ReportNotification>,
    backoff: Backoff,
    dice: Jitter,
}

impl Ipv6Job {
    pub(super) fn new(settlement: Arc<ReportNotification>) -> Self {
        let dice = Jitter::new(u64::try_from(settlement.seq()).unwrap_or(0));
        Self { settlement, backoff: Backoff::new(FIRST_PAUSE, LONGEST_PAUSE), dice }
    }
}

/// Why it could not be set.
#[derive(Debug, thiserror::Error)]
enum Ipv6Error {
    #[error("its id cannot be the name of a namespace")]
    Name,
    #[error(transparent)]
    Netns(#[from] NetnsError),
    #[error("cannot read {}", path.display())]
    Conf { path: PathBuf, source: io::Error },
    #[error("cannot set it in the namespace")]
    Set(#[source] io::Error),
}

impl Ipv6Error {
    /// Whether another attempt may succeed: not if there is no such router here.
    fn may_pass(&self) -> bool {
        !matches!(self, Self::Name | Self::Netns(NetnsError::Missing(_)))
    }
}

/// Sets up one router, and notes it.
pub(super) fn work(job: &mut Ipv6Job, confs: &Path, party: &Arc<str>, notes: &DeliveryLog) -> Next {
    let (instance, seq) = (job.settlement.instance(), job.settlement.seq());
    match apply(instance, job.settlement.settled.state, confs) {
        Ok(()) => {
            notes.told(party, instance, seq);
            Next::Done
        }
        Err(error) => {
            let is_final = !error.may_pass();
            notes.failed(party, instance, seq, &ErrorChain(&error).to_string(), is_final);
            if is_final { Next::Done } else { Next::Again(job.backoff.next_wait(&mut job.dice)) }
        }
    }
}

fn apply(instance: &InstanceId, claim: ReportedState, confs: &Path) -> Result<(), Ipv6Error> {
    let netns = netns_of_router(instance).ok_or(Ipv6Error::Name)?;
    let is_primary = claim == ReportedState::Primary;
    let has_gateway = is_primary && has_gateway(&confs.join(instance.as_str()))?;
    let set = || {
        let links = ipv6_links()?;
        if is_primary && links.iter().any(|link| link == "all") {
            set_ipv6("all", "forwarding", 1)?;
        }
        let accept_ra = if is_primary && !has_gateway { 2 } else { 0 };
        for gateway in links.iter().filter(|link| link.starts_with(GATEWAY)) {
            set_ipv6(gateway, "accept_ra", accept_ra)?;
            set_ipv6(gateway, "forwarding", u8::from(is_primary))?;
        }
        Ok(())
    };
    match visit(Some(&netns), set) {
        // It goes with its router, and a router that goes is no primary.
        Err(NetnsError::Missing(_)) if !is_primary => Ok(()),
        visited => visited?.map_err(Ipv6Error::Set),
    }
}

/// Whether the router's default route is configured, or must be advertised to it.
fn has_gateway(directory: &Path) -> Result<bool, Ipv6Error> {
    let path = directory.join("keepalived.conf");
    let text = match read_text(&path, LONGEST_CONF) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(source) => return Err(Ipv6Error::Conf { path, source }),
    };
    // The agent writes no includes and no conditional lines.
    let configuration = configuration(Source::alone(text), &mut (), "", &mut Vec::new());
    Ok(configuration.instances.iter().any(|instance| instance.has_ipv6_gateway))
}
