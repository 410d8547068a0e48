// SPDX-License-Identifier: Apache-2.0
//! Collects the statements of each `vrrp_instance`, before defaults and links are decided.
//!
//! [`super::vrrp`] turns a draft into an instance.

mod address;
mod links;

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use ipnet::IpNet;

pub(super) use self::address::DraftAddress;
use super::auth_hmac::AuthHmacDraft;
use super::blocks::{BlockAction, Statement, Visitor};
use super::definitions::RANDOM_MARK;
use super::globals::down_timer_adverts;
use super::numbers::{Trailing, ip, number, seconds};
use super::problem::{FilePosition, Impact, Message, Problem, Problems};
use super::routing::{self, VirtualRoute, VirtualRule};
use super::sync_group::SyncGroups;
use super::version::Version;
use crate::vrrp::VrrpAuthentication;
use crate::{LinkName, NameError};

/// LIMIT: more instances than any real configuration has. Each one costs memory in every part of the node.
const MAX_INSTANCES: usize = 10_000;

/// LIMIT: the same for the addresses, peers, routes and rules of all instances together: each change of an address
/// compares those of its instance.
const MAX_ENTRIES: usize = 20_000;

/// The default of `priority`, unless the state is `MASTER`.
pub(super) const DEFAULT_PRIORITY: u8 = 100;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    V4,
    V6,
}

impl Family {
    pub(super) fn of(net: IpNet) -> Self {
        if net.addr().is_ipv4() { Self::V4 } else { Self::V6 }
    }
}

/// The value of a statement.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum Setting<T> {
    /// The instance has no such statement.
    #[default]
    Missing,
    Value(T),
    /// The value is invalid.
    Invalid(Problem),
    /// The value depends on a random number of keepalived's, or on an environment that is not known.
    Random,
}

/// The statements of one `vrrp_instance`.
#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a statement that is present or not")]
pub(super) struct Draft {
    pub(super) position: FilePosition,
    pub(super) name: String,
    pub(super) family: Option<Family>,
    pub(super) version: Option<u8>,
    pub(super) interface: Setting<LinkName>,
    pub(super) vrid: Setting<u8>,
    pub(super) priority: Setting<u8>,
    pub(super) is_master: bool,
    pub(super) advert_interval: Option<Duration>,
    /// `strict_mode`; `None` if the global `vrrp_strict` applies.
    pub(super) is_strict: Option<bool>,
    pub(super) uses_vmac: bool,
    pub(super) uses_vmac_addr: bool,
    /// `vmac_xmit_base`: advertisements are sent over the interface below the VMAC.
    pub(super) sends_below_vmac: bool,
    pub(super) uses_ipvlan: bool,
    /// The configured name of the VMAC or ipvlan link.
    pub(super) vmac_name: Option<LinkName>,
    /// The configured MAC address: six bytes, or five, to which the virtual router id is added.
    pub(super) vmac_mac: Option<Vec<u8>>,
    /// `mcast_dst_ip`: the destination of multicast advertisements.
    pub(super) multicast_group: Option<std::net::IpAddr>,
    /// `unicast_peer`, of the instance's family.
    pub(super) unicast_peers: Vec<std::net::IpAddr>,
    /// `mcast_src_ip` or `unicast_src_ip`.
    pub(super) source: Option<std::net::IpAddr>,
    /// `down_timer_adverts`; `None` if the global one applies.
    pub(super) down_timer_adverts: Option<u8>,
    /// `owner_ignore_adverts`, with any valid value.
    pub(super) has_owner_ignore_adverts: bool,
    /// `no_virtual_ipaddress`: keepalived accepts that the instance has no address.
    pub(super) has_no_address: bool,
    /// `dont_track_primary`: a fault of the interface does not matter.
    pub(super) ignores_interface_faults: bool,
    /// `auth_type`; `None` if it is absent or unknown.
    pub(super) auth_type: Option<VrrpAuthentication>,
    /// Whether `auth_pass` is given. Without it, keepalived ignores `auth_type`.
    pub(super) has_auth_pass: bool,
    /// `auth_hmac`; `None` if the instance has no such block.
    pub(super) auth_hmac: Option<AuthHmacDraft>,
    pub(super) advertised: Vec<DraftAddress>,
    pub(super) excluded: Vec<DraftAddress>,
    /// Whether this keepalived does not know a block of the instance.
    has_unknown_block: bool,
    pub(super) has_ipv6_gateway: bool,
    pub(super) has_vrf: bool,
    pub(super) routes: Vec<VirtualRoute>,
    pub(super) rules: Vec<VirtualRule>,
}

