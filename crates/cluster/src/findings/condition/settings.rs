// SPDX-License-Identifier: Apache-2.0
//! The condition that the live members of a group have different settings.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;

use super::{FindingCondition, evidence, listed, names};
use crate::group::{Group, GroupMember};
use crate::record::{Confidence, RoleRecord};
use vipwatch_core::{FindingKind, first_of};

/// A setting as text; `None` if the node does not know it.
type Setting = fn(&RoleRecord) -> Option<String>;

/// The settings that must be equal, with their names. Virtual addresses are compared too, see [`addresses`].
const SETTINGS: [(&str, Setting); 3] = [
    // keepalived sends an advert each second if the configuration does not set the time.
    ("advert interval", |record| Some(format!("{} ms", record.advert_ms.unwrap_or(1000)))),
    ("VRRP version", |record| record.vrrp_version.map(|version| version.to_string())),
    ("VRID", |record| record.vrid.map(|vrid| vrid.to_string())),
];

pub(super) fn different_configuration(group: &Group) -> Option<FindingCondition> {
    let live: Vec<&GroupMember> = group.members.iter().filter(|member| member.is_live()).collect();
    let others = SETTINGS.iter().filter_map(|(name, setting)| difference(&live, name, *setting));
    let differences: Vec<String> = addresses(&live).into_iter().chain(others).collect();
    if differences.is_empty() {
        return None;
    }
    let text = format!(
        "the nodes of the group {} have different settings: {}",
        group.id,
        differences.join("; ")
    );
    let (kind, confidence) = (FindingKind::ClusterDifferentConfiguration, Confidence::Certain);
    let nodes = names(live.into_iter());
    Some(FindingCondition {
        kind,
        confidence,
        nodes,
        text,
        evidence: evidence::of(group),
        basis: Vec::new(),
        about: None,
        absent: Vec::new(),
    })
}

/// The values of a setting with the nodes that have each; `None` if there are not two different ones.
fn difference(live: &[&GroupMember], name: &str, setting: Setting) -> Option<String> {
    let mut values: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for member in live {
        if let Some(value) = setting(&member.record) {
            values.entry(value).or_default().push(member.node.to_string());
        }
    }
    if values.len() < 2 {
        return None;
    }
    let values = values.iter().map(|(value, nodes)| format!("{value} on {}", listed(nodes)));
    let values: Vec<String> = values.collect();
    Some(format!("{name} {}", values.join(", ")))
}

/// The virtual addresses that not all members have; `None` if all have the same.
fn addresses(live: &[&GroupMember]) -> Option<String> {
    let sets: Vec<BTreeSet<IpNet>> =
        live.iter().map(|member| member.record.addresses.iter().copied().collect()).collect();
    let common = sets.iter().skip(1).fold(sets.first()?.clone(), |common, set| &common & set);
    if sets.iter().all(|set| *set == common) {
        return None;
    }
    let own = live.iter().zip(&sets).map(|(member, set)| {
        let own = shortened(&(set - &common));
        format!("{own} on {}", member.node)
    });
    let own: Vec<String> = own.collect();
    Some(format!("virtual addresses that not all nodes have: {}", own.join(", ")))
}

/// The first addresses, so that the text has a limited length.
fn shortened(addresses: &BTreeSet<IpNet>) -> String {
    const MAX_SHOWN: usize = 8;
    match addresses.len() {
        0 => "none".to_owned(),
        _ => first_of(addresses, MAX_SHOWN, " "),
    }
}
