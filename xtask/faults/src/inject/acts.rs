// SPDX-License-Identifier: Apache-2.0
//! The acts of the fault table. Each of them is written to the log before and after it happens.

mod keepalived;

use std::time::Duration;

use serde_json::json;

use super::observe;
use crate::fault_table::{ClusterAct, FaultAct, ServiceAct};
use crate::lab::host::LabHost;
use crate::lab::simulated::{SimulatedNode, SimulatedPart};
use crate::lab::{FaultLab, wait_for};
use crate::moment::pause;
use crate::setup::node_name;
use crate::{FaultsError, LabResult};

/// Does acts one after the other. They concern `host`.
pub fn perform_all(lab: &mut FaultLab, acts: &[FaultAct], host: usize) -> LabResult {
    acts.iter().try_for_each(|act| perform(lab, act, host))
}

fn perform(lab: &mut FaultLab, act: &FaultAct, host: usize) -> LabResult {
    let (count, next) = (lab.hosts.len(), (host + 1) % lab.hosts.len());
    match act {
        FaultAct::Wait(millis) => {
            pause(Duration::from_millis(*millis));
            Ok(())
        }
        FaultAct::WaitForSecondPrimary => wait_for("a second primary", || {
            let holders = lab.held(0)?.iter().filter(|held| **held > 0).count();
            Ok((holders >= 2).then_some(()))
        }),
        FaultAct::WaitForFailover => wait_for("a failover", || {
            Ok(lab.primary()?.filter(|primary| *primary != host).map(drop))
        }),
        FaultAct::WaitForReturn => wait_for("the return of the primary", || {
            Ok(lab.primary()?.filter(|primary| *primary == host).map(drop))
        }),
        FaultAct::Repeat(times, acts) => (0..*times).try_for_each(|_| perform_all(lab, acts, host)),
        FaultAct::OnPrimary(act) => {
            let none = || FaultsError("no host holds the first instance".to_owned());
            let primary = lab.primary()?.ok_or_else(none)?;
            perform(lab, act, primary)
        }
        FaultAct::OnNextHost(act) => perform(lab, act, next),
        FaultAct::OnAllHosts(act) => (0..count).try_for_each(|host| perform(lab, act, host)),
        FaultAct::OnReporter(act) => {
            observe(lab)?;
            lab.reporter().map_or(Ok(()), |reporter| perform(lab, act, reporter))
        }
        FaultAct::Keepalived(act) => keepalived::perform(lab, *act, host),
        FaultAct::Edit(edit) => lab.configure(host, *edit),
        FaultAct::Address(how) => address(lab, host, how),
        FaultAct::RestoreAddress(how) => restore_address(lab, host, how),
        FaultAct::Disturb(network, kind) => {
            let network = network.of_adverts(*kind, &lab.setup);
            lab.act(network.word(), host, kind, |host| host.disturb(network, *kind))
        }
        FaultAct::Heal(network, kind) => {
            let network = network.of_adverts(*kind, &lab.setup);
            lab.act(network.word(), host, "heal", |host| host.heal(network, *kind))
        }
        FaultAct::Etcd(act) => service(lab, "etcd", *act, host),
        FaultAct::Vipwatch(act) => service(lab, "vipwatch", *act, host),
        FaultAct::Silence(is_silent) => {
            let how = if *is_silent { "begin" } else { "end" };
            lab.act("silence", host, how, |host| host.silence(*is_silent))
        }
        FaultAct::Cluster(act) => perform_in_cluster(lab, act, host),
    }
}

/// Does an act that only a lab with a cluster has.
fn perform_in_cluster(lab: &mut FaultLab, act: &ClusterAct, host: usize) -> LabResult {
    let next = (host + 1) % lab.hosts.len();
    match act {
        ClusterAct::Compact => lab.act("compaction", host, "compact", |host| host.etcd().compact()),
        ClusterAct::Simulate(part) => simulate(lab, host, *part),
        ClusterAct::SilenceSimulated => simulated(lab, "silent", |node| {
            node.fall_silent();
            Ok(())
        }),
        ClusterAct::StopSimulated => simulated(lab, "stop", SimulatedNode::stop),
        ClusterAct::Group(has_group) => {
            let how = if *has_group { "set" } else { "remove" };
            lab.act("group", host, how, |host| host.set_group(&lab.setup, *has_group))
        }
        ClusterAct::CreateRouter => {
            lab.act("router", host, "create", |host| host.create_router(&lab.setup))
        }
        ClusterAct::ReleaseRouter => lab.act("router", host, "release", LabHost::release_router),
        ClusterAct::RemoveRouter => lab.act("router", host, "remove", LabHost::remove_router),
        ClusterAct::StateFile(how, word) => {
            lab.act("state-file", host, how, |host| host.write_state(word))
        }
        ClusterAct::StartTwin => {
            lab.act("twin", next, "start", |other| other.start_twin(&lab.setup, node_name(host)))
        }
        ClusterAct::StopTwin => {
            lab.act("twin", next, "stop", |other| other.end_service("twin", "TERM"))
        }
        ClusterAct::Clock(seconds) => {
            let how = if *seconds == 0 { "real" } else { "step" };
            lab.act("clock", host, how, |host| host.set_clock(*seconds))
        }
    }
}