/// The drafts of all instances of a configuration.
#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "they are independent facts about the file")]
pub(super) struct Drafts {
    pub(super) instances: Vec<Draft>,
    /// The line of each instance.
    lines_by_name: HashMap<String, u32>,
    /// The names that `use_vmac` and `use_ipvlan` give to links.
    vmac_names: HashSet<LinkName>,
    /// Number of lines in lists of instances so far; see [`MAX_ENTRIES`].
    entry_count: usize,
    pub(super) has_unknown_block: bool,
    /// Whether a limit is reported: one problem is enough.
    is_limit_reported: bool,
    pub(super) problems: Problems,
    pub(super) sync_groups: SyncGroups,
    /// `dynamic_interfaces`: keepalived waits for links that do not exist yet.
    pub(super) has_dynamic_interfaces: bool,
    /// Whether the current block is a `vrrp_instance`.
    is_in_instance: bool,
    version: Version,
}

impl Drafts {
    pub(super) fn new(has_dynamic_interfaces: bool, version: Version) -> Self {
        Self { has_dynamic_interfaces, version, ..Self::default() }
    }

    fn report_limit(&mut self, position: FilePosition, what: &str, limit: usize) {
        if !std::mem::replace(&mut self.is_limit_reported, true) {
            let text = format!("more than {limit} {what}: the rest is not read");
            self.problems.push(Problem::new(position, Message::plain(text)));
        }
    }
}

impl Visitor for Drafts {
    fn begin(&mut self, statement: Statement<'_>) -> BlockAction {
        let Statement { position, words } = statement;
        match words[0].as_str() {
            "authentication" => return BlockAction::Visit,
            "auth_hmac" => {
                if let Some(draft) = self.instances.last_mut() {
                    draft.auth_hmac.get_or_insert_default();
                }
                return BlockAction::Visit;
            }
            _ => {}
        }
        self.is_in_instance = words[0] == "vrrp_instance";
        self.sync_groups.begin(statement);
        if !self.is_in_instance {
            return BlockAction::Visit;
        }
        let [_, name] = words else {
            let message = match words.len() {
                1 => "vrrp_instance needs a name".into(),
                _ => Message::quoting(
                    "a vrrp_instance has one name",
                    format!("a vrrp_instance has one name, not {:?}", words[1..].join(" ")),
                ),
            };
            self.problems.push(Problem::new(position, message));
            return BlockAction::Skip;
        };
        if let Some(line) = self.lines_by_name.get(name) {
            let message = Message::quoting(
                format!("this vrrp_instance is already defined in line {line}"),
                format!("vrrp_instance {name} is already defined in line {line}"),
            );
            self.problems.push(Problem::ignored(position, message));
            return BlockAction::Skip;
        }
        if self.instances.len() >= MAX_INSTANCES {
            self.report_limit(position, "vrrp_instance blocks", MAX_INSTANCES);
            return BlockAction::Skip;
        }
        self.lines_by_name.insert(name.clone(), position.line);
        self.instances.push(Draft { position, name: name.clone(), ..Draft::default() });
        BlockAction::Visit
    }

    fn statement(&mut self, statement: Statement<'_>) {
        let Some(draft) = self.instances.last_mut().filter(|_| self.is_in_instance) else { return };
        let text = statement.argument();
        let mut report =
            |message: Message| self.problems.push(Problem::ignored(statement.position, message));
        match statement.words[0].as_str() {
            "interface" => draft.set_interface(text, statement.position),
            "virtual_router_id" => draft.set_vrid(text, statement.position),
            "priority" => draft.set_priority(text, &mut report),
            // BACKUP after MASTER is ignored; any other word counts as BACKUP.
            "state" => draft.is_master = text == "MASTER" || draft.is_master && text == "BACKUP",
            "advert_int" => draft.set_advert_interval(text, &mut report),
            "version" => draft.set_version(text),
            "auth_type" => {
                draft.auth_type = match text {
                    "AH" => Some(VrrpAuthentication::AuthenticationHeader),
                    "PASS" => Some(VrrpAuthentication::Password),
                    _ => None,
                }
            }
            "key" | "active_key" | "anti_replay" | "time_window" | "mode" => {
                draft.auth_hmac.get_or_insert_default().read(statement.words);
            }
            "auth_pass" => draft.has_auth_pass = !text.is_empty(),
            "native_ipv6" if draft.family != Some(Family::V4) => {
                (draft.family, draft.version) = (Some(Family::V6), Some(3));
            }
            "strict_mode" => draft.is_strict = boolean(text).or(draft.is_strict),
            "mcast_src_ip" | "unicast_src_ip" => {
                draft.source = ip(text).or(draft.source);
                draft.family = draft.family.or(ip(text).map(|ip| Family::of(ip.into())));
            }
            "down_timer_adverts" => {
                draft.down_timer_adverts = down_timer_adverts(text).or(draft.down_timer_adverts);
            }
            "owner_ignore_adverts" => draft.has_owner_ignore_adverts |= boolean(text).is_some(),
            "no_virtual_ipaddress" => draft.has_no_address = true,
            "mcast_dst_ip" => draft.set_multicast_group(text),
            "dont_track_primary" => draft.ignores_interface_faults = true,
            "vrf" => draft.has_vrf = true,
            "use_vmac" => self.set_vmac(statement),
            "use_vmac_addr" => draft.uses_vmac_addr = true,
            "vmac_xmit_base" => draft.sends_below_vmac = true,
            "use_ipvlan" => self.set_ipvlan(statement),
            _ => {}
        }
    }

