// SPDX-License-Identifier: Apache-2.0
//! Builds the VRRP instances with their virtual addresses.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;

use super::auth_hmac::AuthHmac;
use super::blocks::{check_braces, visit};
use super::definitions::RANDOM_MARK;
use super::draft::{DEFAULT_PRIORITY, Draft, DraftAddress, Drafts, Family, Setting};
use super::globals::Globals;
use super::keywords::{FIRST_PROCESS, V2_2_0, V2_2_8, V2_3_3, VRRP_PROCESS};
use super::lines::{ConfigurationText, Files, read};
use super::problem::{FilePosition, Message, Problem, Problems};
use super::routing::{RouteContext, VirtualRoute, VirtualRule};
use super::sync_group::SyncGroups;
use super::version::Version;
use super::vmac::{Placement, VmacLinks};
use crate::vrrp::{VrrpAuthentication, VrrpFamily, VrrpVersion};
use crate::{LinkName, NetnsName};

/// The default of `priority` for an instance in state `MASTER`.
const OWNER_PRIORITY: u8 = 255;

/// Maximum number of IPv4 addresses in an advertisement: the count field has one byte. keepalived moves the
/// others to the excluded addresses.
const MAX_ADVERTISED_V4: usize = 255;
/// Maximum number of IPv6 addresses in an advertisement, which must fit into a frame of 1500 bytes.
const MAX_ADVERTISED_V6: usize = 89;

/// `down_timer_adverts` if nothing sets it, and in strict mode.
const DOWN_TIMER_ADVERTS: u8 = 3;

/// The keepalived that reads a configuration.
#[derive(Debug, Clone, Copy, Default)]
pub struct Program<'a> {
    /// Decides conditional lines.
    pub config_id: &'a str,
    /// Decides which words are known.
    pub version: Version,
}

/// For how long keepalived holds all instances back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StartupDelay {
    /// `vrrp_startup_delay`: after its own start.
    pub after_start: Duration,
    /// `vrrp_delay_after_boot`: after the start of the machine.
    pub after_boot: Duration,
}

/// A virtual address of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VirtualAddress {
    /// The address and its prefix length; the longest if none is configured.
    pub cidr: IpNet,
    /// The link on which keepalived puts the address.
    pub link: LinkName,
    /// The link below `link`, if keepalived creates `link` itself; `None` if it must exist before.
    pub base: Option<LinkName>,
    /// Whether advertisements leave the address out.
    pub is_excluded: bool,
}

impl VirtualAddress {
    /// The link without which keepalived cannot hold the address.
    pub fn required_link(&self) -> LinkName {
        self.base.unwrap_or(self.link)
    }
}

/// The settings that decide the form of an instance's adverts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProtocolSettings {
    /// The version of VRRP.
    pub version: VrrpVersion,
    /// The type of authentication.
    pub authentication: VrrpAuthentication,
    /// Whether adverts are sent to `unicast_peer` and not to a multicast group.
    pub is_unicast: bool,
}

