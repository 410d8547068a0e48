// SPDX-License-Identifier: Apache-2.0
//! Causes the faults of a schedule and ends them. Each act is written to the log before and after it happens.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::FaultsError;
use crate::lab::host::KeepalivedPids;
use crate::lab::{FaultLab, run, wait_for};
use crate::moment::pause;
use crate::schedule::{FaultKind, FaultStep, FaultVictim};
use crate::setup::{ConfigEdit, LINK};

/// Whether the run waits for the times of the schedule only, or also for findings, on a machine of unknown speed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    Exact,
    Patient,
}

/// Limit of the wait for a finding with [`Pace::Patient`].
const PATIENT_LIMIT: Duration = Duration::from_mins(1);

/// The time before the first fault: capture and processes are known.
const WARM_UP: Duration = Duration::from_secs(8);

/// The time after the last recovery, in which findings close.
pub const COOL_DOWN: Duration = Duration::from_secs(45);

/// A VRRP child of a crash loop lives so long: the node notices a start within one second.
const CHILD_LIFE: Duration = Duration::from_millis(1500);

/// Runs a schedule in a lab that has settled.
pub fn inject(lab: &mut FaultLab, steps: &[FaultStep], pace: Pace) -> Result<(), FaultsError> {
    pause(WARM_UP);
    for step in steps {
        let fault = step.kind.word();
        let Some(node) = victim(lab, step.victim)? else {
            lab.journal.write("skipped", &json!({ "fault": fault }))?;
            continue;
        };
        let details = json!({ "fault": fault, "node": node });
        lab.journal.write("fault-begin", &details)?;
        begin(lab, step.kind, node)?;
        lab.journal.write("fault-done", &details)?;
        pause(step.kind.hold());
        if pace == Pace::Patient {
            wait_for_finding(lab, step.kind, node);
        }
        lab.journal.write("recover-begin", &details)?;
        recover(lab, step.kind, node)?;
        lab.journal.write("recover-done", &details)?;
        settle(lab)?;
        pause(step.rest);
    }
    pause(if pace == Pace::Patient { Duration::from_secs(2) } else { COOL_DOWN });
    lab.collect()
}

/// Waits until the lab has settled, and writes the result to the log.
pub fn settle(lab: &FaultLab) -> Result<(), FaultsError> {
    let is_settled = lab.wait_until_settled()?;
    lab.journal.write("settled", &json!({ "is_settled": is_settled }))
}

/// The node of a fault; `None` if no node has the role.
fn victim(lab: &FaultLab, victim: FaultVictim) -> Result<Option<usize>, FaultsError> {
    let primary = lab.primary()?;
    Ok(match victim {
        FaultVictim::Primary => primary,
        FaultVictim::Backup => (0..lab.hosts.len()).find(|node| Some(*node) != primary),
    })
}

/// The finding that the victim of a fault must have, for [`Pace::Patient`].
fn finding(kind: FaultKind) -> Option<&'static str> {
    match kind {
        FaultKind::Stop | FaultKind::StopAll | FaultKind::KillParent => Some("keepalived-gone"),
        FaultKind::FreezeParent => Some("keepalived-parent-frozen"),
        FaultKind::LoseChild => Some("keepalived-vrrp-child-missing"),
        FaultKind::CrashLoop => Some("keepalived-crash-loop"),
        FaultKind::LinkDown | FaultKind::CarrierLoss => Some("link-fault"),
        FaultKind::EditOnly => Some("keepalived-reload-pending"),
        FaultKind::VridClash => Some("vrid-clash-on-link"),
        _ => None,
    }
}

fn wait_for_finding(lab: &FaultLab, kind: FaultKind, node: usize) {
    let Some(name) = finding(kind) else { return };
    let end = Instant::now() + PATIENT_LIMIT;
    while !lab.hosts[node].has_opened(name) && Instant::now() < end {
        pause(Duration::from_millis(100));
    }
}

fn pids(lab: &FaultLab, node: usize) -> Result<KeepalivedPids, FaultsError> {
    let pids = lab.hosts[node].keepalived_pids();
    pids.ok_or_else(|| FaultsError(format!("keepalived does not run on node {node}")))
}

