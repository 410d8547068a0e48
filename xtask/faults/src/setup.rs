// SPDX-License-Identifier: Apache-2.0
//! The lab of one seed: the number of nodes and the variant of keepalived's configuration.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::random::SeededRandom;

/// The link of a node.
pub const LINK: &str = "eth0";
/// The virtual router id of the first instance; the second one has the next id.
const FIRST_VRID: u8 = 51;
/// The highest base priority of a node.
const PRIORITIES: [u8; 3] = [150, 120, 90];
/// What a failed track script subtracts from the priority.
pub const TRACK_WEIGHT: u8 = 70;

/// The properties of one lab that all nodes share.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "independent switches of one configuration")]
pub struct LabSetup {
    pub seed: u64,
    /// The base priority of each node.
    pub priorities: Vec<u8>,
    pub version: u8,
    pub is_ipv6: bool,
    pub is_unicast: bool,
    pub has_vmac: bool,
    /// Two instances in one sync group.
    pub has_sync_group: bool,
    pub has_track_script: bool,
    pub is_nopreempt: bool,
    /// Each instance has two addresses.
    pub has_two_addresses: bool,
    /// The node captures sent adverts too.
    pub captures_sent: bool,
    pub advert_millis: u32,
}

impl LabSetup {
    pub fn of(seed: u64) -> Self {
        let mut random = SeededRandom::new(seed);
        let mut priorities = PRIORITIES[..2 + usize::from(random.chance(35))].to_vec();
        random.shuffle(&mut priorities);
        let is_ipv6 = random.chance(30);
        let version = if is_ipv6 || random.chance(50) { 3 } else { 2 };
        let is_unicast = random.chance(25);
        Self {
            seed,
            priorities,
            version,
            is_ipv6,
            is_unicast,
            has_vmac: !is_unicast && random.chance(25),
            has_sync_group: random.chance(25),
            has_track_script: random.chance(50),
            is_nopreempt: random.chance(30),
            has_two_addresses: is_ipv6 || random.chance(40),
            captures_sent: random.chance(50),
            advert_millis: if version == 3 { random.one_of(&[1000, 500, 300]) } else { 1000 },
        }
    }

    pub fn nodes(&self) -> usize {
        self.priorities.len()
    }

    /// The names of the instances.
    pub fn instances(&self) -> &'static [&'static str] {
        if self.has_sync_group { &["VI_1", "VI_2"] } else { &["VI_1"] }
    }

    pub fn vrid(instance: usize) -> u8 {
        FIRST_VRID + u8::try_from(instance).unwrap_or(0)
    }

    /// The link that holds the addresses of an instance.
    pub fn address_link(&self, instance: usize) -> String {
        if self.has_vmac { format!("vrrp.{}", Self::vrid(instance)) } else { LINK.to_owned() }
    }

    /// The addresses of an instance, with prefix lengths.
    pub fn addresses(&self, instance: usize) -> Vec<String> {
        let number = instance + 1;
        let all = if self.is_ipv6 {
            // RFC 5798, section 5.2.9: the first address is the link-local one.
            vec![format!("fe80::{number}:100/64"), format!("fd09::{number}:100/64")]
        } else {
            vec![format!("10.9.0.{number}01/24"), format!("10.9.0.{number}02/24")]
        };
        all.into_iter().take(1 + usize::from(self.has_two_addresses)).collect()
    }

    /// The own address of a node, or of the foreign host if `node` is the number of nodes.
    pub fn own_address(&self, node: usize) -> String {
        if self.is_ipv6 { format!("fd09::{}", node + 1) } else { format!("10.9.0.{}", node + 1) }
    }

    /// A short description for the table of results.
    pub fn label(&self) -> String {
        let mut label = format!("{}n v{} {}ms", self.nodes(), self.version, self.advert_millis);
        let marks = [
            (self.is_ipv6, "ipv6"),
            (self.is_unicast, "unicast"),
            (self.has_vmac, "vmac"),
            (self.has_sync_group, "sync"),
            (self.has_track_script, "track"),
            (self.is_nopreempt, "nopreempt"),
            (self.captures_sent, "sent"),
        ];
        for (_, mark) in marks.iter().filter(|(is_set, _)| *is_set) {
            let _ = write!(label, " {mark}");
        }
        label
    }

    /// Everything that the checker must know about the lab.
    pub fn document(&self) -> Value {
        let instances = self.instances().iter().enumerate().map(|(index, name)| {
            json!({
                "name": name,
                "vrid": Self::vrid(index),
                "addresses": self.addresses(index),
                "address_link": self.address_link(index),
            })
        });
        let own: Vec<String> = (0..self.nodes()).map(|node| self.own_address(node)).collect();
        json!({
            "seed": self.seed,
            "label": self.label(),
            "priorities": self.priorities,
            "version": self.version,
            "advert_millis": self.advert_millis,
            "has_vmac": self.has_vmac,
            "is_nopreempt": self.is_nopreempt,
            "captures_sent": self.captures_sent,
            "instances": instances.collect::<Vec<_>>(),
            "own_addresses": own,
        })
    }
}

