// SPDX-License-Identifier: Apache-2.0
//! Sets the IPv6 parameters in the namespace of a Neutron router: forwarding on in the primary, off otherwise.
//!
//! | | `all.forwarding` | gateway's `accept_ra` | gateway's `forwarding` |
//! |---|---|---|---|
//! | primary | 1 | 2; 0 if keepalived configures the default route | 1 |
//! | otherwise | unchanged | 0 | 0 |
//!
//! `all.forwarding` is never set back to 0, as in Neutron: the kernel would then send multicast listener reports, which a
//! backup must not send.

use std::io;
use std::path::{Path, PathBuf};

use crate::discovery::netns_of_router;
use vipwatch_core::keepalived::{Problems, Program, Source, configuration};
use vipwatch_core::notification::AttemptResult;
use vipwatch_core::{ErrorChain, EventKind, InstanceId, RoleKind};
use vipwatch_linux::file::read_text;
use vipwatch_linux::netns::{NetnsError, visit};
use vipwatch_linux::sysctl::{ipv6_links, set_ipv6};

use super::attempt::Attempt;
use super::notification::Notification;

/// The prefix of the name of a router's external link.
const GATEWAY_PREFIX: &str = "qg-";

/// Maximum size of `keepalived.conf` in bytes. The file of a router with thousands of addresses is long.
const MAX_CONF_BYTES: u64 = 16 << 20;

/// Why the parameters could not be set.
#[derive(Debug, thiserror::Error)]
enum Ipv6Error {
    #[error("the id of the router is not a valid namespace name")]
    Name,
    #[error(transparent)]
    Netns(#[from] NetnsError),
    #[error("cannot read {}", path.display())]
    Conf { path: PathBuf, source: io::Error },
    #[error("cannot set IPv6 parameters in the namespace")]
    Set(#[source] io::Error),
}

impl Ipv6Error {
    /// Whether another attempt may succeed. False if the router has no namespace on this node.
    fn may_pass(&self) -> bool {
        !matches!(self, Self::Name | Self::Netns(NetnsError::Missing(_)))
    }
}

/// Sets the parameters of one router.
pub(super) fn deliver(notification: &dyn Notification, state_path: &Path) -> Attempt {
    let Some(instance) = notification.instance() else { return Attempt::DELIVERED };
    let is_primary = notification.kind() == EventKind::Role(RoleKind::Primary);
    match apply(instance, is_primary, &state_path.join("ha_confs")) {
        Ok(()) => Attempt::DELIVERED,
        Err(error) => {
            let result =
                if error.may_pass() { AttemptResult::Failed } else { AttemptResult::Rejected };
            Attempt { result, error: Some(ErrorChain(&error).to_string()) }
        }
    }
}

fn apply(instance: &InstanceId, is_primary: bool, confs: &Path) -> Result<(), Ipv6Error> {
    let netns = netns_of_router(instance).ok_or(Ipv6Error::Name)?;
    let has_gateway = is_primary && has_gateway(&confs.join(instance.as_str()))?;
    let set = || {
        let links = ipv6_links()?;
        if is_primary && links.iter().any(|link| link == "all") {
            set_ipv6("all", "forwarding", 1)?;
        }
        let accept_ra = if is_primary && !has_gateway { 2 } else { 0 };
        for gateway in links.iter().filter(|link| link.starts_with(GATEWAY_PREFIX)) {
            set_ipv6(gateway, "accept_ra", accept_ra)?;
            set_ipv6(gateway, "forwarding", u8::from(is_primary))?;
        }
        Ok(())
    };
    match visit(Some(&netns), set) {
        // The namespace was deleted together with the router, which then needs no parameters.
        Err(NetnsError::Missing(_)) if !is_primary => Ok(()),
        visited => visited?.map_err(Ipv6Error::Set),
    }
}

/// Whether keepalived configures an IPv6 default route. If not, the router learns it from router advertisements.
fn has_gateway(directory: &Path) -> Result<bool, Ipv6Error> {
    let path = directory.join("keepalived.conf");
    let text = match read_text(&path, MAX_CONF_BYTES) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(source) => return Err(Ipv6Error::Conf { path, source }),
    };
    // The agent writes no includes and no conditional lines.
    let configuration =
        configuration(Source::alone(text), &mut (), Program::default(), &mut Problems::default());
    Ok(configuration.instances.iter().any(|instance| instance.has_ipv6_gateway))
}
