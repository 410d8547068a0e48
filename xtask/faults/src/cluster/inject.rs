// SPDX-License-Identifier: Apache-2.0
//! Causes the faults of a schedule and ends them. Each act is written to the log before and after it happens.

use std::time::{Duration, Instant};

use serde_json::json;

use super::lab::ClusterLab;
use super::lab::cluster_host::{ClusterHost, LabNetwork};
use super::lab::simulated::SimulatedNode;
use super::schedule::{ClusterFault, ClusterStep, ClusterVictim};
use super::setup::{HOSTS, PREFIX};
use crate::FaultsError;
use crate::inject::Pace;
use crate::lab::output;
use crate::lab::wait_for;
use crate::moment::pause;

/// The time before the first fault: the nodes have published their roles, and one of them reports.
const WARM_UP: Duration = Duration::from_secs(8);
/// The time after the last recovery, in which findings close.
const COOL_DOWN: Duration = Duration::from_secs(8);
/// Each wait with [`Pace::Patient`] that no fact ends.
const PATIENT_REST: Duration = Duration::from_secs(4);
/// Limit of the wait for a finding with [`Pace::Patient`].
const PATIENT_LIMIT: Duration = Duration::from_secs(40);
/// The time after which a finding of two primaries is open.
const UNTIL_TWO_PRIMARIES: Duration = Duration::from_secs(11);
/// The time between two stops of keepalived.
const FLAP_PERIOD: Duration = Duration::from_millis(5500);

/// Runs a schedule in a lab that has settled.
pub fn inject(lab: &mut ClusterLab, steps: &[ClusterStep], pace: Pace) -> Result<(), FaultsError> {
    if pace == Pace::Patient {
        wait_for("a node that reports findings", || Ok(lab.reporter()))?;
    }
    pause(pace.wait(WARM_UP));
    for step in steps {
        let fault = step.fault.word();
        let Some(host) = victim(lab, step.victim)? else {
            lab.journal.write("skipped", &json!({ "fault": fault }))?;
            continue;
        };
        let details = json!({ "fault": fault, "node": host });
        observe(lab)?;
        lab.journal.write("fault-begin", &details)?;
        begin(lab, step.fault, host)?;
        lab.journal.write("fault-done", &details)?;
        let findings = step.fault.findings();
        // A fault that causes no finding must last: no finding may be opened.
        pause(if findings.is_empty() { step.fault.hold() } else { pace.wait(step.fault.hold()) });
        if pace == Pace::Patient {
            wait_for_findings(lab, findings);
        }
        observe(lab)?;
        lab.journal.write("recover-begin", &details)?;
        recover(lab, step.fault, host)?;
        lab.journal.write("recover-done", &details)?;
        lab.wait_until_settled()?;
        pause(pace.wait(step.rest));
    }
    pause(pace.wait(COOL_DOWN));
    lab.finish()
}

/// Writes the leader of etcd and the reporter to the log.
fn observe(lab: &ClusterLab) -> Result<(), FaultsError> {
    let (leader, reporter) = (lab.leader(), lab.reporter());
    lab.journal.write("observed", &json!({ "leader": leader, "reporter": reporter }))
}

/// The host of a fault; `None` if no host has the role.
fn victim(lab: &ClusterLab, victim: ClusterVictim) -> Result<Option<usize>, FaultsError> {
    let primary = lab.primary()?;
    Ok(match victim {
        ClusterVictim::Primary => primary,
        ClusterVictim::Backup => (0..HOSTS).find(|host| Some(*host) != primary),
        ClusterVictim::Reporter => lab.reporter(),
        ClusterVictim::Leader => lab.leader(),
    })
}

impl Pace {
    /// A time of the schedule, which is shorter where facts end the wait.
    fn wait(self, exact: Duration) -> Duration {
        match self {
            Self::Exact => exact,
            Self::Patient => exact.min(PATIENT_REST),
        }
    }
}