/// A `vrrp_instance`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VrrpInstance {
    /// The position of the `vrrp_instance` line.
    pub position: FilePosition,
    /// The name after `vrrp_instance`.
    pub name: String,
    /// The family of its adverts.
    pub family: VrrpFamily,
    /// `interface`: the link for advertisements; with a VMAC, the link below the VMAC. `None` if an instance with unicast
    /// peers leaves it out.
    pub interface: Option<LinkName>,
    /// Whether the instance is in fault while `interface` does not work.
    pub tracks_interface: bool,
    /// The multicast group of the adverts, if it is not that of the RFC.
    pub multicast_group: Option<IpAddr>,
    /// `virtual_router_id`; `None` if it is not known.
    pub vrid: Option<u8>,
    /// The priority at the start; `None` if it is not known.
    pub priority: Option<u8>,
    /// `advert_int` as keepalived rounds it for the version of VRRP; `None` if the instance does not set it.
    pub advert_interval: Option<Duration>,
    /// `down_timer_adverts`: after so many missing adverts the instance takes over.
    pub down_timer_adverts: u8,
    /// Whether keepalived ignores the adverts of others: `owner_ignore_adverts` or strict mode, with the priority 255.
    pub ignores_adverts: bool,
    /// For how long keepalived holds the instance back.
    pub startup_delay: StartupDelay,
    /// How adverts are sent; `None` if that is not known.
    pub protocol: Option<ProtocolSettings>,
    /// `auth_hmac`; `None` if keepalived does not use the extension.
    pub auth_hmac: Option<Box<AuthHmac>>,
    /// `unicast_peer`; empty if adverts are multicast.
    pub unicast_peers: Box<[IpAddr]>,
    /// `mcast_src_ip` or `unicast_src_ip`: the source of its adverts; `None` if keepalived takes it from the interface.
    pub source: Option<IpAddr>,
    /// The `vrrp_sync_group` of the instance; `None` if it is in none.
    pub sync_group: Option<Arc<str>>,
    /// The virtual addresses, in the order of the file; empty only with `no_virtual_ipaddress`.
    pub addresses: Vec<VirtualAddress>,
    /// Whether the virtual routes contain an IPv6 default route.
    pub has_ipv6_gateway: bool,
    /// The virtual routes with a known destination.
    pub routes: Box<[VirtualRoute]>,
    /// The virtual rules with a known field.
    pub rules: Box<[VirtualRule]>,
}

impl VrrpInstance {
    /// The name of the interface; `none`, as keepalived names it, without one.
    pub fn interface_name(&self) -> String {
        self.interface.map_or_else(|| "none".to_owned(), |interface| interface.to_string())
    }
}

/// What keepalived may lose when it reads a configuration, from nothing to everything.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Harm {
    /// Nothing.
    #[default]
    None,
    /// A part of an instance, at a block that it does not know.
    UnknownBlock,
    /// Parts that cannot be named: the file may not mean what its author intended.
    Unreliable,
    /// The addresses of an instance, at a block that it does not know.
    AddressesLost,
    /// Everything: it does not start.
    Refused,
}

/// A configuration, with its included files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Configuration {
    /// `net_namespace`; `None` if keepalived stays in the namespace in which it is started.
    pub netns: Option<NetnsName>,
    /// The instances that can be followed.
    pub instances: Vec<VrrpInstance>,
    /// What keepalived may lose when it reads this.
    pub harm: Harm,
    /// Whether a variable of the environment is in it (`${_ENV NAME}`). No problem quotes words then.
    pub uses_environment: bool,
}

impl Configuration {
    /// Whether keepalived does not start with this configuration.
    pub fn is_refused(&self) -> bool {
        self.harm == Harm::Refused
    }
}

/// Reads a text and the files that it includes, as `program` does. An instance that cannot be followed is left out and
/// becomes a problem.
pub fn configuration(
    text: impl Into<ConfigurationText>,
    files: &mut dyn Files,
    program: Program<'_>,
    problems: &mut Problems,
) -> Configuration {
    let version = program.version;
    let (lines, uses_environment) = read(text.into(), files, program, problems);
    check_braces(&lines, problems);
    let mut globals = Globals::new(version);
    visit(&lines, FIRST_PROCESS, version, &mut globals);
    let mut drafts = Drafts::new(globals.has_dynamic_interfaces, version);
    visit(&lines, VRRP_PROCESS, version, &mut drafts);
    problems.append(std::mem::take(&mut globals.problems));
    problems.append(std::mem::take(&mut drafts.problems));
    let mut builder = InstanceBuilder {
        globals: &globals,
        version,
        sync_groups: &drafts.sync_groups,
        links: VmacLinks::new(&globals, &drafts.instances, interfaces(&drafts.instances)),
        problems,
    };
    let has_unknown_block = drafts.has_unknown_block;
    let drafts = &drafts.instances;
    let instances = drafts.iter().filter_map(|draft| builder.instance(draft)).collect();
    builder.check_vrids(drafts);
    if uses_environment {
        problems.hide_words();
    }
    let unknown = if has_unknown_block { Harm::UnknownBlock } else { Harm::None };
    let harm = problems.iter().map(|problem| problem.impact.harm()).fold(unknown, Harm::max);
    Configuration { netns: globals.netns, instances, harm, uses_environment }
}