/// Adds or removes the last address of the first instance.
fn address(lab: &FaultLab, host: usize, how: &str) -> LabResult {
    let instance = lab.setup.instance(0);
    let (link, last) = (&instance.address_link, &instance.addresses[instance.addresses.len() - 1]);
    let details = json!({ "node": host, "how": how });
    lab.journal.write("address", &details)?;
    let result = lab.hosts[host].run(&format!("ip address {how} {last} dev {link}"));
    lab.journal.write("address-done", &details)?;
    // keepalived may have done the same already.
    result.map(drop).or_else(|error| if error.0.contains("exit") { Ok(()) } else { Err(error) })
}

/// Ends the state that [`address`] has caused, if keepalived has not done so.
fn restore_address(lab: &FaultLab, host: usize, how: &str) -> LabResult {
    let all = lab.setup.instance(0).addresses.len();
    let held = lab.held(0)?;
    // With one address, keepalived's own state decides: a primary that has lost its address has it back already or gave
    // up its role.
    let is_partial = held[host] > 0 && held[host] < all;
    let holders = held.iter().filter(|held| **held > 0).count();
    let is_left = how == "del" && held[host] > 0 && holders > 1;
    if is_partial || is_left { address(lab, host, how) } else { Ok(()) }
}

/// Sends a signal to a service of the host, or starts the service on all hosts on which it does not run.
fn service(lab: &FaultLab, name: &str, act: ServiceAct, host: usize) -> LabResult {
    match act {
        ServiceAct::Freeze => {
            lab.act(name, host, "freeze", |host| host.signal_service(name, "STOP"))
        }
        ServiceAct::Continue => {
            lab.act(name, host, "continue", |host| host.signal_service(name, "CONT"))
        }
        ServiceAct::Kill => lab.act(name, host, "kill", |host| host.end_service(name, "KILL")),
        ServiceAct::Stop => lab.act(name, host, "stop", |host| host.end_service(name, "TERM")),
        ServiceAct::StartDead => {
            let mut dead = lab.hosts.iter().filter(|host| !host.is_service_alive(name));
            dead.try_for_each(|host| {
                lab.act(name, host.index, "start", |host| start(lab, name, host))
            })
        }
    }
}

fn start(lab: &FaultLab, name: &str, host: &LabHost) -> LabResult {
    if name == "etcd" {
        return host.start_etcd();
    }
    host.start_vipwatch(&lab.setup)?;
    host.wait_for_vipwatch()
}

/// Creates the simulated node; the member of `host` gets its records.
fn simulate(lab: &mut FaultLab, host: usize, part: SimulatedPart) -> LabResult {
    let cluster = lab.setup.cluster.as_ref();
    let times = cluster.ok_or_else(|| FaultsError("the lab has no cluster".to_owned()))?.times;
    let entry = |phase: &str| json!({ "how": part, "phase": phase });
    lab.journal.write("simulated", &entry("begin"))?;
    lab.simulated = Some(SimulatedNode::start(lab.hosts[host].etcd(), &lab.setup, times, part)?);
    lab.journal.write("simulated", &entry("done"))
}

fn simulated(
    lab: &mut FaultLab,
    how: &str,
    work: impl FnOnce(&mut SimulatedNode) -> LabResult,
) -> LabResult {
    let entry = |phase: &str| json!({ "how": how, "phase": phase });
    lab.journal.write("simulated", &entry("begin"))?;
    lab.simulated.as_mut().map_or(Ok(()), work)?;
    lab.journal.write("simulated", &entry("done"))
}
