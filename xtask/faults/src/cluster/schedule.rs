// SPDX-License-Identifier: Apache-2.0
//! The faults of one seed, in their order.

use std::time::Duration;

use crate::FaultsError;
use crate::random::SeededRandom;

/// The host on which a fault happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClusterVictim {
    /// The host that holds the first instance.
    Primary,
    /// The first host that does not hold it.
    Backup,
    /// The host of the node that reports findings.
    Reporter,
    /// The host of the leader of etcd.
    Leader,
}

/// One step of a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClusterStep {
    pub fault: ClusterFault,
    pub victim: ClusterVictim,
    /// The time between the end of the recovery and the next fault.
    pub rest: Duration,
}

/// Declares the faults with their words, the hosts they can happen on, and the seconds that they last.
macro_rules! faults {
    ($($(#[doc = $text:literal])+ $name:ident $word:literal [$($victim:ident),+] $hold:literal [$($finding:literal),*];)+) => {
        /// A kind of fault.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum ClusterFault {
            $($(#[doc = $text])+ $name,)+
        }

        impl ClusterFault {
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            pub fn word(self) -> &'static str {
                match self {
                    $(Self::$name => $word,)+
                }
            }

            /// The hosts on which the fault can happen.
            fn victims(self) -> &'static [ClusterVictim] {
                match self {
                    $(Self::$name => &[$(ClusterVictim::$victim),+],)+
                }
            }

            /// How long the fault lasts: longer than the deadline of each finding that it causes.
            pub fn hold(self) -> Duration {
                Duration::from_secs(match self {
                    $(Self::$name => $hold,)+
                })
            }

            /// Findings that a run without deadlines waits for.
            pub fn findings(self) -> &'static [&'static str] {
                match self {
                    $(Self::$name => &[$($finding),*],)+
                }
            }
        }
    };
}

faults! {
    /// SIGKILL to the leader of etcd.
    KillLeader "kill-etcd-leader" [Leader] 8 [];
    /// SIGSTOP to the leader of etcd.
    FreezeLeader "freeze-etcd-leader" [Leader] 10 [];
    /// SIGKILL to two members of etcd, the leader among them.
    QuorumLoss "quorum-loss" [Leader] 10 [];
    /// As before; meanwhile keepalived stops on the primary.
    QuorumLossWithFailover "quorum-loss-with-failover" [Leader] 8 [];
    /// The host leaves the management network.
    CutFromEtcd "cut-from-etcd" [Primary, Backup, Reporter, Leader] 20 ["cluster-node-lost"];
    /// The host leaves the data network.
    DataPartition "data-partition" [Primary, Backup] 12 ["cluster-two-primaries"];
    /// The host leaves both networks.
    CutFromAll "cut-from-all" [Primary, Backup, Reporter] 20 ["cluster-node-lost"];
    /// The host receives nothing in the management network.
    EtcdReceiveLoss "etcd-receive-loss" [Backup, Reporter, Leader] 20 ["cluster-node-lost"];
    /// The host sends nothing in the management network.
    EtcdSendLoss "etcd-send-loss" [Primary, Reporter, Leader] 20 ["cluster-node-lost"];
    /// The host receives nothing in the data network.
    DataReceiveLoss "data-receive-loss" [Backup] 12 ["cluster-two-primaries"];
    /// The host sends nothing in the data network.
    DataSendLoss "data-send-loss" [Primary] 12 [];
    /// SIGSTOP to keepalived's VRRP process: the addresses stay.
    FreezeKeepalived "freeze-keepalived" [Primary] 12 ["cluster-two-primaries"];
    /// SIGKILL to both processes of keepalived: the addresses stay.
    KillKeepalived "kill-keepalived" [Primary] 12 ["cluster-two-primaries"];
    /// SIGTERM to keepalived.
    StopKeepalived "stop-keepalived" [Primary, Backup] 8 [];
    /// SIGTERM to keepalived on all hosts.
    StopAllKeepalived "stop-all-keepalived" [Primary] 13 ["cluster-no-primary"];
    /// SIGSTOP to the node for longer than its lease.
    FreezeVipwatch "freeze-vipwatch" [Primary, Backup, Reporter] 16 ["cluster-node-lost"];
    /// SIGKILL to the node.
    KillVipwatch "kill-vipwatch" [Primary, Backup, Reporter] 16 ["cluster-node-lost"];
    /// SIGKILL to the node, which starts again at once.
    RestartVipwatch "restart-vipwatch" [Primary, Reporter] 6 [];
    /// SIGTERM to the node.
    StopVipwatch "stop-vipwatch" [Primary, Backup, Reporter] 10 [];
    /// The host leaves the management network, keepalived stops on the primary, and etcd is compacted.
    CompactionWhileCut "compaction-while-cut" [Backup, Reporter] 14 ["cluster-node-lost"];
    /// SIGSTOP to the node; meanwhile etcd is compacted.
    CompactionWhileFrozen "compaction-while-frozen" [Backup, Reporter] 12 ["cluster-node-lost"];
    /// One more address is configured on one host, and keepalived reloads.
    EditAddresses "edit-addresses" [Backup] 12 ["cluster-different-configuration"];
    /// The link of the host in the data network is set down.
    LinkDown "link-down" [Primary, Backup] 11 [];
    /// keepalived stops and starts three times on the primary.
    Flap "flap" [Primary] 4 [];
    /// The host leaves the data network, and the reporter is killed while the finding is open.
    KillReporterWithFinding "kill-reporter-with-finding" [Primary] 12 [];
    /// The host leaves the data network, and the reporter leaves the management network while the finding is open.
    CutReporterWithFinding "cut-reporter-with-finding" [Primary] 14 [];
    /// A simulated node with a clock that steps claims the first instance.
    SimulatedPrimary "simulated-primary" [Primary] 8 ["cluster-two-primaries"];
    /// A simulated node with a clock that steps falls silent.
    SimulatedLost "simulated-lost" [Primary] 10 ["cluster-node-lost"];
    /// A simulated node has two instances in the first group.
    SimulatedTwice "simulated-twice" [Primary] 9 ["cluster-ambiguous-group"];
    /// The first instance is in a configured group on one host only.
    GroupOnOneNode "group-on-one-node" [Primary, Backup] 11 ["cluster-ambiguous-group"];
    /// A router is primary, and its state file is overwritten with `backup`.
    StateFileOverwritten "state-file-overwritten" [Primary, Backup] 22 ["cluster-disagreement"];
    /// A router loses its address, and its state file still says `primary`.
    StateFileBehind "state-file-behind" [Primary, Backup] 22 ["cluster-disagreement"];
    /// A second node with the name of the host's node runs on the next host.
    SameName "same-name" [Primary, Backup, Reporter] 16 [];
    /// The wall clock of the node steps forwards, the host leaves the data network, and while the finding settles the
    /// clock steps backwards.
    ClockStep "clock-step" [Reporter, Primary] 12 ["cluster-two-primaries"];
    /// SIGKILL to the node; when it is lost, SIGTERM to keepalived on all hosts.
    NoPrimaryWithLostNode "no-primary-with-lost-node" [Primary, Backup] 18 ["cluster-no-primary"];
}