fn wait_for_findings(lab: &ClusterLab, findings: &[&str]) {
    let key = format!("{PREFIX}finding/");
    let is_open = |host: &ClusterHost| {
        let text = output(&mut host.etcdctl(&["get", "--prefix", &key, "--print-value-only"]));
        text.is_ok_and(|text| findings.iter().all(|name| text.contains(name)))
    };
    let end = Instant::now() + PATIENT_LIMIT;
    while !findings.is_empty() && !lab.hosts.iter().any(is_open) && Instant::now() < end {
        pause(Duration::from_millis(300));
    }
}

fn begin(lab: &mut ClusterLab, fault: ClusterFault, host: usize) -> Result<(), FaultsError> {
    match fault {
        ClusterFault::KillLeader => kill_etcd(lab, host),
        ClusterFault::FreezeLeader => signal(lab, "etcd", host, "freeze"),
        ClusterFault::QuorumLoss => lose_quorum(lab, host),
        ClusterFault::QuorumLossWithFailover => {
            lose_quorum(lab, host)?;
            pause(Duration::from_secs(4));
            stop_keepalived(lab, primary(lab)?)
        }
        ClusterFault::CutFromEtcd => cut(lab, LabNetwork::Management, host, "cut"),
        ClusterFault::DataPartition => cut(lab, LabNetwork::Data, host, "cut"),
        ClusterFault::CutFromAll => {
            cut(lab, LabNetwork::Management, host, "cut")?;
            cut(lab, LabNetwork::Data, host, "cut")
        }
        ClusterFault::EtcdReceiveLoss => cut(lab, LabNetwork::Management, host, "deaf"),
        ClusterFault::EtcdSendLoss => cut(lab, LabNetwork::Management, host, "mute"),
        ClusterFault::DataReceiveLoss => cut(lab, LabNetwork::Data, host, "deaf"),
        ClusterFault::DataSendLoss => cut(lab, LabNetwork::Data, host, "mute"),
        ClusterFault::FreezeKeepalived => keepalived(lab, host, "freeze", "STOP"),
        ClusterFault::KillKeepalived => kill_keepalived(lab, host),
        ClusterFault::StopKeepalived => stop_keepalived(lab, host),
        ClusterFault::StopAllKeepalived => {
            (0..HOSTS).try_for_each(|host| stop_keepalived(lab, host))
        }
        ClusterFault::FreezeVipwatch => signal(lab, "vipwatch", host, "freeze"),
        ClusterFault::KillVipwatch => end_vipwatch(lab, host, "kill"),
        ClusterFault::RestartVipwatch => {
            end_vipwatch(lab, host, "kill")?;
            lab.start_vipwatch(host)
        }
        ClusterFault::StopVipwatch => end_vipwatch(lab, host, "stop"),
        ClusterFault::CompactionWhileCut => {
            cut(lab, LabNetwork::Management, host, "cut")?;
            stop_keepalived(lab, primary(lab)?)?;
            pause(Duration::from_secs(6));
            compact(lab, host)
        }
        ClusterFault::CompactionWhileFrozen => {
            signal(lab, "vipwatch", host, "freeze")?;
            pause(Duration::from_secs(4));
            compact(lab, host)
        }
        ClusterFault::EditAddresses => edit(lab, host, true),
        ClusterFault::LinkDown => {
            lab.act("data", host, "down", |host| host.base.run("ip link set eth0 down").map(drop))
        }
        ClusterFault::Flap => (0..3).try_for_each(|_| {
            stop_keepalived(lab, host)?;
            pause(FLAP_PERIOD);
            lab.act("keepalived", host, "start", ClusterHost::start_keepalived)?;
            pause(FLAP_PERIOD);
            Ok(())
        }),
        ClusterFault::KillReporterWithFinding => {
            with_finding(lab, host, |lab, reporter| end_vipwatch(lab, reporter, "kill"))
        }
        ClusterFault::CutReporterWithFinding => with_finding(lab, host, |lab, reporter| {
            cut(lab, LabNetwork::Management, reporter, "cut")
        }),
        ClusterFault::SimulatedPrimary => simulate(lab, host, "primary"),
        ClusterFault::SimulatedLost => {
            simulate(lab, host, "backup")?;
            pause(Duration::from_secs(3));
            simulated_act(lab, "silent", |_, node| {
                node.fall_silent();
                Ok(())
            })
        }
    }
}

