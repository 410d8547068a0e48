// SPDX-License-Identifier: Apache-2.0
//! The VMAC and ipvlan links that keepalived creates, and the link of each address.

use super::draft::{Draft, DraftAddress, Family};
use super::globals::Globals;
use crate::LinkName;

/// LIMIT: more default names than instances can have with one virtual router id.
const MAX_NAMES: u32 = 10_000;

/// A macvlan link that keepalived creates.
#[derive(Debug)]
struct Macvlan {
    name: LinkName,
    /// The link below.
    base: LinkName,
    mac: [u8; 6],
}

/// The links that keepalived creates, in the order of the instances.
#[derive(Debug)]
pub(super) struct VmacLinks<'a> {
    globals: &'a Globals,
    created: Vec<Macvlan>,
    /// Names that a link without a configured name cannot have.
    used_names: Vec<LinkName>,
}

/// The facts that decide on which link an address of an instance is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Placement<'a> {
    pub(super) draft: &'a Draft,
    pub(super) family: Family,
    /// The link of an address without `dev`.
    pub(super) interface: Option<LinkName>,
    pub(super) vrid: Option<u8>,
    /// The VMAC link of the instance; `None` without `use_vmac`.
    vmac: Option<LinkName>,
}

impl<'a> VmacLinks<'a> {
    /// `interfaces` are the existing links: those of all instances and of their addresses.
    pub(super) fn new(
        globals: &'a Globals,
        drafts: &[Draft],
        interfaces: impl Iterator<Item = LinkName>,
    ) -> Self {
        let named = drafts.iter().filter_map(|draft| draft.vmac_name);
        Self { globals, created: Vec::new(), used_names: interfaces.chain(named).collect() }
    }

    /// Creates the VMAC link of an instance. `None` if its name depends on a random number.
    pub(super) fn place_instance<'d>(
        &mut self,
        draft: &'d Draft,
        family: Family,
        interface: Option<LinkName>,
        vrid: Option<u8>,
    ) -> Option<Placement<'d>> {
        let mut placement = Placement { draft, family, interface, vrid, vmac: None };
        if draft.uses_vmac {
            placement.vmac =
                Some(self.macvlan(&placement, family, interface?, draft.vmac_name, false)?);
        } else if draft.uses_ipvlan && draft.vmac_name.is_none() {
            // The addresses stay on the interface, but the ipvlan link uses a default name.
            self.unused_name(self.globals.vmac_prefix(), vrid?, family);
        }
        Some(placement)
    }

    /// The link on which keepalived puts `address`. `None` if its name depends on a random number, or if there is none.
    pub(super) fn link_of(
        &mut self,
        placement: &Placement<'_>,
        address: &DraftAddress,
    ) -> Option<LinkName> {
        let Placement { draft, family, interface, vmac, .. } = *placement;
        let is_same_family = address.family() == family;
        let is_on_other_link = address.dev.is_some_and(|dev| Some(dev) != interface);
        let mut uses_vmac = address.uses_vmac;
        let mut link = address.dev.filter(|_| is_on_other_link);
        if uses_vmac && !is_on_other_link && vmac.is_some() && is_same_family {
            uses_vmac = false;
            link = vmac;
        } else if draft.uses_vmac_addr && (is_on_other_link || !is_same_family) {
            uses_vmac = false;
        }
        let (link, needs_vmac) = match (link, vmac) {
            (Some(link), _) => (link, uses_vmac || draft.uses_vmac_addr),
            (None, Some(vmac)) if is_same_family => (vmac, false),
            (None, _) => (interface?, uses_vmac || draft.uses_vmac_addr && !is_same_family),
        };
        if !needs_vmac {
            return Some(link);
        }
        self.macvlan(placement, address.family(), link, None, true)
    }

    /// The link below `link`, if keepalived creates `link`.
    pub(super) fn base_of(&self, link: LinkName) -> Option<LinkName> {
        self.created.iter().find(|created| created.name == link).map(|created| created.base)
    }

    /// The macvlan over `base` with the MAC address of the instance; it is created if it does not exist.
    fn macvlan(
        &mut self,
        placement: &Placement<'_>,
        family: Family,
        base: LinkName,
        name: Option<LinkName>,
        is_for_address: bool,
    ) -> Option<LinkName> {
        let (draft, vrid) = (placement.draft, placement.vrid?);
        let is_strict = draft.is_strict.unwrap_or(self.globals.is_strict);
        let mut mac = [0, 0, 0x5e, 0, if family == Family::V4 { 1 } else { 2 }, vrid];
        // With five configured bytes, the last byte stays the virtual router id.
        let configured = draft.vmac_mac.iter().flatten().filter(|_| !is_strict);
        mac.iter_mut().zip(configured).for_each(|(byte, configured)| *byte = *configured);
        let is_same = |other: &&Macvlan| other.base == base && other.mac == mac;
        if let Some(existing) = self.created.iter().find(is_same) {
            return Some(existing.name);
        }
        let prefix = if is_for_address {
            self.globals.vmac_address_prefix()
        } else {
            self.globals.vmac_prefix()
        };
        let name = match name {
            Some(name) => name,
            None => self.unused_name(prefix, vrid, family)?,
        };
        // The kernel puts a macvlan that is created over another macvlan on the link below that one.
        let over = self.created.iter().find(|other| other.name == base);
        let base = over.map_or(base, |other| other.base);
        self.created.push(Macvlan { name, base, mac });
        Some(name)
    }

    /// The first unused name of `vrrp.51`, `vrrp1.51`, `vrrp2.51` and so on; for IPv6, `vrrp6.51` is the second
    /// candidate.
    fn unused_name(&mut self, prefix: &str, vrid: u8, family: Family) -> Option<LinkName> {
        let numbers = (1..MAX_NAMES).filter(|number| family == Family::V4 || *number != 6);
        let v6_number = (family == Family::V6).then(|| "6".to_owned());
        let numbers = v6_number.into_iter().chain(numbers.map(|number| number.to_string()));
        for number in std::iter::once(String::new()).chain(numbers) {
            let end = format!("{number}.{vrid}");
            // A prefix that is too long is truncated.
            let kept = prefix.floor_char_boundary(LinkName::LIMIT.saturating_sub(end.len()));
            let name: LinkName =
                format!("{}{end}", &prefix[..kept.min(prefix.len())]).parse().ok()?;
            if !self.used_names.contains(&name) {
                self.used_names.push(name);
                return Some(name);
            }
        }
        None
    }
}
