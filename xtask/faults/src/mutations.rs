// SPDX-License-Identifier: Apache-2.0
//! `--mutations` and `--mutation`: builds deliberately broken versions of the product, and checks that the checker finds each of them.
//!
//! A mutation replaces one text in a copy of the source. Its run must have the failure that the table names, and the run
//! of the unchanged product with the same faults must not have it.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

use crate::args::{LabKind, LabTable, RunOptions};
use crate::check::verdict::{RunFailure, RunVerdict};
use crate::inotify;
use crate::lab::{set_up_lock, write_file};
use crate::runner;
use crate::{FaultsError, LabResult};

/// One deliberate defect; the head of the table explains its columns.
#[derive(Deserialize)]
struct Mutation {
    name: String,
    file: String,
    old: String,
    new: String,
    seed: u64,
    faults: String,
    kinds: Vec<String>,
    text: String,
}

/// The environment variable with the root directory of the repository.
const SOURCE_VARIABLE: &str = "VIPWATCH_SOURCE";
/// The environment variable with the directory for the copy of the source and for the mutated programs.
const WORK_VARIABLE: &str = "VIPWATCH_MUTATIONS";

fn directory(variable: &str) -> LabResult<PathBuf> {
    let path = std::env::var_os(variable).map(PathBuf::from);
    path.ok_or_else(|| {
        FaultsError(format!("{variable} is not set; use `cargo xtask faults --mutations`"))
    })
}

/// Builds and runs the mutations that the options name; all of them if they name none.
pub fn run(options: &RunOptions) -> LabResult {
    let table = table(options.lab)?;
    let mutations = chosen(&table, &options.mutation_names)?;
    // Each mutation has two runs.
    inotify::check_limit(options.jobs.min(2 * mutations.len()))?;
    let (source, work) = (directory(SOURCE_VARIABLE)?, directory(WORK_VARIABLE)?);
    let copy = work.join("source");
    std::fs::create_dir_all(&work)?;
    copy_source(&source, &copy)?;
    let mut runs = Vec::new();
    for &mutation in &mutations {
        println!("building {}", mutation.name);
        let program = work.join(&mutation.name);
        build(mutation, &copy, &work.join("target"), &program)?;
        for (kind, vipwatch) in [("unchanged", options.vipwatch.clone()), ("mutated", program)] {
            runs.push((mutation, vipwatch, format!("{}-{kind}", mutation.name)));
        }
    }
    let verdicts = runner::in_parallel(options.jobs, &runs, |(mutation, vipwatch, name)| {
        let verdict = mutation.verdict(options, vipwatch.clone(), &work.join(name));
        println!("ran {name}");
        verdict
    });
    if options.keep.is_none() {
        set_up_lock::remove_file(&work);
    }
    report(&mutations, &verdicts)
}

/// The mutations that the faults of a lab reveal.
fn table(lab: LabKind) -> LabResult<Vec<Mutation>> {
    let table: LabTable<Mutation> = toml::from_str(include_str!("mutations.toml"))?;
    Ok(table.rows(lab))
}

/// The mutations with these names; all of them if `names` is empty.
fn chosen<'a>(table: &'a [Mutation], names: &[String]) -> LabResult<Vec<&'a Mutation>> {
    let known: Vec<&str> = table.iter().map(|mutation| mutation.name.as_str()).collect();
    if let Some(unknown) = names.iter().find(|name| !known.contains(&name.as_str())) {
        let known = known.join(", ");
        return Err(FaultsError(format!(
            "unknown mutation {unknown:?}\n  hint: use one of {known}"
        )));
    }
    let is_chosen = |mutation: &&Mutation| names.is_empty() || names.contains(&mutation.name);
    Ok(table.iter().filter(is_chosen).collect())
}

impl Mutation {
    /// Runs a program with the faults of the mutation.
    fn verdict(&self, options: &RunOptions, vipwatch: PathBuf, directory: &Path) -> RunVerdict {
        let faults = Some(self.faults.clone());
        let options = RunOptions { vipwatch, faults, quick: false, ..options.clone() };
        runner::run_seed(&options, self.seed, directory)
    }

    /// The failure of a run that proves the mutation; `None` if the run does not have it.
    fn proof<'a>(&self, verdict: &'a RunVerdict) -> Option<&'a RunFailure> {
        let is_proof = |failure: &&RunFailure| {
            self.kinds.iter().any(|kind| kind == failure.kind) && failure.text.contains(&self.text)
        };
        verdict.failures.iter().find(is_proof)
    }
}

