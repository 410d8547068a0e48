// SPDX-License-Identifier: Apache-2.0
//! Metrics with the names of the exporters for keepalived, so that their dashboards and alerts work.
//!
//! Only values that the node knows are exported. Every series has the additional label `vrrp_instance`: the other labels are
//! unique for one keepalived, and a node follows many.

use vipwatch_core::RoleKind;
use vipwatch_core::keepalived::VirtualAddress;
use vipwatch_core::witness::AdvertOrigin;

use super::{EmitSample, InstanceFacts, MetricFamily, MetricValue, emit_one};

/// About the processes of keepalived.
pub(super) const PROCESSES: &[MetricFamily] = families! { Node:
    Gauge "keepalived_up", "1 if a keepalived runs; absent if the node does not read processes" => |facts, emit| {
        if let Some(processes) = facts.context.store.processes() {
            emit_one(emit, u64::from(processes.count() > 0));
        }
    };
};

pub(super) const FAMILIES: &[MetricFamily] = families! { Instance:
    Gauge "keepalived_vrrp_state", "State of the instance: 1 backup, 2 master, 3 fault" =>
        |facts, emit| state(facts, emit, |address| !address.is_excluded);
    Gauge "keepalived_vrrp_excluded_state", "The same for the excluded addresses of the instance" =>
        |facts, emit| state(facts, emit, |address| address.is_excluded);
    Counter "keepalived_become_master_total", "Transitions to primary since vipwatch started" => |facts, emit| {
        let count = facts.entry.counts.to(RoleKind::Primary);
        emit_count(facts, emit, u64::from(count));
    };
    Counter "keepalived_release_master_total", "Transitions from primary since vipwatch started" =>
        |facts, emit| emit_count(facts, emit, u64::from(facts.entry.counts.from_primary));
    Counter "keepalived_advertisements_received_total",
        "Captured adverts of other hosts; absent if adverts are not captured" =>
        |facts, emit| adverts(facts, emit, AdvertOrigin::Foreign);
    Counter "keepalived_advertisements_sent_total",
        "Captured adverts of this host; absent if sent adverts are not captured" =>
        |facts, emit| adverts(facts, emit, AdvertOrigin::Own);
};

/// keepalived's number for a role. A `partial` instance has taken over, so its keepalived is master. `None` for an unknown
/// role.
fn state_number(role: RoleKind) -> Option<u64> {
    match role {
        RoleKind::Backup => Some(1),
        RoleKind::Primary | RoleKind::Partial => Some(2),
        RoleKind::Fault => Some(3),
        RoleKind::Unknown => None,
    }
}

fn state(
    facts: &InstanceFacts<'_>,
    emit: &mut EmitSample<'_>,
    is_wanted: fn(&VirtualAddress) -> bool,
) {
    let Some(number) = state_number(facts.entry.role.kind()) else { return };
    let config = &facts.entry.instance;
    let addresses = &config.vrrp.addresses;
    for (at, address) in addresses.iter().enumerate().filter(|(_, address)| is_wanted(address)) {
        let is_same = |other: &VirtualAddress| {
            is_wanted(other) && (other.link, other.cidr) == (address.link, address.cidr)
        };
        if addresses[..at].iter().any(is_same) {
            continue;
        }
        // keepalived writes no prefix length for a single address.
        let is_single = address.cidr.prefix_len() == address.cidr.max_prefix_len();
        let ip = if is_single { address.cidr.addr().to_string() } else { address.cidr.to_string() };
        let (vrid, link) = (vrid(facts), address.link.to_string());
        let labels = [
            ("iname", config.vrrp.name.as_str()),
            ("intf", link.as_str()),
            ("vrid", vrid.as_str()),
            ("ip_address", ip.as_str()),
            ("vrrp_instance", config.id.as_str()),
        ];
        emit(&labels, MetricValue::Count(number));
    }
}

fn adverts(facts: &InstanceFacts<'_>, emit: &mut EmitSample<'_>, origin: AdvertOrigin) {
    let count = facts.node.context.store.witness.read(&facts.entry.instance, |evidence| {
        if origin == AdvertOrigin::Own && !evidence.has_sent {
            return None;
        }
        evidence.witness.router(evidence.key).map(|router| router.adverts(origin))
    });
    if let Some(count) = count.flatten() {
        emit_count(facts, emit, count);
    }
}

fn emit_count(facts: &InstanceFacts<'_>, emit: &mut EmitSample<'_>, count: u64) {
    let config = &facts.entry.instance;
    let (vrid, link) = (vrid(facts), config.vrrp.interface_name());
    let labels = [
        ("iname", config.vrrp.name.as_str()),
        ("intf", link.as_str()),
        ("vrid", vrid.as_str()),
        ("vrrp_instance", config.id.as_str()),
    ];
    emit(&labels, MetricValue::Count(count));
}

fn vrid(facts: &InstanceFacts<'_>) -> String {
    facts.entry.instance.vrrp.vrid.map(|vrid| vrid.to_string()).unwrap_or_default()
}
