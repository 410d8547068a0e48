// SPDX-License-Identifier: Apache-2.0
//! The command line. `cargo xtask faults --help` explains it.

use std::ops::Range;
use std::path::PathBuf;

use crate::check::verdict::Strictness;
use crate::setup::HealthyShape;

/// The seeds of `--quick`: each of them is short, and together they have the most important faults.
const QUICK_SEEDS: &[u64] = &[9, 13, 17, 24, 26, 28, 71, 109];
/// The shapes of `healthy --quick`: unicast between subnets, unicast and multicast, a heartbeat link, a late reload.
const QUICK_SHAPES: &[u64] = &[6, 7, 8, 13];
/// The seeds of `cluster --quick`.
const QUICK_CLUSTER_SEEDS: &[u64] = &[1, 2, 3];

/// The lab of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LabKind {
    /// Nodes without a cluster view.
    Nodes,
    /// Nodes with failovers and without faults; a seed is the number of a shape.
    Healthy,
    /// Three nodes with a cluster view, and three members of etcd.
    Cluster,
}

impl LabKind {
    /// Its name on the command line.
    pub fn word(self) -> &'static str {
        match self {
            Self::Nodes => "nodes",
            Self::Healthy => "healthy",
            Self::Cluster => "cluster",
        }
    }
}

/// A table with rows for each lab.
#[derive(serde::Deserialize)]
pub struct LabTable<T> {
    nodes: Vec<T>,
    #[serde(default = "Vec::new")]
    healthy: Vec<T>,
    cluster: Vec<T>,
}

impl<T> LabTable<T> {
    /// The rows of a lab.
    pub fn rows(self, lab: LabKind) -> Vec<T> {
        match lab {
            LabKind::Nodes => self.nodes,
            LabKind::Healthy => self.healthy,
            LabKind::Cluster => self.cluster,
        }
    }
}

/// The parsed command line.
#[derive(Debug, Clone, PartialEq, Eq, clap::Parser)]
pub struct RunOptions {
    #[arg(value_enum, default_value = "nodes")]
    pub lab: LabKind,
    /// The `vipwatch` that is judged.
    #[arg(long, default_value = "vipwatch", value_parser = absolute)]
    pub vipwatch: PathBuf,
    #[arg(long, value_parser = range)]
    pub seeds: Option<Range<u64>>,
    #[arg(long)]
    pub seed: Option<u64>,
    /// The words of the faults, separated by commas; `None` for those of the seed.
    #[arg(long)]
    pub faults: Option<String>,
    /// Few short schedules; times are not judged.
    #[arg(long)]
    pub quick: bool,
    #[arg(long, value_parser = absolute)]
    pub json: Option<PathBuf>,
    /// The directory in which the recordings are kept; `None` keeps those of failed seeds only.
    #[arg(long, value_parser = absolute)]
    pub keep: Option<PathBuf>,
    #[arg(long, default_value = "8", value_parser = jobs)]
    pub jobs: usize,
    /// Judges recorded runs again.
    #[arg(long, value_parser = absolute)]
    pub judge: Option<PathBuf>,
    /// Runs all mutations of the product.
    #[arg(long)]
    pub mutations: bool,
    /// Runs the mutations with these names.
    #[arg(long = "mutation")]
    pub mutation_names: Vec<String>,
    /// Runs one seed's lab in this process's namespaces and records into a directory.
    #[arg(long, hide = true)]
    pub inside: Option<PathBuf>,
}

impl RunOptions {
    /// The seeds of the run.
    pub fn seeds(&self) -> Vec<u64> {
        match (self.seed, &self.seeds, self.lab) {
            (Some(seed), _, _) => vec![seed],
            (None, Some(seeds), _) => seeds.clone().collect(),
            (None, None, LabKind::Nodes) if self.quick => QUICK_SEEDS.to_vec(),
            (None, None, LabKind::Cluster) if self.quick => QUICK_CLUSTER_SEEDS.to_vec(),
            (None, None, LabKind::Healthy) if self.quick => QUICK_SHAPES.to_vec(),
            (None, None, LabKind::Nodes) => (0..200).collect(),
            (None, None, LabKind::Healthy) => (0..).take(HealthyShape::ALL.len()).collect(),
            (None, None, LabKind::Cluster) => (0..60).collect(),
        }
    }

    /// The speed of the machine is not known in a quick run.
    pub fn strictness(&self) -> Strictness {
        if self.quick { Strictness::Presence } else { Strictness::Deadlines }
    }

    pub fn has_mutations(&self) -> bool {
        self.mutations || !self.mutation_names.is_empty()
    }
}

fn absolute(text: &str) -> Result<PathBuf, std::io::Error> {
    std::path::absolute(text)
}

fn jobs(text: &str) -> Result<usize, std::num::ParseIntError> {
    Ok(text.parse::<usize>()?.max(1))
}

/// Parses `A..B`, without B.
fn range(text: &str) -> Result<Range<u64>, String> {
    let parsed =
        text.split_once("..").and_then(|(first, end)| Some(first.parse().ok()?..end.parse().ok()?));
    parsed.filter(|range| !range.is_empty()).ok_or_else(|| "expected A..B with A < B".to_owned())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::Parser as _;

    use super::*;
    use crate::setup::LabSetup;

    fn parse(args: &[&str]) -> Option<RunOptions> {
        RunOptions::try_parse_from(["vipwatch-faults"].iter().chain(args)).ok()
    }

    #[test]
    fn ranges_and_single_seeds_are_parsed() {
        let options = parse(&["--seeds", "5..8", "--jobs", "3"]).unwrap();
        assert_eq!((options.seeds(), options.jobs), (vec![5, 6, 7], 3));
        assert_eq!(parse(&["--seeds", "8..5"]), None);
        assert_eq!(parse(&["--seeds"]), None);
        assert_eq!(parse(&["--unknown"]), None);
    }

    #[test]
    fn a_quick_run_has_its_own_seeds_unless_others_are_given() {
        let seeds = |args: &[&str]| parse(args).unwrap().seeds();
        assert_eq!(seeds(&["--quick"]), QUICK_SEEDS);
        assert_eq!(seeds(&["cluster", "--quick"]), QUICK_CLUSTER_SEEDS);
        assert_eq!(seeds(&["--seed", "9", "--quick"]), [9]);
        assert_eq!(seeds(&["cluster"]).len(), 60);
    }

    #[test]
    fn a_quick_run_has_the_oldest_and_the_newest_keepalived_of_debian_and_no_other() {
        let labs = QUICK_SEEDS.iter().map(|seed| LabSetup::of(LabKind::Nodes, *seed));
        let releases: BTreeSet<&str> = labs.flat_map(|lab| lab.releases).collect();
        assert_eq!(releases.into_iter().collect::<Vec<_>>(), ["bullseye", "sid"]);
    }

    #[test]
    fn mutations_are_all_or_those_that_are_named() {
        let options = parse(&["--mutation", "a", "--mutation", "b"]).unwrap();
        assert_eq!((options.has_mutations(), options.mutation_names.len()), (true, 2));
        assert!(parse(&["--mutations"]).unwrap().has_mutations());
        assert!(!parse(&["--quick"]).unwrap().has_mutations());
    }
}