fn report(mutations: &[&Mutation], verdicts: &[RunVerdict]) -> LabResult {
    let mut missed = Vec::new();
    println!("\n| mutation | file | caught | evidence |\n|---|---|---|---|");
    // Each mutation's first run uses the unchanged product.
    for (mutation, verdicts) in mutations.iter().zip(verdicts.chunks_exact(2)) {
        let proof = mutation.proof(&verdicts[1]);
        let is_caught = proof.is_some() && mutation.proof(&verdicts[0]).is_none();
        let evidence =
            proof.map_or(String::new(), |failure| format!("{}: {}", failure.kind, failure.text));
        let caught = if is_caught { "yes" } else { "**no**" };
        println!("| {} | `{}` | {caught} | {evidence} |", mutation.name, mutation.file);
        if !is_caught {
            missed.push(mutation.name.as_str());
        }
    }
    if missed.is_empty() {
        return Ok(());
    }
    Err(FaultsError(format!("not caught: {}", missed.join(", "))))
}

/// Copies the tracked and new files of the repository.
fn copy_source(source: &Path, copy: &Path) -> LabResult {
    let files = crate::lab::output(Command::new("git").arg("-C").arg(source).args([
        "ls-files",
        "-co",
        "--exclude-standard",
    ]))?;
    for file in files.lines() {
        let (from, to) = (source.join(file), copy.join(file));
        let Ok(bytes) = std::fs::read(&from) else { continue };
        // cargo builds again after a change of a file's time: files that are the same stay.
        if std::fs::read(&to).is_ok_and(|old| old == bytes) {
            continue;
        }
        std::fs::create_dir_all(to.parent().unwrap_or(copy))?;
        std::fs::copy(from, to)?;
    }
    Ok(())
}

/// Applies a mutation, builds `vipwatch`, and restores the file.
fn build(mutation: &Mutation, copy: &Path, target: &Path, program: &Path) -> LabResult {
    let file = copy.join(&mutation.file);
    let text = std::fs::read_to_string(&file)?;
    if text.matches(&mutation.old).count() != 1 {
        return Err(FaultsError(format!(
            "{}: {} must have the text {:?} once\n  hint: adapt xtask/faults/src/mutations.toml",
            mutation.name, mutation.file, mutation.old
        )));
    }
    write_file(&file, &text.replace(&mutation.old, &mutation.new))?;
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(copy).args(["build", "--quiet", "--package", "vipwatch-cli"]);
    let built = command.env("CARGO_TARGET_DIR", target).env("RUSTFLAGS", "-A warnings").status();
    write_file(&file, &text)?;
    if !built?.success() {
        return Err(FaultsError(format!("{} does not compile", mutation.name)));
    }
    std::fs::copy(target.join("debug/vipwatch"), program)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(lab: LabKind) -> Vec<Mutation> {
        table(lab).expect("the table is valid")
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_names() {
        let table = all(LabKind::Nodes);
        let names = |name: &str| chosen(&table, &[name.to_owned()]).map(|all| all.len());
        assert_eq!(names("carrier-ignored").ok(), Some(1));
        let error = names("carrier").err().unwrap().0;
        assert!(table.iter().all(|mutation| error.contains(&mutation.name)), "{error}");
        assert_eq!(chosen(&table, &[]).ok().unwrap().len(), table.len());
    }

    #[test]
    fn each_mutation_fits_the_source() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let (nodes, cluster) = (all(LabKind::Nodes), all(LabKind::Cluster));
        assert_eq!((nodes.len(), cluster.len()), (22, 20));
        let both = || nodes.iter().chain(&cluster);
        for Mutation { name, file, old, .. } in both() {
            let text = std::fs::read_to_string(root.join(file)).unwrap();
            assert_eq!(text.matches(old).count(), 1, "{name}: {old:?} in {file}");
            assert_eq!(both().filter(|other| other.name == *name).count(), 1, "{name}");
        }
        for (lab, table) in [(LabKind::Nodes, &nodes), (LabKind::Cluster, &cluster)] {
            for Mutation { name, faults, .. } in table {
                assert!(crate::schedule::chosen(lab, faults).is_ok(), "{name}: {faults}");
            }
        }
    }
}
