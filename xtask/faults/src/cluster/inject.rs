// SPDX-License-Identifier: Apache-2.0
//! Causes the faults of a schedule and ends them. Each act is written to the log before and after it happens.

mod acts;

use std::time::{Duration, Instant};

use serde_json::json;

use self::acts::{
    compact, cut, edit, end_vipwatch, heal, keepalived, kill_etcd, kill_keepalived, lose_quorum,
    next, primary, set_clock, signal, simulate, simulated_act, start_dead_keepalived,
    start_dead_members, state_file_right, state_file_wrong, stop_keepalived, with_finding,
};
use super::lab::ClusterLab;
use super::lab::cluster_host::{ClusterHost, LabNetwork};
use super::lab::simulated::SimulatedPart;
use super::schedule::{ClusterFault, ClusterStep, ClusterVictim};
use super::setup::{HOSTS, PREFIX, node_name};
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
/// Seconds of the steps of a clock.
const HOUR: i64 = 3600;
const DAY: i64 = 24 * HOUR;
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
        ClusterFault::StopAllKeepalived => stop_all_keepalived(lab),
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
        ClusterFault::SimulatedPrimary => simulate(lab, host, SimulatedPart::Primary),
        ClusterFault::SimulatedLost => {
            simulate(lab, host, SimulatedPart::Backup)?;
            pause(Duration::from_secs(3));
            simulated_act(lab, "silent", |_, node| {
                node.fall_silent();
                Ok(())
            })
        }
        ClusterFault::SimulatedTwice => simulate(lab, host, SimulatedPart::TwoBackups),
        ClusterFault::GroupOnOneNode => {
            lab.act("group", host, "set", |host| host.set_group(&lab.setup, true))
        }
        ClusterFault::StateFileOverwritten => {
            state_file_wrong(lab, host, "state-file", "wrong", |host| host.write_state("backup"))
        }
        ClusterFault::StateFileBehind => {
            state_file_wrong(lab, host, "router", "release", ClusterHost::release_router)
        }
        ClusterFault::SameName => lab.act("twin", next(host), "start", |other| {
            other.start_twin(&lab.setup, node_name(host))
        }),
        ClusterFault::ClockStep => {
            set_clock(lab, host, HOUR)?;
            pause(Duration::from_secs(2));
            cut(lab, LabNetwork::Data, host, "cut")?;
            wait_for("a second primary", || {
                let holders = lab.held(0)?.iter().filter(|held| **held > 0).count();
                Ok((holders >= 2).then_some(()))
            })?;
            // The finding is not open yet: its condition has to last longer.
            pause(Duration::from_secs(1));
            set_clock(lab, host, -DAY)
        }
        ClusterFault::NoPrimaryWithLostNode => {
            end_vipwatch(lab, host, "kill")?;
            pause(Duration::from_secs(6));
            stop_all_keepalived(lab)
        }
    }
}

fn stop_all_keepalived(lab: &ClusterLab) -> Result<(), FaultsError> {
    (0..HOSTS).try_for_each(|host| stop_keepalived(lab, host))
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
        ClusterFault::GroupOnOneNode => {
            lab.act("group", host, "remove", |host| host.set_group(&lab.setup, false))
        }
        ClusterFault::StateFileOverwritten => state_file_right(lab, host, "primary"),
        ClusterFault::StateFileBehind => state_file_right(lab, host, "backup"),
        ClusterFault::SameName => {
            lab.act("twin", next(host), "stop", |other| other.end_service("twin", "TERM"))
        }
        ClusterFault::ClockStep => {
            heal(lab, LabNetwork::Data, host, fault)?;
            pause(Duration::from_secs(4));
            set_clock(lab, host, 0)
        }
        ClusterFault::NoPrimaryWithLostNode => {
            start_dead_keepalived(lab)?;
            lab.start_vipwatch(host)
        }
        ClusterFault::SimulatedPrimary
        | ClusterFault::SimulatedLost
        | ClusterFault::SimulatedTwice => {
            simulated_act(lab, "stop", |host, node| node.stop(host))?;
            lab.simulated = None;
            Ok(())
        }
    }
}