/// Sends signals, with an entry in the log before and after.
fn signal(lab: &FaultLab, node: usize, signals: &[(&str, u32)]) -> Result<(), FaultsError> {
    let names: Vec<&str> = signals.iter().map(|(name, _)| *name).collect();
    let details = json!({ "node": node, "signals": names });
    lab.journal.write("signal", &details)?;
    lab.hosts[node].signal(signals)?;
    lab.journal.write("signalled", &details)
}

fn begin(lab: &mut FaultLab, kind: FaultKind, node: usize) -> Result<(), FaultsError> {
    let host = &lab.hosts[node];
    match kind {
        FaultKind::Stop => stop(lab, node),
        FaultKind::StopAll => (0..lab.hosts.len()).try_for_each(|node| stop(lab, node)),
        FaultKind::KillParent => end_with(lab, node, |pids| vec![("KILL", pids.parent)]),
        FaultKind::KillBoth => end_with(lab, node, |pids| {
            vec![("STOP", pids.parent), ("KILL", pids.child), ("KILL", pids.parent)]
        }),
        FaultKind::KillChild => kill_child(lab, node),
        FaultKind::CrashLoop => (0..4).try_for_each(|_| {
            kill_child(lab, node)?;
            pause(CHILD_LIFE);
            Ok(())
        }),
        FaultKind::LoseChild => lose_child(lab, node),
        FaultKind::FreezeChild => signal(lab, node, &[("STOP", pids(lab, node)?.child)]),
        FaultKind::FreezeParent => signal(lab, node, &[("STOP", pids(lab, node)?.parent)]),
        FaultKind::LinkDown => host.run(&format!("ip link set {LINK} down")).map(drop),
        FaultKind::CarrierLoss => run("ip", &format!("link set {} down", host.port())).map(drop),
        FaultKind::OneWayLoss => host.block_received(),
        FaultKind::Partition => run("ip", &format!("link set {} nomaster", host.port())).map(drop),
        FaultKind::PriorityDrop => Ok(std::fs::File::create(host.script_file()).map(drop)?),
        FaultKind::AddressRemoved => address(lab, node, "del"),
        FaultKind::AddressAdded => address(lab, node, "add"),
        FaultKind::EditPriority => {
            lab.configure(node, ConfigEdit { priority: Some(60), has_extra_address: false })?;
            reload(lab, node)
        }
        FaultKind::EditAddresses => {
            lab.configure(node, ConfigEdit { priority: None, has_extra_address: true })?;
            reload(lab, node)
        }
        FaultKind::EditOnly => {
            lab.configure(node, ConfigEdit { priority: Some(61), has_extra_address: false })
        }
        FaultKind::VridClash => lab.start_foreign(),
    }
}

fn recover(lab: &mut FaultLab, kind: FaultKind, node: usize) -> Result<(), FaultsError> {
    let port = lab.hosts[node].port();
    match kind {
        FaultKind::Stop | FaultKind::KillParent | FaultKind::KillBoth => lab.start_keepalived(node),
        FaultKind::StopAll => (0..lab.hosts.len()).try_for_each(|node| lab.start_keepalived(node)),
        FaultKind::KillChild | FaultKind::CrashLoop => Ok(()),
        FaultKind::LoseChild => resume_parent(lab, node),
        FaultKind::FreezeChild => signal(lab, node, &[("CONT", pids(lab, node)?.child)]),
        FaultKind::FreezeParent => signal(lab, node, &[("CONT", pids(lab, node)?.parent)]),
        FaultKind::LinkDown => lab.hosts[node].link_up(&lab.setup),
        FaultKind::CarrierLoss => run("ip", &format!("link set {port} up")).map(drop),
        FaultKind::OneWayLoss => lab.hosts[node].unblock_received(),
        FaultKind::Partition => run("ip", &format!("link set {port} master br0")).map(drop),
        FaultKind::PriorityDrop => Ok(std::fs::remove_file(lab.hosts[node].script_file())?),
        FaultKind::AddressRemoved => restore_address(lab, node, "add"),
        FaultKind::AddressAdded => restore_address(lab, node, "del"),
        FaultKind::EditPriority | FaultKind::EditAddresses => {
            lab.configure(node, ConfigEdit::default())?;
            reload(lab, node)
        }
        FaultKind::EditOnly => lab.configure(node, ConfigEdit::default()),
        FaultKind::VridClash => {
            let foreign = &lab.foreign;
            let pids = foreign.keepalived_pids();
            let pids =
                pids.ok_or_else(|| FaultsError("the foreign keepalived is gone".to_owned()))?;
            foreign.signal(&[("TERM", pids.parent)])?;
            wait_for("the end of the foreign keepalived", || {
                Ok((!foreign.is_alive(pids.parent)).then_some(()))
            })
        }
    }
}