    fn entry(&mut self, keyword: &str, entry: Statement<'_>) {
        if keyword == "group" {
            return self.sync_groups.entry(entry);
        }
        if !self.is_in_instance {
            return;
        }
        self.entry_count += 1;
        if self.entry_count > MAX_ENTRIES {
            let text = "addresses, peers, routes and rules of all instances";
            return self.report_limit(entry.position, text, MAX_ENTRIES);
        }
        let Some(draft) = self.instances.last_mut() else { return };
        if keyword == "virtual_ipaddress" && std::mem::take(&mut draft.has_unknown_block) {
            let text = format!(
                "loses these addresses in keepalived {}: it does not know a block before them",
                self.version
            );
            let (position, message) = (entry.position, Message::about(&draft.name, &text));
            self.problems.push(Problem { position, message, impact: Impact::AddressesLost });
        }
        match keyword {
            "virtual_ipaddress" => {
                match address::parse(entry, self.has_dynamic_interfaces, &mut self.problems) {
                    Some(address)
                        if *draft.family.get_or_insert(address.family()) == address.family() =>
                    {
                        draft.advertised.push(address);
                    }
                    Some(address) => {
                        let message = Message::quoting(
                            "keepalived ignores an address: earlier ones are of the other family",
                            format!(
                                "keepalived ignores {}: earlier addresses of {} are of the other family",
                                address.cidr, draft.name
                            ),
                        );
                        self.problems.push(Problem::note(entry.position, message));
                    }
                    None => {}
                }
            }
            "virtual_ipaddress_excluded" => {
                draft.excluded.extend(address::parse(
                    entry,
                    self.has_dynamic_interfaces,
                    &mut self.problems,
                ));
            }
            "unicast_peer" => {
                if let Some(peer) = ip(&entry.words[0]) {
                    let family = Family::of(peer.into());
                    if *draft.family.get_or_insert(family) == family {
                        draft.unicast_peers.push(peer);
                    }
                }
            }
            "virtual_routes" => {
                draft.has_ipv6_gateway |= is_ipv6_gateway(entry.words);
                draft.routes.extend(routing::route(entry.words));
            }
            "virtual_rules" => draft.rules.extend(routing::rule(entry.words)),
            _ => {}
        }
    }

    fn nesting(&mut self, problem: Problem) {
        self.problems.push(problem);
    }

    /// A newer keepalived may know the block, and whatever it means, it has no effect on the addresses behind it.
    fn unknown_block(&mut self, note: Problem) -> BlockAction {
        self.problems.push(note);
        self.has_unknown_block = true;
        // All words of the releases before the newest one are known.
        let draft = self.instances.last_mut().filter(|_| self.version < Version::NEWEST);
        if let Some(draft) = draft {
            draft.has_unknown_block = true;
        }
        BlockAction::Skip
    }

    fn refuse(&mut self, problem: Problem) {
        self.problems.push(problem);
    }
}

impl Draft {
    /// Whether both instances send their advertisements over the same link, given that both have the same
    /// interface.
    pub(super) fn shares_link(&self, other: &Self) -> bool {
        let has_own_link =
            |draft: &Self| (draft.uses_vmac && !draft.sends_below_vmac) || draft.uses_ipvlan;
        match (has_own_link(self), has_own_link(other)) {
            (false, false) => true,
            (true, true) => {
                !self.uses_ipvlan && !other.uses_ipvlan && self.vmac_mac == other.vmac_mac
            }
            _ => false,
        }
    }

