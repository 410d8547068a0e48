// SPDX-License-Identifier: Apache-2.0
//! The acts on keepalived.

use serde_json::json;

use crate::LabResult;
use crate::fault_table::KeepalivedAct as Act;
use crate::lab::keepalived::KeepalivedPids;
use crate::lab::{FaultLab, wait_for};

/// Does an act on one host.
pub fn perform(lab: &FaultLab, act: Act, host: usize) -> LabResult {
    let on = &lab.hosts[host];
    match act {
        Act::Stop => end(lab, host, "stop", |pids| vec![("TERM", pids.parent)]),
        Act::KillParent => end(lab, host, "kill-parent", |pids| vec![("KILL", pids.parent)]),
        Act::KillBoth => end(lab, host, "kill", |pids| {
            vec![("STOP", pids.parent), ("KILL", pids.child), ("KILL", pids.parent)]
        }),
        Act::StartDead => {
            let mut dead = lab.hosts.iter().filter(|host| host.keepalived_pids().is_err());
            dead.try_for_each(|host| {
                lab.act("keepalived", host.index, "start", |host| lab.start_keepalived(host.index))
            })
        }
        Act::FreezeChild => signal(lab, host, "freeze", &[("STOP", on.pid("child")?)]),
        Act::FreezeParent => signal(lab, host, "freeze-parent", &[("STOP", on.pid("parent")?)]),
        Act::ContinueChild => signal(lab, host, "continue", &[("CONT", on.pid("child")?)]),
        Act::ContinueParent => signal(lab, host, "continue-parent", &[("CONT", on.pid("parent")?)]),
        Act::KillChild => {
            let before = on.pid("child")?;
            signal(lab, host, "kill-child", &[("KILL", before)])?;
            wait_for_child(lab, host, Some(before))
        }
        Act::LoseChild => {
            let KeepalivedPids { parent, child } = on.keepalived_pids()?;
            signal(lab, host, "lose-child", &[("STOP", parent), ("KILL", child)])?;
            on.wait_for_end("the VRRP child", &[child])
        }
        Act::ResumeParent => {
            signal(lab, host, "continue-parent", &[("CONT", on.pid("parent")?)])?;
            wait_for_child(lab, host, None)
        }
        Act::Reload => signal(lab, host, "reload", &[("HUP", on.pid("parent")?)]),
        Act::FailScript => Ok(std::fs::File::create(on.script_file()).map(drop)?),
        Act::MendScript => Ok(std::fs::remove_file(on.script_file())?),
        Act::StartForeign => lab.start_foreign(),
        Act::StopForeign => lab.foreign()?.end_service("parent", "TERM"),
    }
}

/// Sends signals to keepalived.
fn signal(lab: &FaultLab, host: usize, how: &str, signals: &[(&str, u32)]) -> LabResult {
    let names: Vec<&str> = signals.iter().map(|(name, _)| *name).collect();
    let details = json!({ "node": host, "signals": names });
    lab.act("keepalived", host, how, |host| {
        lab.journal.write("signal", &details)?;
        host.signal(signals)?;
        lab.journal.write("signalled", &details)
    })
}

/// Sends signals that end keepalived, and waits for the end of both processes.
fn end(
    lab: &FaultLab,
    host: usize,
    how: &str,
    signals: impl Fn(KeepalivedPids) -> Vec<(&'static str, u32)>,
) -> LabResult {
    let pids = lab.hosts[host].keepalived_pids()?;
    signal(lab, host, how, &signals(pids))?;
    lab.hosts[host].wait_for_end("keepalived", &[pids.parent, pids.child])?;
    lab.journal.write("keepalived-ended", &json!({ "node": host }))
}

/// Waits for another VRRP child than the one before.
fn wait_for_child(lab: &FaultLab, host: usize, before: Option<u32>) -> LabResult {
    let is_next = |pids: &KeepalivedPids| Some(pids.child) != before;
    wait_for("another VRRP child", || {
        Ok(lab.hosts[host].keepalived_pids().ok().filter(is_next).map(drop))
    })?;
    lab.journal.write("child-started", &json!({ "node": host }))
}