fn recover(lab: &mut ClusterLab, fault: ClusterFault, host: usize) -> Result<(), FaultsError> {
    match fault {
        ClusterFault::KillLeader => lab.act("etcd", host, "start", ClusterHost::start_etcd),
        ClusterFault::FreezeLeader => signal(lab, "etcd", host, "continue"),
        ClusterFault::QuorumLoss => start_dead_members(lab),
        ClusterFault::QuorumLossWithFailover => {
            start_dead_members(lab)?;
            pause(Duration::from_secs(8));
            start_dead_keepalived(lab)
        }
        ClusterFault::CutFromEtcd | ClusterFault::EtcdReceiveLoss | ClusterFault::EtcdSendLoss => {
            heal(lab, LabNetwork::Management, host, fault)
        }
        ClusterFault::DataPartition
        | ClusterFault::DataReceiveLoss
        | ClusterFault::DataSendLoss => heal(lab, LabNetwork::Data, host, fault),
        ClusterFault::CutFromAll => {
            heal(lab, LabNetwork::Data, host, fault)?;
            heal(lab, LabNetwork::Management, host, fault)
        }
        ClusterFault::FreezeKeepalived => keepalived(lab, host, "continue", "CONT"),
        ClusterFault::KillKeepalived
        | ClusterFault::StopKeepalived
        | ClusterFault::StopAllKeepalived => start_dead_keepalived(lab),
        ClusterFault::FreezeVipwatch | ClusterFault::CompactionWhileFrozen => {
            signal(lab, "vipwatch", host, "continue")
        }
        ClusterFault::KillVipwatch | ClusterFault::StopVipwatch => lab.start_vipwatch(host),
        ClusterFault::RestartVipwatch | ClusterFault::Flap => Ok(()),
        ClusterFault::CompactionWhileCut => {
            heal(lab, LabNetwork::Management, host, fault)?;
            start_dead_keepalived(lab)
        }
        ClusterFault::EditAddresses => edit(lab, host, false),
        ClusterFault::LinkDown => lab.act("data", host, "heal", |cluster_host| {
            cluster_host.base.link_up(&lab.setup.keepalived)
        }),
        ClusterFault::KillReporterWithFinding => {
            heal(lab, LabNetwork::Data, host, fault)?;
            let dead = lab.hosts.iter().find(|host| !host.is_service_alive("vipwatch"));
            let dead = dead.map(ClusterHost::index);
            dead.map_or(Ok(()), |dead| lab.start_vipwatch(dead))
        }
        ClusterFault::CutReporterWithFinding => {
            heal(lab, LabNetwork::Data, host, fault)?;
            (0..HOSTS).try_for_each(|host| heal(lab, LabNetwork::Management, host, fault))
        }
        ClusterFault::SimulatedPrimary | ClusterFault::SimulatedLost => {
            simulated_act(lab, "stop", |host, node| node.stop(host))?;
            lab.simulated = None;
            Ok(())
        }
    }
}

fn primary(lab: &ClusterLab) -> Result<usize, FaultsError> {
    lab.primary()?.ok_or_else(|| FaultsError("no host holds the first instance".to_owned()))
}

/// Sends SIGSTOP (`freeze`) or SIGCONT (`continue`) to a daemon.
fn signal(lab: &ClusterLab, service: &str, host: usize, how: &str) -> Result<(), FaultsError> {
    let signal = if how == "freeze" { "STOP" } else { "CONT" };
    lab.act(service, host, how, |host| host.signal_service(service, signal))
}

/// Ends the node with SIGKILL (`kill`) or SIGTERM (`stop`).
fn end_vipwatch(lab: &ClusterLab, host: usize, how: &str) -> Result<(), FaultsError> {
    let signal = if how == "kill" { "KILL" } else { "TERM" };
    lab.act("vipwatch", host, how, |host| host.end_service("vipwatch", signal))
}

