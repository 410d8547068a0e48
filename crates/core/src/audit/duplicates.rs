// SPDX-License-Identifier: Apache-2.0
//! The finding that another station claims an address of a primary: `duplicate-holder`.
//!
//! It rests on ARP and neighbour discovery, `two-primaries` on VRRP adverts. One split can cause both, and each can be
//! alone: a station without VRRP sends no adverts, and a second primary can be connected to this node but not to the
//! network of the address.

use super::Finding;
use crate::announce::DuplicateHolder;
use crate::{FindingKind, Role};

/// Maximum number of holders that the text names.
const MAX_NAMED: usize = 4;

/// The finding for these other holders of addresses; `None` if there are none, or if this node does not hold the
/// addresses itself.
pub(super) fn finding(role: &Role, holders: &[DuplicateHolder]) -> Option<Finding> {
    let is_holding = matches!(role, Role::Primary | Role::Partial { .. });
    if holders.is_empty() || !is_holding {
        return None;
    }
    Some(Finding::new(FindingKind::DuplicateHolder, text(holders)))
}

fn text(holders: &[DuplicateHolder]) -> String {
    let named = holders.iter().take(MAX_NAMED).map(|holder| {
        let DuplicateHolder { ip, link, mac } = holder;
        format!("{ip} is also at {mac}, seen on {link}")
    });
    let mut texts: Vec<String> = named.collect();
    if holders.len() > MAX_NAMED {
        texts.push(format!("and {} more", holders.len() - MAX_NAMED));
    }
    texts.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::Mac;

    fn holder(n: u8) -> DuplicateHolder {
        let (ip, link) = ([192, 0, 2, n].into(), "eth0".parse().unwrap());
        DuplicateHolder { ip, link, mac: Mac([2, 0, 0, 0, 0, n]) }
    }

    #[test]
    fn the_text_names_address_mac_and_link_of_the_first_holders() {
        let found = finding(&Role::Primary, &[holder(9)]).unwrap();
        assert_eq!(found.text, "192.0.2.9 is also at 02:00:00:00:00:09, seen on eth0");
        let many: Vec<DuplicateHolder> = (1..=6).map(holder).collect();
        let text = finding(&Role::Primary, &many).unwrap().text;
        assert!(text.contains("192.0.2.4 is") && text.ends_with("; and 2 more"), "{text}");
    }

    #[test]
    fn an_instance_that_does_not_hold_the_address_has_no_duplicate_holder() {
        assert_eq!(finding(&Role::Backup, &[holder(9)]), None);
        assert_eq!(finding(&Role::Primary, &[]), None);
    }
}