/// A change of one node's keepalived configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ConfigEdit {
    /// Another base priority.
    pub priority: Option<u8>,
    /// One more address for the first instance, which the other nodes do not have.
    pub has_extra_address: bool,
}

/// The extra address of [`ConfigEdit`].
pub fn extra_address(setup: &LabSetup) -> &'static str {
    if setup.is_ipv6 { "fd09::99/64" } else { "10.9.0.199/24" }
}

/// The configuration of keepalived on one node. A failed `test` of `script_file` means: the file exists.
pub fn keepalived_conf(
    setup: &LabSetup,
    node: usize,
    edit: ConfigEdit,
    script_file: &str,
) -> String {
    let mut text = String::from("global_defs {\n  router_id lab\n  script_user root\n}\n");
    if setup.has_track_script {
        let _ = write!(
            text,
            "vrrp_script check {{\n  script \"/usr/bin/test ! -e {script_file}\"\n  interval 1\n  \
             fall 1\n  rise 1\n  weight -{TRACK_WEIGHT}\n}}\n"
        );
    }
    if setup.has_sync_group {
        text.push_str("vrrp_sync_group G {\n  group {\n    VI_1\n    VI_2\n  }\n");
        if setup.has_track_script {
            text.push_str("  track_script {\n    check\n  }\n");
        }
        text.push_str("}\n");
    }
    for index in 0..setup.instances().len() {
        instance_block(&mut text, setup, node, index, edit);
    }
    text
}

fn instance_block(
    text: &mut String,
    setup: &LabSetup,
    node: usize,
    index: usize,
    edit: ConfigEdit,
) {
    let (name, vrid) = (setup.instances()[index], LabSetup::vrid(index));
    let priority = edit.priority.unwrap_or(setup.priorities[node]);
    let interval = f64::from(setup.advert_millis) / 1000.0;
    let _ = write!(
        text,
        "vrrp_instance {name} {{\n  state BACKUP\n  interface {LINK}\n  virtual_router_id {vrid}\n  \
         priority {priority}\n  version {}\n  advert_int {interval}\n",
        setup.version
    );
    if setup.is_nopreempt {
        text.push_str("  nopreempt\n");
    }
    if setup.has_vmac {
        let _ = writeln!(text, "  use_vmac {}", setup.address_link(index));
    }
    if setup.is_unicast {
        let _ = writeln!(text, "  unicast_src_ip {}\n  unicast_peer {{", setup.own_address(node));
        for other in (0..setup.nodes()).filter(|other| *other != node) {
            let _ = writeln!(text, "    {}", setup.own_address(other));
        }
        text.push_str("  }\n");
    }
    if setup.has_track_script && !setup.has_sync_group {
        text.push_str("  track_script {\n    check\n  }\n");
    }
    text.push_str("  virtual_ipaddress {\n");
    let extra = (edit.has_extra_address && index == 0).then(|| extra_address(setup).to_owned());
    for address in setup.addresses(index).into_iter().chain(extra) {
        let _ = writeln!(text, "    {address}");
    }
    text.push_str("  }\n}\n");
}

/// The configuration of a foreign keepalived with the virtual router id of the first instance and other addresses.
pub fn foreign_conf(setup: &LabSetup) -> String {
    let mut other = setup.clone();
    other.priorities = vec![1; setup.nodes() + 1];
    other.has_track_script = false;
    other.has_sync_group = false;
    other.has_vmac = false;
    let text = keepalived_conf(&other, setup.nodes(), ConfigEdit::default(), "");
    let (own, foreign) = if setup.is_ipv6 {
        ([":1:100/64", ":1:100/64"], [":77:1/64", ":77:2/64"])
    } else {
        (["10.9.0.101/24", "10.9.0.102/24"], ["10.9.0.177/24", "10.9.0.178/24"])
    };
    text.replace(own[0], foreign[0]).replace(own[1], foreign[1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_gives_one_lab_and_other_seeds_give_other_labs() {
        assert_eq!(LabSetup::of(7), LabSetup::of(7));
        let labels: std::collections::BTreeSet<String> =
            (0..50).map(|seed| LabSetup::of(seed).label()).collect();
        assert!(labels.len() > 25, "{labels:?}");
    }

    #[test]
    fn a_foreign_keepalived_has_the_same_vrid_and_no_common_address() {
        for seed in 0..20 {
            let setup = LabSetup::of(seed);
            let text = foreign_conf(&setup);
            assert!(text.contains("virtual_router_id 51"), "{text}");
            for address in setup.addresses(0) {
                assert!(!text.contains(&address), "{text}");
            }
        }
    }
}
