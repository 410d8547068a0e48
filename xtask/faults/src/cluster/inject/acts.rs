// SPDX-License-Identifier: Apache-2.0
//! The acts of the injector. Each of them is written to the log before and after it happens.

use std::time::Duration;

use serde_json::json;

use super::super::lab::ClusterLab;
use super::super::lab::cluster_host::{ClusterHost, LabNetwork};
use super::super::lab::simulated::{SimulatedNode, SimulatedPart};
use super::super::schedule::ClusterFault;
use super::super::setup::HOSTS;
use super::observe;
use crate::FaultsError;
use crate::moment::pause;

/// The time after which a finding of two primaries is open.
const UNTIL_TWO_PRIMARIES: Duration = Duration::from_secs(11);
/// The time after which a new router is published.
const UNTIL_PUBLISHED: Duration = Duration::from_secs(5);
/// The time after which a node has audited an instance, and the finding of the cluster is closed.
const UNTIL_AUDITED: Duration = Duration::from_secs(15);

pub fn primary(lab: &ClusterLab) -> Result<usize, FaultsError> {
    lab.primary()?.ok_or_else(|| FaultsError("no host holds the first instance".to_owned()))
}

/// Sends SIGSTOP (`freeze`) or SIGCONT (`continue`) to a daemon.
pub fn signal(lab: &ClusterLab, service: &str, host: usize, how: &str) -> Result<(), FaultsError> {
    let signal = if how == "freeze" { "STOP" } else { "CONT" };
    lab.act(service, host, how, |host| host.signal_service(service, signal))
}

/// Ends the node with SIGKILL (`kill`) or SIGTERM (`stop`).
pub fn end_vipwatch(lab: &ClusterLab, host: usize, how: &str) -> Result<(), FaultsError> {
    let signal = if how == "kill" { "KILL" } else { "TERM" };
    lab.act("vipwatch", host, how, |host| host.end_service("vipwatch", signal))
}

pub fn kill_etcd(lab: &ClusterLab, host: usize) -> Result<(), FaultsError> {
    lab.act("etcd", host, "kill", |host| host.end_service("etcd", "KILL"))
}

/// Kills the leader and the next member.
pub fn lose_quorum(lab: &ClusterLab, leader: usize) -> Result<(), FaultsError> {
    kill_etcd(lab, leader)?;
    kill_etcd(lab, next(leader))
}

pub fn start_dead_members(lab: &ClusterLab) -> Result<(), FaultsError> {
    let dead: Vec<usize> =
        (0..HOSTS).filter(|host| !lab.hosts[*host].is_service_alive("etcd")).collect();
    dead.iter().try_for_each(|host| lab.act("etcd", *host, "start", ClusterHost::start_etcd))
}

/// Takes a host out of a network (`cut`), or lets it receive (`deaf`) or send (`mute`) nothing.
pub fn cut(
    lab: &ClusterLab,
    network: LabNetwork,
    host: usize,
    how: &str,
) -> Result<(), FaultsError> {
    lab.act(network.word(), host, how, |host| match how {
        "deaf" => host.block_received(network),
        "mute" => host.block_sent(network),
        _ => host.set_plugged(network, false),
    })
}

pub fn heal(
    lab: &ClusterLab,
    network: LabNetwork,
    host: usize,
    fault: ClusterFault,
) -> Result<(), FaultsError> {
    lab.act(network.word(), host, "heal", |host| match fault {
        ClusterFault::EtcdReceiveLoss | ClusterFault::DataReceiveLoss => {
            host.unblock_received(network)
        }
        ClusterFault::EtcdSendLoss | ClusterFault::DataSendLoss => host.unblock_sent(network),
        _ => host.set_plugged(network, true),
    })
}

/// Sends a signal to the VRRP process.
pub fn keepalived(
    lab: &ClusterLab,
    host: usize,
    how: &str,
    signal: &str,
) -> Result<(), FaultsError> {
    lab.act("keepalived", host, how, |host| {
        let pids = host.base.keepalived_pids();
        let pids = pids.ok_or_else(|| FaultsError("keepalived does not run".to_owned()))?;
        host.base.signal(&[(signal, pids.child)])
    })
}

/// Kills both processes, so that the addresses stay.
pub fn kill_keepalived(lab: &ClusterLab, host: usize) -> Result<(), FaultsError> {
    lab.act("keepalived", host, "kill", |host| {
        host.end_keepalived(|pids| {
            vec![("STOP", pids.parent), ("KILL", pids.child), ("KILL", pids.parent)]
        })
    })
}