fn kill_etcd(lab: &ClusterLab, host: usize) -> Result<(), FaultsError> {
    lab.act("etcd", host, "kill", |host| host.end_service("etcd", "KILL"))
}

/// Kills the leader and the next member.
fn lose_quorum(lab: &ClusterLab, leader: usize) -> Result<(), FaultsError> {
    kill_etcd(lab, leader)?;
    kill_etcd(lab, (leader + 1) % HOSTS)
}

fn start_dead_members(lab: &ClusterLab) -> Result<(), FaultsError> {
    let dead: Vec<usize> =
        (0..HOSTS).filter(|host| !lab.hosts[*host].is_service_alive("etcd")).collect();
    dead.iter().try_for_each(|host| lab.act("etcd", *host, "start", ClusterHost::start_etcd))
}

/// Takes a host out of a network (`cut`), or lets it receive (`deaf`) or send (`mute`) nothing.
fn cut(lab: &ClusterLab, network: LabNetwork, host: usize, how: &str) -> Result<(), FaultsError> {
    lab.act(network.word(), host, how, |host| match how {
        "deaf" => host.block_received(network),
        "mute" => host.block_sent(network),
        _ => host.set_plugged(network, false),
    })
}

fn heal(
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
fn keepalived(lab: &ClusterLab, host: usize, how: &str, signal: &str) -> Result<(), FaultsError> {
    lab.act("keepalived", host, how, |host| {
        let pids = host.base.keepalived_pids();
        let pids = pids.ok_or_else(|| FaultsError("keepalived does not run".to_owned()))?;
        host.base.signal(&[(signal, pids.child)])
    })
}

/// Kills both processes, so that the addresses stay.
fn kill_keepalived(lab: &ClusterLab, host: usize) -> Result<(), FaultsError> {
    lab.act("keepalived", host, "kill", |host| {
        host.end_keepalived(|pids| {
            vec![("STOP", pids.parent), ("KILL", pids.child), ("KILL", pids.parent)]
        })
    })
}

fn stop_keepalived(lab: &ClusterLab, host: usize) -> Result<(), FaultsError> {
    lab.act("keepalived", host, "stop", |host| {
        host.end_keepalived(|pids| vec![("TERM", pids.parent)])
    })
}

fn start_dead_keepalived(lab: &ClusterLab) -> Result<(), FaultsError> {
    let dead: Vec<usize> =
        (0..HOSTS).filter(|host| lab.hosts[*host].base.keepalived_pids().is_none()).collect();
    dead.iter()
        .try_for_each(|host| lab.act("keepalived", *host, "start", ClusterHost::start_keepalived))
}

/// Compacts etcd through a member of another host.
fn compact(lab: &ClusterLab, cut_off: usize) -> Result<(), FaultsError> {
    lab.act("compaction", (cut_off + 1) % HOSTS, "compact", ClusterHost::compact_etcd)
}

/// Adds an address to the configuration of keepalived, or removes it, and lets keepalived read it.
fn edit(lab: &ClusterLab, host: usize, has_extra: bool) -> Result<(), FaultsError> {
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
fn with_finding(
    lab: &ClusterLab,
    host: usize,
    fail: impl FnOnce(&ClusterLab, usize) -> Result<(), FaultsError>,
) -> Result<(), FaultsError> {
    cut(lab, LabNetwork::Data, host, "cut")?;
    pause(UNTIL_TWO_PRIMARIES);
    observe(lab)?;
    lab.reporter().map_or(Ok(()), |reporter| fail(lab, reporter))
}

fn simulate(lab: &mut ClusterLab, host: usize, role: &str) -> Result<(), FaultsError> {
    let entry = |phase: &str| json!({ "how": role, "phase": phase });
    lab.journal.write("simulated", &entry("begin"))?;
    lab.simulated = Some(SimulatedNode::start(&lab.hosts[host], &lab.setup, role)?);
    lab.journal.write("simulated", &entry("done"))
}

fn simulated_act(
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