fn stop(lab: &FaultLab, node: usize) -> Result<(), FaultsError> {
    end_with(lab, node, |pids| vec![("TERM", pids.parent)])
}

/// Sends signals that end keepalived, and waits for the end of both processes.
fn end_with(
    lab: &FaultLab,
    node: usize,
    signals: impl Fn(KeepalivedPids) -> Vec<(&'static str, u32)>,
) -> Result<(), FaultsError> {
    let pids = pids(lab, node)?;
    signal(lab, node, &signals(pids))?;
    let host = &lab.hosts[node];
    wait_for("the end of keepalived", || {
        Ok((!host.is_alive(pids.parent) && !host.is_alive(pids.child)).then_some(()))
    })?;
    lab.journal.write("keepalived-ended", &json!({ "node": node }))
}

/// Kills the VRRP child and waits for the next one.
fn kill_child(lab: &FaultLab, node: usize) -> Result<(), FaultsError> {
    let before = pids(lab, node)?;
    signal(lab, node, &[("KILL", before.child)])?;
    let host = &lab.hosts[node];
    wait_for("another VRRP child", || {
        Ok(host.keepalived_pids().filter(|pids| pids.child != before.child).map(drop))
    })?;
    lab.journal.write("child-started", &json!({ "node": node }))
}

/// Stops the parent and kills the VRRP child.
fn lose_child(lab: &FaultLab, node: usize) -> Result<(), FaultsError> {
    let KeepalivedPids { parent, child } = pids(lab, node)?;
    signal(lab, node, &[("STOP", parent), ("KILL", child)])?;
    wait_for("the end of the child", || Ok((!lab.hosts[node].is_alive(child)).then_some(())))
}

/// Continues a parent without a VRRP child, and waits for its next child.
fn resume_parent(lab: &FaultLab, node: usize) -> Result<(), FaultsError> {
    let host = &lab.hosts[node];
    let text = std::fs::read_to_string(lab.directory.join(format!("node{node}/parent.pid")))?;
    signal(lab, node, &[("CONT", text.trim().parse()?)])?;
    wait_for("another VRRP child", || Ok(host.keepalived_pids().map(drop)))?;
    lab.journal.write("child-started", &json!({ "node": node }))
}

fn reload(lab: &FaultLab, node: usize) -> Result<(), FaultsError> {
    signal(lab, node, &[("HUP", pids(lab, node)?.parent)])
}

/// Adds or removes the last address of the first instance.
fn address(lab: &FaultLab, node: usize, act: &str) -> Result<(), FaultsError> {
    let addresses = lab.setup.addresses(0);
    let (link, last) = (lab.setup.address_link(0), &addresses[addresses.len() - 1]);
    let details: Value = json!({ "node": node, "how": act });
    lab.journal.write("address", &details)?;
    let command = format!("ip address {act} {last} dev {link}");
    let result = lab.hosts[node].run(&command);
    lab.journal.write("address-done", &details)?;
    // keepalived may have done the same already.
    result.map(drop).or_else(|error| if error.0.contains("exit") { Ok(()) } else { Err(error) })
}

/// Ends the state that [`address`] has caused, if keepalived has not done so.
fn restore_address(lab: &FaultLab, node: usize, act: &str) -> Result<(), FaultsError> {
    let all = lab.setup.addresses(0);
    let held = lab.held(0)?[node];
    // With one address, keepalived's own state decides: a primary that has lost its address has it back already or gave
    // up its role.
    let is_partial = held > 0 && held < all.len();
    let is_left =
        act == "del" && held > 0 && lab.held(0)?.iter().filter(|held| **held > 0).count() > 1;
    if is_partial || is_left { address(lab, node, act) } else { Ok(()) }
}
