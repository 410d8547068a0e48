//! Links that keepalived makes, and the link that each address is put on.

use super::draft::{Draft, DraftAddress, Family};
use super::globals::Globals;
use crate::LinkName;

/// More names than instances can share a virtual router id.
const MAX_NAMES: u32 = 10_000;

/// A link with a MAC address of its own.
#[derive(Debug)]
struct Macvlan {
    name: LinkName,
    base: LinkName,
    mac: [u8; 6],
}

/// The links that keepalived makes for all instances, in their order.
#[derive(Debug)]
pub(super) struct Links<'a> {
    globals: &'a Globals,
    made: Vec<Macvlan>,
    /// Names that are not free for a link without a configured name.
    taken: Vec<LinkName>,
}

/// The link of an instance's own, and what else decides where its addresses are.
#[derive(Debug, Clone, Copy)]
pub(super) struct Placement<'a> {
    pub(super) draft: &'a Draft,
    pub(super) family: Family,
    pub(super) interface: LinkName,
    pub(super) vrid: Option<u8>,
    /// `None` without `use_vmac`.
    own: Option<LinkName>,
}

impl<'a> Links<'a> {
    /// `interfaces` exist: those of all instances, and those of their addresses.
    pub(super) fn new(
        globals: &'a Globals,
        drafts: &[Draft],
        interfaces: impl Iterator<Item = LinkName>,
    ) -> Self {
        let named = drafts.iter().filter_map(|draft| draft.vmac_name);
        Self { globals, made: Vec::new(), taken: interfaces.chain(named).collect() }
    }

    /// Makes the link of an instance's own. `None` if its name depends on a random number.
    pub(super) fn place<'d>(
        &mut self,
        draft: &'d Draft,
        family: Family,
        interface: LinkName,
        vrid: Option<u8>,
    ) -> Option<Placement<'d>> {
        let mut placement = Placement { draft, family, interface, vrid, own: None };
        if draft.uses_vmac {
            placement.own =
                Some(self.macvlan(&placement, family, interface, draft.vmac_name, false)?);
        } else if draft.uses_ipvlan && draft.vmac_name.is_none() {
            // Its addresses stay on the interface, but its name is taken.
            self.unused_name(self.globals.vmac_prefix(), vrid?, family);
        }
        Some(placement)
    }

    /// The link that `address` is put on. `None` if its name depends on a random number.
    pub(super) fn link_of(
        &mut self,
        placement: &Placement<'_>,
        address: &DraftAddress,
    ) -> Option<LinkName> {
        let Placement { draft, family, interface, own, .. } = *placement;
        let is_family = address.family() == family;
        let is_elsewhere = address.dev.is_some_and(|dev| dev != interface);
        let mut uses_vmac = address.uses_vmac;
        let mut link = address.dev.filter(|_| is_elsewhere);
        if uses_vmac && !is_elsewhere && own.is_some() && is_family {
            (uses_vmac, link) = (false, own);
        } else if draft.uses_vmac_addr && (is_elsewhere || !is_family) {
            uses_vmac = false;
        }
        let (link, needs_vmac) = match (link, own) {
            (Some(link), _) => (link, uses_vmac || draft.uses_vmac_addr),
            (None, Some(own)) if is_family => (own, false),
            (None, _) => (interface, uses_vmac || draft.uses_vmac_addr && !is_family),
        };
        if !needs_vmac {
            return Some(link);
        }
        self.macvlan(placement, address.family(), link, None, true)
    }

    /// The link over `base` with the MAC address of an instance: one that is there, or a new one.
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
        // Of five bytes, the last stays the virtual router id.
        let given = draft.vmac_mac.iter().flatten().filter(|_| !is_strict);
        mac.iter_mut().zip(given).for_each(|(byte, given)| *byte = *given);
        let is_same = |made: &&Macvlan| made.base == base && made.mac == mac;
        if let Some(made) = self.made.iter().find(is_same) {
            return Some(made.name);
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
        // The kernel puts a macvlan over another on the link below that one.
        let below = self.made.iter().find(|made| made.name == base).map_or(base, |made| made.base);
        self.made.push(Macvlan { name, base: below, mac });
        Some(name)
    }

    /// `vrrp.51`; if that is taken `vrrp1.51` and so on, for IPv6 `vrrp6.51` first.
    fn unused_name(&mut self, prefix: &str, vrid: u8, family: Family) -> Option<LinkName> {
        let numbers = (1..MAX_NAMES).filter(|number| family == Family::V4 || *number != 6);
        let sixth = (family == Family::V6).then(|| "6".to_owned());
        let numbers = sixth.into_iter().chain(numbers.map(|number| number.to_string()));
        for number in std::iter::once(String::new()).chain(numbers) {
            let end = format!("{number}.{vrid}");
            // A prefix that is too long loses its end.
            let kept = prefix.floor_char_boundary(LinkName::LIMIT.saturating_sub(end.len()));
            let name: LinkName =
                format!("{}{end}", &prefix[..kept.min(prefix.len())]).parse().ok()?;
            if !self.taken.contains(&name) {
                self.taken.push(name);
                return Some(name);
            }
        }
        None
    }
}