    fn set_interface(&mut self, text: &str, position: FilePosition) {
        let name = &self.name;
        if text.contains(RANDOM_MARK) {
            return self.interface = Setting::Random;
        }
        let (error, is_ignored) = match text.parse::<LinkName>() {
            Ok(_) if text == "lo" => ("loopback interface".to_owned(), false),
            Ok(link) => return self.interface = Setting::Value(link),
            // keepalived ignores a name that is too long. It searches for a link of any other name.
            Err(error @ NameError::TooLong { .. }) => (error.to_string(), true),
            Err(error) => (error.to_string(), false),
        };
        if !is_ignored || !matches!(self.interface, Setting::Value(_)) {
            let message = Message::quoting(
                "expected the name of a network interface",
                format!("{name} has no valid interface: {text:?} ({error})"),
            );
            self.interface = Setting::Invalid(Problem::refused(position, message));
        }
    }

    fn set_vrid(&mut self, text: &str, position: FilePosition) {
        if text.contains(RANDOM_MARK) {
            return self.vrid = Setting::Random;
        }
        if let Some(vrid) = byte(text) {
            self.vrid = Setting::Value(vrid);
        } else if !matches!(self.vrid, Setting::Value(_)) {
            let message = Message::quoting(
                "virtual_router_id must be 1 to 255",
                format!("virtual_router_id of {} must be 1 to 255, not {text:?}", self.name),
            );
            self.vrid = Setting::Invalid(Problem::refused(position, message));
        }
    }

    fn set_priority(&mut self, text: &str, report: &mut dyn FnMut(Message)) {
        let name = &self.name;
        if text.contains(RANDOM_MARK) {
            return self.priority = Setting::Random;
        }
        self.priority = Setting::Value(byte(text).unwrap_or_else(|| {
            report(Message::quoting(
                format!("priority must be 1 to 255: keepalived uses {DEFAULT_PRIORITY}"),
                format!(
                    "priority of {name} must be 1 to 255, not {text:?}: keepalived uses {DEFAULT_PRIORITY}"
                ),
            ));
            DEFAULT_PRIORITY
        }));
    }

    fn set_advert_interval(&mut self, text: &str, report: &mut dyn FnMut(Message)) {
        match seconds(text) {
            Some(interval) => self.advert_interval = Some(interval),
            None => report(Message::quoting(
                "advert_int must be 0.01 to 255 seconds: keepalived ignores it",
                format!(
                    "advert_int of {} must be 0.01 to 255 seconds, not {text:?}: keepalived ignores it",
                    self.name
                ),
            )),
        }
    }

    fn set_version(&mut self, text: &str) {
        let version =
            number(text, 2, 3, Trailing::Ignored).and_then(|number| u8::try_from(number).ok());
        let Some(version) = version else { return };
        let is_contradiction = self.version.is_some_and(|known| known != version);
        let is_too_old = version == 2 && self.family == Some(Family::V6);
        if !is_contradiction && !is_too_old {
            self.version = Some(version);
        }
    }

    fn set_multicast_group(&mut self, text: &str) {
        let Some(group) = ip(text) else { return };
        let family = Family::of(group.into());
        if *self.family.get_or_insert(family) == family && group.is_multicast() {
            self.multicast_group = Some(group);
        }
    }
}

/// A number from 1 to 255.
fn byte(text: &str) -> Option<u8> {
    number(text, 1, 255, Trailing::Rejected).and_then(|number| u8::try_from(number).ok())
}

/// A boolean of keepalived's; no word at all means true.
pub(super) fn boolean(word: &str) -> Option<bool> {
    match word {
        "" | "true" | "on" | "yes" => Some(true),
        "false" | "off" | "no" => Some(false),
        _ => None,
    }
}

/// Whether a route is `::/0 via GATEWAY …`, or `default via GATEWAY …` with an IPv6 gateway.
fn is_ipv6_gateway(words: &[String]) -> bool {
    let via = words.iter().skip_while(|word| *word != "via").nth(1);
    let via = via.and_then(|text| text.parse::<std::net::IpAddr>().ok());
    let is_default = ["::/0", "default", "default6"].contains(&words[0].as_str());
    is_default && via.is_some_and(|via| via.is_ipv6())
}
