// SPDX-License-Identifier: Apache-2.0
//! The table of all faults: on which hosts each can happen, how long it lasts, the acts that cause it, and the acts that
//! end it.

use std::sync::OnceLock;

use serde::Deserialize;

use crate::args::{LabKind, LabTable};
use crate::lab::network::{Disturbance, LabNetwork};
use crate::lab::simulated::SimulatedPart;
use crate::setup::ConfigEdit;

/// The faults of a lab.
pub fn faults(lab: LabKind) -> &'static [FaultKind] {
    static TABLES: [OnceLock<Vec<FaultKind>>; 3] = [const { OnceLock::new() }; 3];
    TABLES[lab as usize].get_or_init(|| {
        let table: LabTable<FaultKind> =
            toml::from_str(include_str!("fault_table.toml")).expect("the table is valid");
        table.rows(lab)
    })
}

/// One row of the table; the head of the file explains its columns.
#[derive(Debug, PartialEq, Eq, Deserialize)]
pub struct FaultKind {
    pub word: String,
    pub victims: Vec<FaultVictim>,
    pub seconds: u64,
    /// Follows other faults of a schedule in some seeds.
    #[serde(default)]
    pub is_extra: bool,
    #[serde(default)]
    pub findings: Vec<String>,
    pub begin: Vec<FaultAct>,
    pub recover: Vec<FaultAct>,
}

/// The host on which a fault happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultVictim {
    /// The host that holds the first instance.
    Primary,
    /// The first host that does not hold it.
    Backup,
    /// The host of the node that reports findings.
    Reporter,
    /// The etcd leader's host.
    Leader,
}

/// One act of the injector. Without another host, it concerns the host of the fault.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultAct {
    /// Waits so many milliseconds.
    Wait(u64),
    WaitForSecondPrimary,
    /// Another host holds the first instance.
    WaitForFailover,
    /// The host of the fault holds the first instance.
    WaitForReturn,
    Repeat(usize, Vec<FaultAct>),
    OnPrimary(Box<FaultAct>),
    OnNextHost(Box<FaultAct>),
    OnAllHosts(Box<FaultAct>),
    /// On the host of the node that reports findings; none without a reporter.
    OnReporter(Box<FaultAct>),
    Keepalived(KeepalivedAct),
    /// Writes the file of keepalived.
    Edit(ConfigEdit),
    /// `ip address add` or `del` of the last address of the first instance.
    Address(String),
    /// Ends the state that `Address` caused, if keepalived has not done so.
    RestoreAddress(String),
    Disturb(LabNetwork, Disturbance),
    Heal(LabNetwork, Disturbance),
    Etcd(ServiceAct),
    Vipwatch(ServiceAct),
    /// Begins or ends a silence of all instances.
    Silence(bool),
    #[serde(untagged)]
    Cluster(ClusterAct),
}

/// An act that only a lab with a cluster has.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClusterAct {
    /// Removes the history of etcd.
    Compact,
    Simulate(SimulatedPart),
    SilenceSimulated,
    StopSimulated,
    /// Whether the node has the first instance in a configured group.
    Group(bool),
    CreateRouter,
    ReleaseRouter,
    RemoveRouter,
    /// Overwrites the state file of the router. The first word is `wrong` if the second one differs from the kernel.
    StateFile(String, String),
    /// A second node with the name of the host's node, on the next host.
    StartTwin,
    StopTwin,
    /// Steps the node's clock to this many seconds after the machine's clock.
    Clock(i64),
}

/// An act on keepalived. The acts that end it wait for the end of both processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeepalivedAct {
    /// SIGTERM.
    Stop,
    /// SIGKILL to the parent: the VRRP child ends in an orderly way.
    KillParent,
    /// SIGKILL to both processes: the addresses stay.
    KillBoth,
    /// Starts it on all hosts on which it does not run.
    StartDead,
    /// SIGSTOP.
    FreezeChild,
    FreezeParent,
    /// SIGCONT.
    ContinueChild,
    ContinueParent,
    /// SIGKILL to the VRRP child; waits for the next one.
    KillChild,
    /// SIGSTOP to the parent, SIGKILL to the VRRP child.
    LoseChild,
    /// Continues a parent without a VRRP child; waits for its next child.
    ResumeParent,
    /// SIGHUP.
    Reload,
    /// The track script fails.
    FailScript,
    MendScript,
    /// The keepalived of the foreign host.
    StartForeign,
    StopForeign,
}

/// An act on a service of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ServiceAct {
    /// SIGSTOP.
    Freeze,
    /// SIGCONT.
    Continue,
    /// SIGKILL.
    Kill,
    /// SIGTERM.
    Stop,
    /// Starts it on all hosts on which it does not run.
    StartDead,
}
