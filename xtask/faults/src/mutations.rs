//! `--mutations`: builds deliberately broken versions of the product, and checks that the checker finds each of them.
//!
//! A mutation replaces one text in a copy of the source. Its run must have the failure that the table names, and the run
//! of the unchanged product with the same faults must not have it.

mod table;

use std::path::{Path, PathBuf};
use std::process::Command;

use self::table::{MUTATIONS, Mutation};
use crate::FaultsError;
use crate::args::RunOptions;
use crate::check::verdict::RunVerdict;
use crate::lab::write_file;
use crate::runner;

/// The environment variable with the root directory of the repository.
const SOURCE_VARIABLE: &str = "VIPWATCH_SOURCE";
/// The environment variable with the directory for the copy of the source and for the mutated programs.
const WORK_VARIABLE: &str = "VIPWATCH_MUTATIONS";

fn directory(variable: &str) -> Result<PathBuf, FaultsError> {
    let path = std::env::var_os(variable).map(PathBuf::from);
    path.ok_or_else(|| {
        FaultsError(format!("{variable} is not set; use `cargo xtask faults --mutations`"))
    })
}

/// Builds and runs all mutations.
pub fn run(options: &RunOptions) -> Result<(), FaultsError> {
    let (source, work) = (directory(SOURCE_VARIABLE)?, directory(WORK_VARIABLE)?);
    let copy = work.join("source");
    std::fs::create_dir_all(&work)?;
    copy_source(&source, &copy)?;
    let mut runs = Vec::new();
    for mutation in MUTATIONS {
        println!("building {}", mutation.name);
        let program = work.join(mutation.name);
        build(mutation, &copy, &work.join("target"), &program)?;
        for (kind, vipwatch) in [("unchanged", &options.vipwatch), ("mutated", &program)] {
            runs.push(MutationRun { mutation, kind, vipwatch: vipwatch.clone() });
        }
    }
    let verdicts = runner::in_parallel(options.jobs, &runs, |run| {
        let verdict = run.verdict(options, &work);
        println!("ran {} ({})", run.mutation.name, run.kind);
        verdict
    });
    report(&runs, &verdicts)
}

/// One run of a program with the faults of a mutation.
struct MutationRun {
    mutation: &'static Mutation,
    kind: &'static str,
    vipwatch: PathBuf,
}

impl MutationRun {
    fn verdict(&self, options: &RunOptions, work: &Path) -> RunVerdict {
        let options = RunOptions {
            vipwatch: self.vipwatch.clone(),
            faults: Some(self.mutation.faults.to_owned()),
            is_quick: false,
            ..options.clone()
        };
        let directory = work.join(format!("{}-{}", self.mutation.name, self.kind));
        runner::run_seed(&options, self.mutation.seed, &directory)
    }
}

impl Mutation {
    /// Whether a run has the failure that proves the mutation.
    fn is_seen(&self, verdict: &RunVerdict) -> bool {
        verdict
            .failures
            .iter()
            .any(|failure| self.kinds.contains(&failure.kind) && failure.text.contains(self.text))
    }
}

fn report(runs: &[MutationRun], verdicts: &[RunVerdict]) -> Result<(), FaultsError> {
    let mut missed = Vec::new();
    println!("\n| mutation | file | caught | evidence |\n|---|---|---|---|");
    for (runs, verdicts) in runs.chunks_exact(2).zip(verdicts.chunks_exact(2)) {
        let mutation = runs[0].mutation;
        let is_caught = mutation.is_seen(&verdicts[1]) && !mutation.is_seen(&verdicts[0]);
        let evidence =
            verdicts[1].failures.iter().find(|failure| mutation.kinds.contains(&failure.kind));
        let evidence =
            evidence.map_or(String::new(), |failure| format!("{}: {}", failure.kind, failure.text));
        let caught = if is_caught { "yes" } else { "**no**" };
        println!("| {} | `{}` | {caught} | {evidence} |", mutation.name, mutation.file);
        if !is_caught {
            missed.push(mutation.name);
        }
    }
    if missed.is_empty() {
        return Ok(());
    }
    Err(FaultsError(format!("not caught: {}", missed.join(", "))))
}

/// Copies the tracked and new files of the repository.
fn copy_source(source: &Path, copy: &Path) -> Result<(), FaultsError> {
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
fn build(
    mutation: &Mutation,
    copy: &Path,
    target: &Path,
    program: &Path,
) -> Result<(), FaultsError> {
    let file = copy.join(mutation.file);
    let text = std::fs::read_to_string(&file)?;
    if text.matches(mutation.old).count() != 1 {
        return Err(FaultsError(format!(
            "{}: {} must have the text {:?} once\n  hint: adapt xtask/faults/src/mutations/table.rs",
            mutation.name, mutation.file, mutation.old
        )));
    }
    write_file(&file, &text.replace(mutation.old, mutation.new))?;
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
