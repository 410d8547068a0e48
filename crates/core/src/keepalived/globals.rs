// SPDX-License-Identifier: Apache-2.0
//! The statements that keepalived's first process reads: `global_defs` and `net_namespace`.

use std::net::IpAddr;

use super::blocks::{BlockAction, Statement, Visitor};
use super::draft::{Family, boolean};
use super::keywords::V2_3_0;
use super::numbers::{Trailing, delay, ip, number};
use super::problem::{Message, Problem, Problems};
use super::version::Version;
use super::vrrp::StartupDelay;
use crate::{LinkName, NetnsName};

/// Settings for all instances.
#[derive(Debug, Default)]
pub(super) struct Globals {
    pub(super) netns: Option<NetnsName>,
    pub(super) is_strict: bool,
    /// `dynamic_interfaces`: keepalived waits for links that do not exist yet.
    pub(super) has_dynamic_interfaces: bool,
    /// `vrrp_version`; 2 if it is not given.
    pub(super) version: Option<u8>,
    /// `vrrp_down_timer_adverts`.
    pub(super) down_timer_adverts: Option<u8>,
    /// `vrrp_owner_ignore_adverts`.
    pub(super) owner_ignores_adverts: bool,
    /// `vrrp_startup_delay` and `vrrp_delay_after_boot`.
    pub(super) startup_delay: StartupDelay,
    /// `default_interface`: the link of addresses without one.
    default_interface: Option<LinkName>,
    /// `vrrp_mcast_group4` and `vrrp_mcast_group6`, if they are given.
    pub(super) multicast_groups: [Option<IpAddr>; 2],
    vmac_prefix: Option<String>,
    vmac_address_prefix: Option<String>,
    pub(super) problems: Problems,
    program_version: Version,
}

impl Globals {
    pub(super) fn new(program_version: Version) -> Self {
        Self { program_version, ..Self::default() }
    }

    /// The link of an address without `dev` in an instance without `interface`.
    pub(super) fn default_interface(&self) -> Option<LinkName> {
        self.default_interface.or_else(|| "eth0".parse().ok())
    }

    /// The start of the default name of an instance's VMAC link.
    pub(super) fn vmac_prefix(&self) -> &str {
        self.vmac_prefix.as_deref().unwrap_or("vrrp")
    }

    /// The start of the default name of a VMAC link for one address.
    pub(super) fn vmac_address_prefix(&self) -> &str {
        self.vmac_address_prefix.as_deref().unwrap_or(self.vmac_prefix())
    }

    fn set_multicast_group(&mut self, text: &str, family: Family) {
        let is_usable = |ip: &IpAddr| Family::of((*ip).into()) == family && ip.is_multicast();
        let group = &mut self.multicast_groups[family as usize];
        *group = ip(text).filter(is_usable).or(*group);
    }
}

impl Visitor for Globals {
    fn begin(&mut self, _statement: Statement<'_>) -> BlockAction {
        BlockAction::Visit
    }

    fn statement(&mut self, statement: Statement<'_>) {
        let text = statement.argument();
        match statement.words[0].as_str() {
            "net_namespace" if self.netns.is_none() => match text.parse() {
                Ok(netns) => self.netns = Some(netns),
                Err(error) => {
                    let message = Message::quoting(
                        "expected the name of a network namespace",
                        format!("invalid net_namespace {text:?}: {error}"),
                    );
                    self.problems.push(Problem::new(statement.position, message));
                }
            },
            "dynamic_interfaces" => self.has_dynamic_interfaces = true,
            // An older keepalived ignores the value.
            "vrrp_strict" if self.program_version < V2_3_0 => self.is_strict = true,
            "vrrp_strict" => self.is_strict = boolean(text).unwrap_or(self.is_strict),
            "vrrp_version" => {
                let version = number(text, 2, 3, Trailing::Ignored);
                self.version =
                    version.and_then(|version| u8::try_from(version).ok()).or(self.version);
            }
            "vrrp_down_timer_adverts" => {
                self.down_timer_adverts = down_timer_adverts(text).or(self.down_timer_adverts);
            }
            "vrrp_owner_ignore_adverts" => {
                self.owner_ignores_adverts = boolean(text).unwrap_or(self.owner_ignores_adverts);
            }
            "vrrp_startup_delay" => self.startup_delay.after_start = delay(text),
            "vrrp_delay_after_boot" => self.startup_delay.after_boot = delay(text),
            "default_interface" => {
                self.default_interface = text.parse().ok().or(self.default_interface);
            }
            "vrrp_mcast_group4" => self.set_multicast_group(text, Family::V4),
            "vrrp_mcast_group6" => self.set_multicast_group(text, Family::V6),
            "vmac_prefix" => drop(self.vmac_prefix.get_or_insert_with(|| text.to_owned())),
            "vmac_addr_prefix" => {
                self.vmac_address_prefix.get_or_insert_with(|| text.to_owned());
            }
            _ => {}
        }
    }

    fn entry(&mut self, _keyword: &str, _entry: Statement<'_>) {}

    /// Not skipped: an unknown block ends `global_defs` early, but the settings that are read here rarely follow
    /// one, and a newer keepalived may know the block.
    fn unknown_block(&mut self, _note: Problem) -> BlockAction {
        BlockAction::Visit
    }

    fn nesting(&mut self, _problem: Problem) {}

    fn refuse(&mut self, problem: Problem) {
        self.problems.push(problem);
    }
}

/// The number of `down_timer_adverts`; keepalived ignores one that is not 1 to 100.
pub(super) fn down_timer_adverts(text: &str) -> Option<u8> {
    let adverts = number(text, 1, 100, Trailing::Rejected)?;
    u8::try_from(adverts).ok()
}