/// The links that must exist before keepalived starts.
fn interfaces(drafts: &[Draft]) -> impl Iterator<Item = LinkName> {
    drafts.iter().flat_map(|draft| {
        let addresses = draft.advertised.iter().chain(&draft.excluded);
        let interface = match &draft.interface {
            Setting::Value(link) => Some(*link),
            _ => None,
        };
        interface.into_iter().chain(addresses.filter_map(|address| address.dev))
    })
}

struct InstanceBuilder<'a> {
    globals: &'a Globals,
    version: Version,
    sync_groups: &'a SyncGroups,
    links: VmacLinks<'a>,
    problems: &'a mut Problems,
}

impl InstanceBuilder<'_> {
    fn instance(&mut self, draft: &Draft) -> Option<VrrpInstance> {
        let name = &draft.name;
        if name.contains(RANDOM_MARK) {
            let text = "the name of this vrrp_instance cannot be known: keepalived chooses it when it starts";
            return self.reject(Problem::new(draft.position, text));
        }
        let vrid = match &draft.vrid {
            Setting::Value(vrid) => Some(*vrid),
            Setting::Random => {
                self.note_unknown(draft, "virtual_router_id");
                None
            }
            Setting::Missing => {
                return self.refuse(draft, "has no virtual_router_id");
            }
            Setting::Invalid(problem) => return self.reject(problem.clone()),
        };
        let interface = match &draft.interface {
            Setting::Value(interface) => Some(*interface),
            Setting::Missing if self.may_omit_interface(draft) => None,
            Setting::Missing => return self.refuse(draft, "has no interface"),
            Setting::Invalid(problem) => return self.reject(problem.clone()),
            Setting::Random => {
                let text =
                    "has an interface that cannot be known: keepalived chooses it when it starts";
                return self.leave_out(draft, text);
            }
        };
        if draft.priority == Setting::Random {
            self.note_unknown(draft, "priority");
        }
        let family = draft.family.unwrap_or(Family::V4);
        if draft.advertised.is_empty() && self.needs_address(draft, family) {
            return self.refuse(draft, "has no virtual_ipaddress");
        }
        let base = interface.or_else(|| self.default_interface());
        let Some(placement) = self.links.place_instance(draft, family, base, vrid) else {
            return self.leave_out(draft, "has a VMAC with a name that cannot be known");
        };
        let addresses = self.addresses(&placement);
        let has_none = draft.advertised.is_empty() && draft.excluded.is_empty();
        if addresses.is_empty() && !(has_none && draft.has_no_address) {
            return self.leave_out(draft, "has no virtual address to watch");
        }
        let protocol = self.protocol(draft, family);
        Some(VrrpInstance {
            position: draft.position,
            name: name.clone(),
            family: if family == Family::V6 { VrrpFamily::V6 } else { VrrpFamily::V4 },
            interface,
            tracks_interface: !draft.ignores_interface_faults,
            multicast_group: draft
                .multicast_group
                .or(self.globals.multicast_groups[family as usize]),
            vrid,
            priority: priority(draft),
            advert_interval: draft.advert_interval.map(|it| protocol.version.wire_interval(it)),
            down_timer_adverts: self.down_timer_adverts(draft),
            ignores_adverts: self.ignores_adverts(draft),
            startup_delay: self.globals.startup_delay,
            protocol: Some(protocol),
            auth_hmac: self.auth_hmac(draft).map(Box::new),
            unicast_peers: draft.unicast_peers.as_slice().into(),
            source: draft.source,
            sync_group: self.sync_groups.group_of(name),
            addresses,
            has_ipv6_gateway: draft.has_ipv6_gateway,
            routes: routes(draft),
            rules: draft.rules.as_slice().into(),
        })
    }

    fn addresses(&mut self, placement: &Placement<'_>) -> Vec<VirtualAddress> {
        let Placement { draft, family, interface, .. } = *placement;
        let max_advertised = match family {
            Family::V4 => MAX_ADVERTISED_V4,
            // Its trailer takes the space of one address.
            Family::V6 if self.auth_hmac(draft).is_some_and(|hmac| hmac.signs()) => {
                MAX_ADVERTISED_V6 - 1
            }
            Family::V6 => MAX_ADVERTISED_V6,
        };
        let advertised = draft.advertised.len().min(max_advertised);
        let (advertised, surplus) = draft.advertised.split_at(advertised);
        let excluded = draft.excluded.iter().chain(surplus).map(|address| (address, true));
        let all = advertised.iter().map(|address| (address, false)).chain(excluded);
        let mut addresses = Vec::with_capacity(draft.advertised.len() + draft.excluded.len());
        for (address, is_excluded) in all {
            let DraftAddress { cidr, position, dev, .. } = *address;
            if interface.or(dev).is_none() {
                let message = Message::quoting(
                    "keepalived ignores an address: neither it nor its instance names a link",
                    format!(
                        "keepalived ignores {cidr}: neither it nor {} names a link",
                        draft.name
                    ),
                );
                self.problems.push(Problem::note(position, message));
            } else if let Some(link) = self.links.link_of(placement, address) {
                let base = self.links.base_of(link);
                addresses.push(VirtualAddress { cidr, link, base, is_excluded });
            } else {
                let message = Message::quoting(
                    "the name of an address's VMAC cannot be known",
                    format!("the name of the VMAC of {cidr} cannot be known"),
                );
                self.problems.push(Problem::note(position, message));
            }
        }
        // A node has thousands of these lists.
        addresses.shrink_to_fit();
        addresses
    }

    fn protocol(&self, draft: &Draft, family: Family) -> ProtocolSettings {
        let is_v6 = family == Family::V6;
        let version = match draft.version.or(if is_v6 { Some(3) } else { self.globals.version }) {
            Some(3) => VrrpVersion::V3,
            _ => VrrpVersion::V2,
        };
        // keepalived removes the authentication in version 3 and in strict mode.
        // `auth_hmac` replaces it.
        let can_authenticate = version == VrrpVersion::V2
            && !self.is_strict(draft)
            && draft.has_auth_pass
            && draft.auth_hmac.is_none();
        let authentication = draft.auth_type.filter(|_| can_authenticate);
        ProtocolSettings {
            version,
            authentication: authentication.unwrap_or(VrrpAuthentication::None),
            is_unicast: !draft.unicast_peers.is_empty(),
        }
    }

    fn down_timer_adverts(&self, draft: &Draft) -> u8 {
        let set = draft.down_timer_adverts.or(self.globals.down_timer_adverts);
        set.filter(|_| !self.is_strict(draft)).unwrap_or(DOWN_TIMER_ADVERTS)
    }

    /// keepalived reports `owner_ignore_adverts no` as an error and ignores adverts all the same.
    fn ignores_adverts(&self, draft: &Draft) -> bool {
        let is_owner = self.version >= V2_3_3 && priority(draft) == Some(OWNER_PRIORITY);
        let is_told = draft.has_owner_ignore_adverts || self.globals.owner_ignores_adverts;
        is_owner && (is_told || self.is_strict(draft))
    }

    /// Whether keepalived starts with an instance without `interface`: it has unicast peers and a source address that is
    /// valid without a link. Versions 2.2.0 to 2.2.7 insist on a link.
    fn may_omit_interface(&self, draft: &Draft) -> bool {
        let is_global = |source: std::net::IpAddr| match source {
            std::net::IpAddr::V4(_) => true,
            std::net::IpAddr::V6(source) => !source.is_unicast_link_local(),
        };
        let is_known = !(V2_2_0..V2_2_8).contains(&self.version);
        is_known && !draft.unicast_peers.is_empty() && draft.source.is_some_and(is_global)
    }

    /// The link of an address without `dev` in an instance without `interface`. From version 2.2 on, keepalived ignores
    /// such an address, although its manual names this link.
    fn default_interface(&self) -> Option<LinkName> {
        if self.version < V2_2_0 { self.globals.default_interface() } else { None }
    }

    /// Whether keepalived requires `virtual_ipaddress`: with VRRP version 3, IPv6 or strict mode.
    fn needs_address(&self, draft: &Draft, family: Family) -> bool {
        let is_v6 = family == Family::V6;
        let version = draft.version.or(if is_v6 { Some(3) } else { self.globals.version });
        self.is_strict(draft) || !draft.has_no_address && (is_v6 || version == Some(3))
    }

    fn is_strict(&self, draft: &Draft) -> bool {
        draft.is_strict.unwrap_or(self.globals.is_strict)
    }

    fn auth_hmac(&self, draft: &Draft) -> Option<AuthHmac> {
        draft.auth_hmac.as_ref()?.complete(draft.advert_interval, self.is_strict(draft))
    }

    /// Two instances of the same family with the same virtual router id cannot share a link.
    fn check_vrids(&mut self, drafts: &[Draft]) {
        for (index, draft) in drafts.iter().enumerate() {
            let (Setting::Value(vrid), Setting::Value(interface)) = (&draft.vrid, &draft.interface)
            else {
                continue;
            };
            let is_same = |other: &&Draft| {
                other.vrid == draft.vrid
                    && other.interface == draft.interface
                    && other.family.unwrap_or(Family::V4) == draft.family.unwrap_or(Family::V4)
                    && other.multicast_group == draft.multicast_group
                    // An IPv6 multicast group belongs to one link.
                    && (draft.family != Some(Family::V6) || draft.shares_link(other))
                    && other.unicast_peers.is_empty()
                    && draft.unicast_peers.is_empty()
            };
            if let Some(other) = drafts[..index].iter().find(is_same) {
                let (one, two) = (&other.name, &draft.name);
                let message = Message::quoting(
                    "another vrrp_instance has the same virtual_router_id on the same interface",
                    format!("{one} and {two} both have virtual_router_id {vrid} on {interface}"),
                );
                self.reject::<()>(Problem::refused(draft.position, message));
            }
        }
    }

    fn refuse<T>(&mut self, draft: &Draft, text: &str) -> Option<T> {
        self.reject(Problem::refused(draft.position, Message::about(&draft.name, text)))
    }

    fn leave_out<T>(&mut self, draft: &Draft, text: &str) -> Option<T> {
        self.reject(Problem::new(draft.position, Message::about(&draft.name, text)))
    }

    fn note_unknown(&mut self, draft: &Draft, setting: &str) {
        let message = Message::quoting(
            format!("{setting} cannot be known: keepalived chooses it when it starts"),
            format!(
                "{setting} of {} cannot be known: keepalived chooses it when it starts",
                draft.name
            ),
        );
        self.problems.push(Problem::note(draft.position, message));
    }

    /// Adds the problem; returns `None` for the instance.
    fn reject<T>(&mut self, problem: Problem) -> Option<T> {
        self.problems.push(problem);
        None
    }
}

fn routes(draft: &Draft) -> Box<[VirtualRoute]> {
    let has_own_link = draft.uses_vmac || draft.uses_ipvlan;
    let context = RouteContext { has_vrf: draft.has_vrf, has_own_link };
    draft.routes.iter().map(|route| route.in_context(context)).collect()
}

fn priority(draft: &Draft) -> Option<u8> {
    match draft.priority {
        Setting::Value(priority) => Some(priority),
        Setting::Random => None,
        _ if draft.is_master => Some(OWNER_PRIORITY),
        _ => Some(DEFAULT_PRIORITY),
    }
}

#[cfg(test)]
mod tests;
