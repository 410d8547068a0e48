// SPDX-License-Identifier: Apache-2.0
//! The table of all faults: on which hosts each can happen, how long it lasts, the acts that cause it, and the acts that
//! end it. docs/reference/faults.md explains the words.

use crate::args::LabKind;
use crate::lab::network::{DATA, Disturbance, LabNetwork, MANAGEMENT};
use crate::lab::simulated::SimulatedPart;
use crate::setup::ConfigEdit;

/// The host on which a fault happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultVictim {
    /// The host that holds the first instance.
    Primary,
    /// The first host that does not hold it.
    Backup,
    /// The host of the node that reports findings.
    Reporter,
    /// The host of the leader of etcd.
    Leader,
}

/// One act of the injector. Without another host, it concerns the host of the fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultAct {
    /// Waits so many milliseconds.
    Wait(u64),
    WaitForSecondPrimary,
    Repeat(usize, &'static [FaultAct]),
    OnPrimary(&'static FaultAct),
    OnNextHost(&'static FaultAct),
    OnAllHosts(&'static FaultAct),
    /// On the host of the node that reports findings; none without a reporter.
    OnReporter(&'static FaultAct),
    Keepalived(KeepalivedAct),
    /// `ip address add` or `del` of the last address of the first instance.
    Address(&'static str),
    /// Ends the state that `Address` caused, if keepalived has not done so.
    RestoreAddress(&'static str),
    Disturb(&'static LabNetwork, Disturbance),
    Heal(&'static LabNetwork, Disturbance),
    Etcd(ServiceAct),
    Vipwatch(ServiceAct),
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
    StateFile(&'static str, &'static str),
    /// A second node with the name of the host's node, on the next host.
    StartTwin,
    StopTwin,
    /// Steps the clock of the node to so many seconds after that of the machine.
    Clock(i64),
}

/// An act on keepalived. The acts that end it wait for the end of both processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
    /// Writes the file.
    Edit(ConfigEdit),
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

/// One row of the table.
#[derive(Debug, PartialEq, Eq)]
pub struct FaultKind {
    pub word: &'static str,
    pub lab: LabKind,
    /// The hosts on which the fault can happen.
    pub victims: &'static [FaultVictim],
    /// How many seconds the fault lasts: longer than the deadline of each finding that it causes.
    pub seconds: u64,
    /// Findings that a run without deadlines waits for.
    pub findings: &'static [&'static str],
    pub begin: &'static [FaultAct],
    pub recover: &'static [FaultAct],
}

macro_rules! faults {
    ($($word:literal $lab:ident [$($victim:ident)*] $seconds:literal [$($finding:literal)*]
        [$($begin:expr),*] [$($recover:expr),*];)+) => {
        &[$(FaultKind {
            word: $word,
            lab: LabKind::$lab,
            victims: &[$(FaultVictim::$victim),*],
            seconds: $seconds,
            findings: &[$($finding),*],
            begin: &[$($begin),*],
            recover: &[$($recover),*],
        },)+]
    };
}

use Disturbance::{Cut, Down, NoCarrier, ReceiveLoss, SendLoss};
use FaultAct::{
    Address, Clock, Compact, CreateRouter, Disturb, Etcd, Group, Heal, Keepalived, OnAllHosts,
    OnNextHost, OnPrimary, OnReporter, ReleaseRouter, RemoveRouter, Repeat, RestoreAddress,
    SilenceSimulated, Simulate, StartTwin, StateFile, StopSimulated, StopTwin, Vipwatch, Wait,
    WaitForSecondPrimary,
};
use ServiceAct::{Continue, Freeze, Kill, StartDead, Stop};
use SimulatedPart::{Backup, Primary, TwoBackups};

const STOP: FaultAct = Keepalived(KeepalivedAct::Stop);
const STOP_ALL: FaultAct = OnAllHosts(&STOP);
const START: FaultAct = Keepalived(KeepalivedAct::StartDead);
const RELOAD: FaultAct = Keepalived(KeepalivedAct::Reload);
const PLAIN: FaultAct = edit(None, false);

const fn edit(priority: Option<u8>, has_extra_address: bool) -> FaultAct {
    Keepalived(KeepalivedAct::Edit(ConfigEdit { priority, has_extra_address }))
}

const HOUR: i64 = 3600;

/// All faults. ORDER: the schedule of a seed depends on the order within each lab.
#[rustfmt::skip]
pub const FAULTS: &[FaultKind] = faults! {
    "stop" Nodes [Primary Backup] 11 ["keepalived-gone"] [STOP] [START];
    "stop-all" Nodes [Primary Backup] 16 ["keepalived-gone"] [STOP_ALL] [START];
    "kill-parent" Nodes [Primary Backup] 11 ["keepalived-gone"] [Keepalived(KeepalivedAct::KillParent)] [START];
    "kill-both" Nodes [Primary Backup] 11 [] [Keepalived(KeepalivedAct::KillBoth)] [START];
    "kill-child" Nodes [Primary Backup] 2 [] [Keepalived(KeepalivedAct::KillChild)] [];
    // Each child lives so long that the node notices its start.
    "crash-loop" Nodes [Primary Backup] 18 ["keepalived-crash-loop"] [Repeat(4, &[Keepalived(KeepalivedAct::KillChild), Wait(1500)])] [];
    "lose-child" Nodes [Primary Backup] 18 ["keepalived-vrrp-child-missing"] [Keepalived(KeepalivedAct::LoseChild)] [Keepalived(KeepalivedAct::ResumeParent)];
    "freeze-child" Nodes [Primary Backup] 20 [] [Keepalived(KeepalivedAct::FreezeChild)] [Keepalived(KeepalivedAct::ContinueChild)];
    "freeze-parent" Nodes [Primary Backup] 20 ["keepalived-parent-frozen"] [Keepalived(KeepalivedAct::FreezeParent)]
        [Keepalived(KeepalivedAct::ContinueParent)];
    "link-down" Nodes [Primary Backup] 11 ["link-fault"] [Disturb(&DATA, Down)] [Heal(&DATA, Down)];
    "carrier-loss" Nodes [Primary Backup] 11 ["link-fault"] [Disturb(&DATA, NoCarrier)] [Heal(&DATA, NoCarrier)];
    "one-way-loss" Nodes [Backup] 16 [] [Disturb(&DATA, ReceiveLoss)] [Heal(&DATA, ReceiveLoss)];
    "partition" Nodes [Primary Backup] 11 [] [Disturb(&DATA, Cut)] [Heal(&DATA, Cut)];
    "priority-drop" Nodes [Primary] 11 [] [Keepalived(KeepalivedAct::FailScript)] [Keepalived(KeepalivedAct::MendScript)];
    "address-removed" Nodes [Primary] 11 [] [Address("del")] [RestoreAddress("add")];
    "address-added" Nodes [Backup] 11 [] [Address("add")] [RestoreAddress("del")];
    "edit-priority" Nodes [Primary Backup] 11 [] [edit(Some(60), false), RELOAD] [PLAIN, RELOAD];
    "edit-addresses" Nodes [Primary Backup] 18 [] [edit(None, true), RELOAD] [PLAIN, RELOAD];
    "edit-only" Nodes [Primary Backup] 20 ["keepalived-reload-pending"] [edit(Some(61), false)] [PLAIN];
    "vrid-clash" Nodes [Primary Backup] 16 ["vrid-clash-on-link"] [Keepalived(KeepalivedAct::StartForeign)] [Keepalived(KeepalivedAct::StopForeign)];

    "kill-etcd-leader" Cluster [Leader] 8 [] [Etcd(Kill)] [Etcd(StartDead)];
    "freeze-etcd-leader" Cluster [Leader] 10 [] [Etcd(Freeze)] [Etcd(Continue)];
    "quorum-loss" Cluster [Leader] 10 []
        [Etcd(Kill), OnNextHost(&Etcd(Kill))] [Etcd(StartDead)];
    "quorum-loss-with-failover" Cluster [Leader] 8 []
        [Etcd(Kill), OnNextHost(&Etcd(Kill)), Wait(4000),
            OnPrimary(&STOP)]
        [Etcd(StartDead), Wait(8000), START];
    "cut-from-etcd" Cluster [Primary Backup Reporter Leader] 20 ["cluster-node-lost"]
        [Disturb(&MANAGEMENT, Cut)] [Heal(&MANAGEMENT, Cut)];
    "data-partition" Cluster [Primary Backup] 12 ["cluster-two-primaries"] [Disturb(&DATA, Cut)] [Heal(&DATA, Cut)];
    "cut-from-all" Cluster [Primary Backup Reporter] 20 ["cluster-node-lost"]
        [Disturb(&MANAGEMENT, Cut), Disturb(&DATA, Cut)] [Heal(&DATA, Cut), Heal(&MANAGEMENT, Cut)];
    "etcd-receive-loss" Cluster [Backup Reporter Leader] 20 ["cluster-node-lost"]
        [Disturb(&MANAGEMENT, ReceiveLoss)] [Heal(&MANAGEMENT, ReceiveLoss)];
    "etcd-send-loss" Cluster [Primary Reporter Leader] 20 ["cluster-node-lost"]
        [Disturb(&MANAGEMENT, SendLoss)] [Heal(&MANAGEMENT, SendLoss)];
    "data-receive-loss" Cluster [Backup] 12 ["cluster-two-primaries"]
        [Disturb(&DATA, ReceiveLoss)] [Heal(&DATA, ReceiveLoss)];
    "data-send-loss" Cluster [Primary] 12 [] [Disturb(&DATA, SendLoss)] [Heal(&DATA, SendLoss)];
    "freeze-keepalived" Cluster [Primary] 12 ["cluster-two-primaries"]
        [Keepalived(KeepalivedAct::FreezeChild)] [Keepalived(KeepalivedAct::ContinueChild)];
    "kill-keepalived" Cluster [Primary] 12 ["cluster-two-primaries"] [Keepalived(KeepalivedAct::KillBoth)] [START];
    "stop-keepalived" Cluster [Primary Backup] 8 [] [STOP] [START];
    "stop-all-keepalived" Cluster [Primary] 13 ["cluster-no-primary"]
        [STOP_ALL] [START];
    "freeze-vipwatch" Cluster [Primary Backup Reporter] 16 ["cluster-node-lost"]
        [Vipwatch(Freeze)] [Vipwatch(Continue)];
    "kill-vipwatch" Cluster [Primary Backup Reporter] 16 ["cluster-node-lost"]
        [Vipwatch(Kill)] [Vipwatch(StartDead)];
    "restart-vipwatch" Cluster [Primary Reporter] 6 [] [Vipwatch(Kill), Vipwatch(StartDead)] [];
    "stop-vipwatch" Cluster [Primary Backup Reporter] 10 [] [Vipwatch(Stop)] [Vipwatch(StartDead)];
    "compaction-while-cut" Cluster [Backup Reporter] 14 ["cluster-node-lost"]
        [Disturb(&MANAGEMENT, Cut), OnPrimary(&STOP), Wait(6000), OnNextHost(&Compact)]
        [Heal(&MANAGEMENT, Cut), START];
    "compaction-while-frozen" Cluster [Backup Reporter] 12 ["cluster-node-lost"]
        [Vipwatch(Freeze), Wait(4000), OnNextHost(&Compact)]
        [Vipwatch(Continue)];
    "edit-addresses" Cluster [Backup] 12 ["cluster-different-configuration"]
        [edit(None, true), RELOAD] [PLAIN, RELOAD];
    "link-down" Cluster [Primary Backup] 11 [] [Disturb(&DATA, Down)] [Heal(&DATA, Down)];
    "flap" Cluster [Primary] 4 []
        [Repeat(3, &[STOP, Wait(5500), START, Wait(5500)])] [];
    // The reporter fails when the finding of two primaries is open.
    "kill-reporter-with-finding" Cluster [Primary] 12 []
        [Disturb(&DATA, Cut), Wait(11_000), OnReporter(&Vipwatch(Kill))]
        [Heal(&DATA, Cut), Vipwatch(StartDead)];
    "cut-reporter-with-finding" Cluster [Primary] 14 []
        [Disturb(&DATA, Cut), Wait(11_000), OnReporter(&Disturb(&MANAGEMENT, Cut))]
        [Heal(&DATA, Cut), OnAllHosts(&Heal(&MANAGEMENT, Cut))];
    "simulated-primary" Cluster [Primary] 8 ["cluster-two-primaries"] [Simulate(Primary)] [StopSimulated];
    "simulated-lost" Cluster [Primary] 10 ["cluster-node-lost"]
        [Simulate(Backup), Wait(3000), SilenceSimulated] [StopSimulated];
    "simulated-twice" Cluster [Primary] 9 ["cluster-ambiguous-group"]
        [Simulate(TwoBackups)] [StopSimulated];
    "group-on-one-node" Cluster [Primary Backup] 11 ["cluster-ambiguous-group"] [Group(true)] [Group(false)];
    // The role of a new router is published within five seconds; it is audited, and its finding is closed, within 15.
    "state-file-overwritten" Cluster [Primary Backup] 22 ["cluster-disagreement"]
        [CreateRouter, Wait(5000), StateFile("wrong", "backup")] [StateFile("right", "primary"), Wait(15_000), RemoveRouter];
    "state-file-behind" Cluster [Primary Backup] 22 ["cluster-disagreement"]
        [CreateRouter, Wait(5000), ReleaseRouter] [StateFile("right", "backup"), Wait(15_000), RemoveRouter];
    "same-name" Cluster [Primary Backup Reporter] 16 [] [StartTwin] [StopTwin];
    // The finding is not open yet at the second step: its condition has to last longer.
    "clock-step" Cluster [Reporter Primary] 12 ["cluster-two-primaries"]
        [Clock(HOUR), Wait(2000), Disturb(&DATA, Cut), WaitForSecondPrimary, Wait(1000), Clock(-24 * HOUR)]
        [Heal(&DATA, Cut), Wait(4000), Clock(0)];
    "no-primary-with-lost-node" Cluster [Primary Backup] 18 ["cluster-no-primary"]
        [Vipwatch(Kill), Wait(6000), STOP_ALL]
        [START, Vipwatch(StartDead)];
};
