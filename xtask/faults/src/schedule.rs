// SPDX-License-Identifier: Apache-2.0
//! The faults of one seed, in their order.

use std::time::Duration;

use crate::args::{LabKind, RunOptions};
use crate::fault_table::{FaultKind, FaultVictim, faults};
use crate::random::SeededRandom;
use crate::setup::{HealthyShape, LabSetup, NO_COPY};
use crate::{FaultsError, LabResult};

/// One step of a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FaultStep {
    pub kind: &'static FaultKind,
    pub victim: FaultVictim,
    /// The time between the end of the recovery and the next fault.
    pub rest: Duration,
}

/// Whether a fault is possible in a lab.
fn is_possible(kind: &FaultKind, setup: &LabSetup) -> bool {
    match kind.word.as_str() {
        "priority-drop" => setup.has_track_script,
        // The node without `vipwatch` has no silence.
        word if kind.is_extra && word.starts_with("silenced") => setup.unobserved.is_none(),
        // 2.1 keeps no copy of its file: the node uses the edited one.
        "edit-only" | "edit-addresses-only" => !setup.releases.contains(&NO_COPY),
        // With a VMAC the foreign sender's adverts have the MAC address of the virtual router, which macvlan takes for
        // its own.
        "vrid-clash" => !setup.has_vmac && !setup.has_heartbeat,
        _ => true,
    }
}

/// The schedule of one run: the chosen faults, or those of its seed; a quick run has two.
pub fn steps(options: &RunOptions, setup: &LabSetup) -> LabResult<Vec<FaultStep>> {
    match (&options.faults, options.lab) {
        (Some(faults), lab) => chosen(lab, faults),
        (None, LabKind::Cluster) if options.quick => chosen(options.lab, quick_faults(setup.seed)),
        (None, LabKind::Healthy) => {
            chosen(options.lab, setup.shape.map_or("restart", HealthyShape::failovers))
        }
        (None, lab) => {
            let mut steps = schedule(lab, setup);
            steps.truncate(if options.quick { 2 } else { usize::MAX });
            Ok(steps)
        }
    }
}

/// The schedule of a seed: three to six different faults, in a cluster at least four.
fn schedule(lab: LabKind, setup: &LabSetup) -> Vec<FaultStep> {
    let is_cluster = lab == LabKind::Cluster;
    let salt = if is_cluster { 0x0C1A_57E2 } else { 0x5EED_FA17 };
    let mut random = SeededRandom::new(setup.seed ^ salt);
    let possible = faults(lab).iter().filter(|kind| is_possible(kind, setup));
    let (extra, mut kinds): (Vec<_>, Vec<_>) = possible.partition(|kind| kind.is_extra);
    random.shuffle(&mut kinds);
    kinds.truncate(if is_cluster { 4 + random.below(3) } else { 3 + random.below(4) });
    let mut others = SeededRandom::new(setup.seed ^ 0xEE_77AA);
    if !extra.is_empty() && others.chance(50) {
        kinds.insert(0, others.one_of(&extra));
    }
    let step = |kind: &'static FaultKind| {
        let victims = &kind.victims;
        let victim = if is_cluster {
            random.one_of(victims)
        } else {
            victims[usize::from(!random.chance(65)).min(victims.len() - 1)]
        };
        let halves = if is_cluster { 14 + random.below(6) } else { 6 + random.below(10) };
        FaultStep {
            kind,
            victim,
            rest: Duration::from_millis(500) * u32::try_from(halves).unwrap_or(0),
        }
    };
    kinds.into_iter().map(step).collect()
}

/// The faults of each seed of `cluster --quick`.
fn quick_faults(seed: u64) -> &'static str {
    match seed {
        1 => "data-partition,kill-vipwatch",
        2 => "stop-all-keepalived,cut-from-etcd",
        _ => "kill-reporter-with-finding,quorum-loss",
    }
}

/// A schedule of these faults, in this order, each on its first host; `FAULT@HOST` names another one.
pub fn chosen(lab: LabKind, words: &str) -> LabResult<Vec<FaultStep>> {
    let step = |text: &str| {
        let (word, host) = text.split_once('@').unwrap_or((text, ""));
        let kind = faults(lab).iter().find(|kind| kind.word == word);
        let kind = kind.ok_or_else(|| FaultsError(format!("unknown fault {word:?}")))?;
        let victim = match host {
            "" => kind.victims[0],
            "primary" => FaultVictim::Primary,
            "backup" => FaultVictim::Backup,
            "reporter" if lab == LabKind::Cluster => FaultVictim::Reporter,
            "leader" if lab == LabKind::Cluster => FaultVictim::Leader,
            other => return Err(FaultsError(format!("unknown host {other:?}"))),
        };
        let rest = Duration::from_secs(if lab == LabKind::Cluster { 8 } else { 5 });
        Ok(FaultStep { kind, victim, rest })
    };
    words.split(',').map(step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_hundred_seeds_contain_every_fault_many_times() {
        for (lab, count) in [(LabKind::Nodes, 23), (LabKind::Cluster, 35)] {
            assert_eq!(faults(lab).len(), count);
            let steps = (0..200).flat_map(|seed| schedule(lab, &LabSetup::of(lab, seed)));
            let all: Vec<&FaultKind> = steps.map(|step| step.kind).collect();
            for kind in faults(lab) {
                let count = all.iter().filter(|other| **other == kind).count();
                assert!(count >= 10, "{} {count}", kind.word);
            }
        }
    }

    #[test]
    fn a_fault_can_name_its_host() {
        let steps = chosen(LabKind::Cluster, "kill-vipwatch@reporter,quorum-loss").ok().unwrap();
        assert_eq!(steps[0].victim, FaultVictim::Reporter);
        assert_eq!(steps[1].kind.word, "quorum-loss");
        assert!(chosen(LabKind::Cluster, "kill-vipwatch@unknown").is_err());
        assert!(chosen(LabKind::Nodes, "kill-vipwatch").is_err());
        assert!(chosen(LabKind::Nodes, "stop@leader").is_err());
    }

    #[test]
    fn the_schedule_of_a_seed_stays_the_same() {
        let words = |lab| {
            let steps = schedule(lab, &LabSetup::of(lab, 7));
            steps.iter().map(|step| step.kind.word.as_str()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(words(LabKind::Nodes), "edit-addresses kill-parent freeze-child stop");
        let cluster = "simulated-twice stop-all-keepalived data-receive-loss cut-reporter-with-finding \
                       state-file-behind quorum-loss-with-failover";
        assert_eq!(words(LabKind::Cluster), cluster);
    }
}
