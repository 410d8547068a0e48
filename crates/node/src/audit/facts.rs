// SPDX-License-Identifier: Apache-2.0
//! Gathers the facts about one instance: from a snapshot, the published state, files, pid files and the reports
//! of its monitor. Those about keepalived's processes come from [`crate::processes`].

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ipnet::IpNet;
use vipwatch_core::audit::{AuditFacts, MonitorReport, Process, StateFileContent};
use vipwatch_core::role::{AddressState, address_state};
use vipwatch_core::snapshot::{AddressFacts, Snapshot};
use vipwatch_core::{LinkName, NeutronState, Role};
use vipwatch_linux::file::read_head;

use crate::discovery::{InstanceConfig, Origin};
use crate::receiver::ReceiverHandle;
use crate::state::InstanceEntry;

/// A monitor may have seen a change so much earlier than the node.
const MONITOR_LEAD: Duration = Duration::from_secs(1);

/// Gathers the facts; `snapshot` is the namespace, or the role for a namespace that cannot be read.
pub(super) fn gather(
    entry: &InstanceEntry,
    snapshot: &Result<Snapshot, Role>,
    receiver_handle: &ReceiverHandle,
) -> AuditFacts {
    let instance = &entry.instance;
    let watched = instance.watched();
    let role = match snapshot {
        Ok(snapshot) => instance.role(&watched, snapshot),
        Err(role) => role.clone(),
    };
    let is_advert_role = snapshot.is_ok() && !instance.has_addresses();
    let has_fault = matches!(role, Role::Fault(_));
    // The instance table looks at the adverts often enough.
    let role = if is_advert_role && !has_fault { entry.role.clone() } else { role };
    let mut facts = AuditFacts { is_advert_role, ..AuditFacts::new(role) };
    if facts.role != entry.role && snapshot.is_ok() {
        facts.published = Some(entry.role.clone());
    }
    if let Ok(snapshot) = snapshot {
        facts.misplaced = watched
            .iter()
            .map(|(link, cidr)| (*cidr, address_state(snapshot, *link, *cidr)))
            .filter(|(_, state)| !matches!(state, AddressState::Held | AddressState::Absent))
            .collect();
        facts.protocol = protocol_of(&watched, snapshot);
        facts.floating = count_floating(instance, snapshot);
    }
    facts.agent.clone_from(&entry.agent);
    facts.reported = monitor_report(entry, receiver_handle);
    if instance.origin == Origin::Neutron {
        facts.file = Some(read_state_file(&instance.file));
        facts.monitor = find_monitor(instance);
    }
    facts
}

/// The kind of program that added these addresses, as far as they are held; 0 if that is not known, or differs.
fn protocol_of(watched: &[(LinkName, IpNet)], snapshot: &Snapshot) -> u8 {
    let is_held =
        |address: &&AddressFacts| watched.iter().any(|(_, cidr)| address.target.ip == cidr.addr());
    let mut protocols = snapshot.addresses.iter().filter(is_held).map(|address| address.protocol);
    let first = protocols.next().unwrap_or(0);
    if protocols.all(|protocol| protocol == first) { first } else { 0 }
}

/// What the monitor of an instance has reported; `None` if there is no receiver, or if the instance is not a
/// Neutron router and so needs no monitor.
fn monitor_report(
    entry: &InstanceEntry,
    receiver_handle: &ReceiverHandle,
) -> Option<MonitorReport> {
    let receiver = receiver_handle.status()?;
    let view = receiver.view.lock().ok()?;
    match view.instances.get(&entry.instance.id) {
        Some(report) => {
            let is_current = report.moment + MONITOR_LEAD >= entry.role_since;
            Some(MonitorReport::State { state: report.state, is_current })
        }
        None => (entry.instance.origin == Origin::Neutron).then_some(MonitorReport::Nothing),
    }
}

/// The state of each of `targets`, a link and an address on it. There may be a thousand of them, so the
/// addresses of the snapshot are indexed, not searched.
pub(super) fn address_states(
    snapshot: &Snapshot,
    targets: &[(LinkName, IpNet)],
) -> Vec<AddressState> {
    if targets.is_empty() {
        return Vec::new();
    }
    let mut by_ip: BTreeMap<IpAddr, Vec<AddressFacts>> = BTreeMap::new();
    for address in &snapshot.addresses {
        by_ip.entry(address.target.ip).or_default().push(*address);
    }
    let mut one = Snapshot { links: snapshot.links.clone(), addresses: Vec::new() };
    let state = |(link, cidr): &(LinkName, IpNet)| {
        one.addresses = by_ip.remove(&cidr.addr()).unwrap_or_default();
        let state = address_state(&one, *link, *cidr);
        by_ip.insert(cidr.addr(), std::mem::take(&mut one.addresses));
        state
    };
    targets.iter().map(state).collect()
}

/// The floating addresses of a Neutron router: how many are held, of how many.
fn count_floating(instance: &InstanceConfig, snapshot: &Snapshot) -> (usize, usize) {
    if instance.origin != Origin::Neutron {
        return (0, 0);
    }
    // There may be a thousand: the addresses of the snapshot are indexed, not searched.
    let held: BTreeSet<IpAddr> =
        snapshot.addresses.iter().map(|address| address.target.ip).collect();
    let floating = instance.vrrp.addresses.iter().filter(|address| address.is_excluded);
    let is_held: Vec<bool> = floating.map(|address| held.contains(&address.cidr.addr())).collect();
    (is_held.iter().filter(|is_held| **is_held).count(), is_held.len())
}

/// Reads the file `state` beside keepalived's configuration, which Neutron's monitor writes.
fn read_state_file(keepalived_conf: &Path) -> StateFileContent {
    match read_head(&keepalived_conf.with_file_name("state"), 64) {
        Ok(text) => match text.trim_ascii() {
            // Neutron wrote `master` up to release 16.
            b"primary" | b"master" => StateFileContent::NeutronState(NeutronState::Primary),
            b"backup" => StateFileContent::NeutronState(NeutronState::Backup),
            other => StateFileContent::Invalid(String::from_utf8_lossy(other).into_owned()),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => StateFileContent::Missing,
        Err(error) => StateFileContent::Unreadable(error.to_string()),
    }
}

/// The monitor of a Neutron router, by the pid files that the agent writes. [`crate::processes`] finds keepalived.
fn find_monitor(instance: &InstanceConfig) -> Process {
    // The file is <state_path>/ha_confs/ID/keepalived.conf.
    let state_path = instance.file.parent().and_then(Path::parent).and_then(Path::parent);
    let Some(state_path) = state_path else { return Process::Unknown };
    let id = &instance.id;
    let files = ["monitor.pid.neutron-keepalived-state-change-monitor", "monitor.pid"]
        .map(|end| state_path.join("external/pids").join(format!("{id}.{end}")));
    find_process(&files)
}

/// The process that the first readable one of these pid files names.
fn find_process(pid_files: &[PathBuf]) -> Process {
    let pid = pid_files.iter().find_map(|file| {
        let text = read_head(file, 32).ok()?;
        String::from_utf8_lossy(&text).trim().parse::<u32>().ok()
    });
    match pid {
        Some(pid) if Path::new(&format!("/proc/{pid}")).exists() => Process::Runs,
        Some(_) => Process::Gone,
        None => Process::Unknown,
    }
}
