// SPDX-License-Identifier: Apache-2.0
//! Causes the faults of a schedule and ends them. Each act is written to the log before and after it happens.

mod acts;

use std::time::{Duration, Instant};

use serde_json::json;

use crate::LabResult;
use crate::check::verdict::Strictness;
use crate::fault_table::{FaultKind, FaultVictim};
use crate::lab::{FaultLab, wait_for};
use crate::moment::pause;
use crate::schedule::FaultStep;
use crate::setup::PREFIX;

/// Limit of the wait for a finding with [`Strictness::Presence`].
const PATIENT_LIMIT: Duration = Duration::from_mins(1);
/// The longest wait of a cluster with [`Strictness::Presence`] that a fact ends.
const PATIENT_REST: Duration = Duration::from_secs(4);
/// The longest hold of a healthy lab with [`Strictness::Presence`]: each wrong finding has the time to open.
const PATIENT_HOLD: Duration = Duration::from_secs(8);
/// The time before the first fault: capture and processes are known, and a node reports findings.
const WARM_UP: Duration = Duration::from_secs(8);
/// The time after the last recovery in which the findings of nodes close; those of a cluster close sooner.
const COOL_DOWN: Duration = Duration::from_secs(45);
const CLUSTER_COOL_DOWN: Duration = Duration::from_secs(8);

/// Runs a schedule in a lab that has settled.
pub fn inject(lab: &mut FaultLab, steps: &[FaultStep], strictness: Strictness) -> LabResult {
    let is_cluster = lab.setup.cluster.is_some();
    // A run that waits for findings too, on a machine of unknown speed.
    let is_patient = strictness == Strictness::Presence;
    // The times of a cluster are shorter where facts end the wait.
    let is_healthy = lab.setup.shape.is_some();
    let wait = |exact: Duration| match (is_patient, is_cluster, is_healthy) {
        (true, true, _) => exact.min(PATIENT_REST),
        (true, false, true) => exact.min(PATIENT_HOLD),
        _ => exact,
    };
    if is_patient && is_cluster {
        wait_for("a node that reports findings", || Ok(lab.reporter()))?;
    }
    pause(wait(WARM_UP));
    for FaultStep { kind, victim, rest } in steps {
        let Some(host) = host_of(lab, *victim)? else {
            lab.journal.write("skipped", &json!({ "fault": kind.word }))?;
            continue;
        };
        let details = json!({ "fault": kind.word, "node": host });
        observe(lab)?;
        lab.journal.write("fault-begin", &details)?;
        acts::perform_all(lab, &kind.begin, host)?;
        lab.journal.write("fault-done", &details)?;
        let hold = Duration::from_secs(kind.seconds);
        // A fault that causes no finding must last: no finding may be opened.
        pause(if kind.findings.is_empty() && !is_healthy { hold } else { wait(hold) });
        if is_patient {
            wait_for_findings(lab, kind, host);
        }
        observe(lab)?;
        lab.journal.write("recover-begin", &details)?;
        acts::perform_all(lab, &kind.recover, host)?;
        lab.journal.write("recover-done", &details)?;
        lab.wait_until_settled()?;
        pause(wait(*rest));
    }
    let cool_down = if is_cluster || is_healthy { CLUSTER_COOL_DOWN } else { COOL_DOWN };
    pause(if is_patient { PATIENT_REST } else { cool_down });
    lab.finish()
}

/// Writes the leader of etcd and the reporter to the log.
fn observe(lab: &FaultLab) -> LabResult {
    if lab.setup.cluster.is_none() {
        return Ok(());
    }
    let (leader, reporter) = (lab.leader(), lab.reporter());
    lab.journal.write("observed", &json!({ "leader": leader, "reporter": reporter }))
}

/// The host of a fault; `None` if no host has the role.
fn host_of(lab: &FaultLab, victim: FaultVictim) -> LabResult<Option<usize>> {
    let primary = lab.primary()?;
    Ok(match victim {
        FaultVictim::Primary => primary,
        FaultVictim::Backup => (0..lab.hosts.len()).find(|host| Some(*host) != primary),
        FaultVictim::Reporter => lab.reporter(),
        FaultVictim::Leader => lab.leader(),
    })
}

/// Waits for the findings of a fault: those of a cluster are in etcd, those of a node in its events.
fn wait_for_findings(lab: &FaultLab, kind: &FaultKind, host: usize) {
    let key = format!("{PREFIX}finding/");
    let are_open = || {
        if lab.setup.cluster.is_none() {
            return kind.findings.iter().all(|name| lab.hosts[host].has_opened(name));
        }
        lab.hosts.iter().any(|host| {
            let text = host.etcd().run(&["get", "--prefix", &key, "--print-value-only"]);
            text.is_ok_and(|text| kind.findings.iter().all(|name| text.contains(name)))
        })
    };
    let end = Instant::now() + PATIENT_LIMIT;
    let is_awaited = !kind.findings.is_empty() && lab.setup.unobserved != Some(host);
    while is_awaited && !are_open() && Instant::now() < end {
        pause(Duration::from_millis(200));
    }
}