/// The schedule of a seed: four to six different faults.
pub fn schedule(seed: u64) -> Vec<ClusterStep> {
    let mut random = SeededRandom::new(seed ^ 0x0C1A_57E2);
    let mut faults = ClusterFault::ALL.to_vec();
    random.shuffle(&mut faults);
    let count = 4 + random.below(3);
    let steps = faults.into_iter().take(count).map(|fault| ClusterStep {
        fault,
        victim: random.one_of(fault.victims()),
        rest: Duration::from_millis(7000 + 500 * u64::try_from(random.below(6)).unwrap_or(0)),
    });
    steps.collect()
}

/// A schedule of these faults, in this order, each on its first host; `FAULT@HOST` names another one.
pub fn chosen(words: &str) -> Result<Vec<ClusterStep>, FaultsError> {
    let step = |text: &str| {
        let (word, victim) =
            text.split_once('@').map_or((text, None), |(word, host)| (word, Some(host)));
        let fault = ClusterFault::ALL.iter().copied().find(|fault| fault.word() == word);
        let fault = fault.ok_or_else(|| FaultsError(format!("unknown fault {word:?}")))?;
        let victim = match victim {
            None => fault.victims()[0],
            Some("primary") => ClusterVictim::Primary,
            Some("backup") => ClusterVictim::Backup,
            Some("reporter") => ClusterVictim::Reporter,
            Some("leader") => ClusterVictim::Leader,
            Some(other) => return Err(FaultsError(format!("unknown host {other:?}"))),
        };
        Ok(ClusterStep { fault, victim, rest: Duration::from_secs(8) })
    };
    words.split(',').map(step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hundred_seeds_contain_every_fault_many_times() {
        let all: Vec<ClusterFault> = (0..100).flat_map(schedule).map(|step| step.fault).collect();
        for fault in ClusterFault::ALL {
            let count = all.iter().filter(|other| *other == fault).count();
            assert!(count >= 8, "{} {count}", fault.word());
        }
    }

    #[test]
    fn a_fault_can_name_its_host() {
        let steps = chosen("kill-vipwatch@reporter,quorum-loss").ok().unwrap();
        assert_eq!(steps[0].victim, ClusterVictim::Reporter);
        assert_eq!(steps[1].fault, ClusterFault::QuorumLoss);
        assert!(chosen("kill-vipwatch@unknown").is_err());
        assert!(chosen("unknown").is_err());
    }
}