pub fn stop_keepalived(lab: &ClusterLab, host: usize) -> Result<(), FaultsError> {
    lab.act("keepalived", host, "stop", |host| {
        host.end_keepalived(|pids| vec![("TERM", pids.parent)])
    })
}

pub fn start_dead_keepalived(lab: &ClusterLab) -> Result<(), FaultsError> {
    let dead: Vec<usize> =
        (0..HOSTS).filter(|host| lab.hosts[*host].base.keepalived_pids().is_none()).collect();
    dead.iter()
        .try_for_each(|host| lab.act("keepalived", *host, "start", ClusterHost::start_keepalived))
}

/// Compacts etcd through a member of another host.
pub fn compact(lab: &ClusterLab, cut_off: usize) -> Result<(), FaultsError> {
    lab.act("compaction", next(cut_off), "compact", ClusterHost::compact_etcd)
}

/// Adds an address to the configuration of keepalived, or removes it, and lets keepalived read it.
pub fn edit(lab: &ClusterLab, host: usize, has_extra: bool) -> Result<(), FaultsError> {
    let mut addresses = lab.setup.keepalived.addresses(0);
    let extra = crate::setup::extra_address(&lab.setup.keepalived);
    addresses.extend(has_extra.then(|| extra.to_owned()));
    let details = json!({ "node": host, "addresses": addresses, "is_edited": has_extra });
    lab.journal.write("configure", &details)?;
    lab.hosts[host].configure(&lab.setup, has_extra)?;
    lab.journal.write("configured", &details)?;
    lab.act("keepalived", host, "reload", |host| {
        let pids = host.base.keepalived_pids();
        let pids = pids.ok_or_else(|| FaultsError("keepalived does not run".to_owned()))?;
        host.base.signal(&[("HUP", pids.parent)])
    })
}

/// Causes two primaries, waits for their finding, and then lets the reporter fail.
pub fn with_finding(
    lab: &ClusterLab,
    host: usize,
    fail: impl FnOnce(&ClusterLab, usize) -> Result<(), FaultsError>,
) -> Result<(), FaultsError> {
    cut(lab, LabNetwork::Data, host, "cut")?;
    pause(UNTIL_TWO_PRIMARIES);
    observe(lab)?;
    lab.reporter().map_or(Ok(()), |reporter| fail(lab, reporter))
}

pub fn simulate(lab: &mut ClusterLab, host: usize, part: SimulatedPart) -> Result<(), FaultsError> {
    let entry = |phase: &str| json!({ "how": part.word(), "phase": phase });
    lab.journal.write("simulated", &entry("begin"))?;
    lab.simulated = Some(SimulatedNode::start(&lab.hosts[host], &lab.setup, part)?);
    lab.journal.write("simulated", &entry("done"))
}

pub fn simulated_act(
    lab: &mut ClusterLab,
    how: &str,
    work: impl FnOnce(&ClusterHost, &mut SimulatedNode) -> Result<(), FaultsError>,
) -> Result<(), FaultsError> {
    let entry = |phase: &str| json!({ "how": how, "phase": phase });
    lab.journal.write("simulated", &entry("begin"))?;
    if let Some(node) = &mut lab.simulated {
        work(&lab.hosts[0], node)?;
    }
    lab.journal.write("simulated", &entry("done"))
}

/// Steps the wall clock of a node; 0 seconds is that of the machine.
pub fn set_clock(lab: &ClusterLab, host: usize, seconds: i64) -> Result<(), FaultsError> {
    let how = if seconds == 0 { "real" } else { "step" };
    lab.act("clock", host, how, |host| host.set_clock(seconds))
}

/// Creates a router, waits until its role is published, and lets its state file be wrong.
pub fn state_file_wrong(
    lab: &ClusterLab,
    host: usize,
    act: &str,
    how: &str,
    work: impl FnOnce(&ClusterHost) -> Result<(), FaultsError>,
) -> Result<(), FaultsError> {
    lab.act("router", host, "create", |host| host.create_router(&lab.setup))?;
    pause(UNTIL_PUBLISHED);
    lab.act(act, host, how, work)
}

/// Corrects the state file of a router, waits until the node has audited it, and removes the router.
pub fn state_file_right(lab: &ClusterLab, host: usize, word: &str) -> Result<(), FaultsError> {
    lab.act("state-file", host, "right", |host| host.write_state(word))?;
    pause(UNTIL_AUDITED);
    lab.act("router", host, "remove", ClusterHost::remove_router)
}

/// The host beside another one.
pub fn next(host: usize) -> usize {
    (host + 1) % HOSTS
}
