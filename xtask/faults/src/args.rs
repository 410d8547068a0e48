// SPDX-License-Identifier: Apache-2.0
//! The command line.

use std::path::PathBuf;

use crate::{FaultsError, cluster};

/// The seeds of `--quick`: each of them is short, and together they have the most important faults.
pub const QUICK_SEEDS: [u64; 8] = [6, 13, 16, 17, 26, 28, 37, 44];

/// The options of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunOptions {
    /// The `vipwatch` that is judged.
    pub vipwatch: PathBuf,
    pub seeds: Vec<u64>,
    /// The words of the faults, separated by commas; `None` for those of the seed.
    pub faults: Option<String>,
    /// Few short schedules; times are not judged.
    pub is_quick: bool,
    pub json: Option<PathBuf>,
    /// The directory in which the recordings are kept; `None` keeps those of failed seeds only.
    pub keep: Option<PathBuf>,
    pub jobs: usize,
    pub lab: LabKind,
}

/// The lab of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LabKind {
    /// Nodes without a cluster view.
    Nodes,
    /// Three nodes with a cluster view, and three members of etcd.
    Cluster,
}

/// A parsed command line.
#[derive(Debug, PartialEq, Eq)]
pub enum FaultsCommand {
    Run(RunOptions),
    /// Judges a recorded run again.
    Judge(PathBuf),
    /// Runs mutations of the product; all of them if `names` is empty.
    Mutations {
        options: RunOptions,
        names: Vec<String>,
    },
}

pub fn parse(args: &[&str]) -> Result<FaultsCommand, FaultsError> {
    let mut options = RunOptions {
        vipwatch: PathBuf::new(),
        seeds: (0..200).collect(),
        faults: None,
        is_quick: false,
        json: None,
        keep: None,
        jobs: 8,
        lab: LabKind::Nodes,
    };
    let mut args = args;
    if let Some(("cluster", rest)) = args.split_first().map(|(first, rest)| (*first, rest)) {
        (options.lab, options.seeds, args) = (LabKind::Cluster, (0..60).collect(), rest);
    }
    let mut is_mutations = false;
    let mut names = Vec::new();
    let mut are_seeds_given = false;
    let mut args = args.iter().copied();
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| FaultsError(format!("{arg} needs a value")));
        match arg {
            "--vipwatch" => options.vipwatch = std::path::absolute(value()?)?,
            "--seeds" => options.seeds = seeds(value()?)?,
            "--seed" => options.seeds = vec![value()?.parse()?],
            "--faults" => options.faults = Some(value()?.to_owned()),
            "--quick" => options.is_quick = true,
            "--json" => options.json = Some(std::path::absolute(value()?)?),
            "--keep" => options.keep = Some(std::path::absolute(value()?)?),
            "--jobs" => options.jobs = value()?.parse::<usize>()?.max(1),
            "--judge" => return Ok(FaultsCommand::Judge(std::path::absolute(value()?)?)),
            "--mutations" => is_mutations = true,
            "--mutation" => names.push(value()?.to_owned()),
            other => return Err(FaultsError(format!("unknown option {other}"))),
        }
        are_seeds_given |= matches!(arg, "--seeds" | "--seed");
    }
    if options.is_quick && !are_seeds_given {
        options.seeds = match options.lab {
            LabKind::Nodes => QUICK_SEEDS.to_vec(),
            LabKind::Cluster => cluster::QUICK_SEEDS.to_vec(),
        };
    }
    if is_mutations || !names.is_empty() {
        return Ok(FaultsCommand::Mutations { options, names });
    }
    Ok(FaultsCommand::Run(options))
}

/// Parses `A..B`, without B.
fn seeds(text: &str) -> Result<Vec<u64>, FaultsError> {
    let (first, end) = text
        .split_once("..")
        .ok_or_else(|| FaultsError(format!("seeds {text:?} are not of the form A..B")))?;
    let seeds: Vec<u64> = (first.parse()?..end.parse()?).collect();
    if seeds.is_empty() {
        return Err(FaultsError(format!("seeds {text:?}: the range is empty")));
    }
    Ok(seeds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_and_single_seeds_are_parsed() {
        let FaultsCommand::Run(options) = parse(&["--seeds", "5..8", "--jobs", "3"]).ok().unwrap()
        else {
            panic!("a run")
        };
        assert_eq!((options.seeds, options.jobs), (vec![5, 6, 7], 3));
        assert!(parse(&["--seeds", "8..5"]).is_err());
        assert!(parse(&["--seeds"]).is_err());
        assert!(parse(&["--unknown"]).is_err());
    }

    #[test]
    fn a_quick_run_has_its_own_seeds_unless_others_are_given() {
        let seeds = |args: &[&str]| match parse(args).ok().unwrap() {
            FaultsCommand::Run(options) => options.seeds,
            FaultsCommand::Judge(_) | FaultsCommand::Mutations { .. } => Vec::new(),
        };
        assert_eq!(seeds(&["--quick"]), QUICK_SEEDS);
        assert_eq!(seeds(&["--seed", "9", "--quick"]), [9]);
    }

    #[test]
    fn mutations_are_all_or_those_that_are_named() {
        let named = |args: &[&str]| match parse(args).ok().unwrap() {
            FaultsCommand::Mutations { names, .. } => Some(names.join(" ")),
            FaultsCommand::Judge(_) | FaultsCommand::Run(_) => None,
        };
        assert_eq!(named(&["--mutations"]).as_deref(), Some(""));
        assert_eq!(named(&["--mutation", "a", "--mutation", "b"]).as_deref(), Some("a b"));
        assert_eq!(named(&["--quick"]), None);
    }
}
