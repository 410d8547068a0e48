// SPDX-License-Identifier: Apache-2.0
//! `cargo xtask check`: format, lints, the rules of `tidy`, excluded words, documentation, manual pages, shell
//! scripts, dependencies.

use std::process::Command;

use crate::{
    TaskError, TaskResult, build, config_file, man, openapi, process, provision, scripts, tidy,
    words,
};

pub const HELP: &str = "\
Check format, lints, naming rules, documentation, manual pages and shell scripts.

Usage: cargo xtask check [--full | --words]

  --full   Compare the dependencies with deny.toml and with the database of security advisories too; cargo-deny is
           compiled for it once. CI does this always. Where the database cannot be reached, a line says so
  --words  Print every line with an excluded word, and check nothing else

Excluded words are those that CONTRIBUTING.md asks to avoid in comments, messages and documents. They are warnings:
the first ones are printed, and the exit code stays 0. Everything else that is found is an error.
";

/// Maximum time to fetch the database of security advisories.
const ADVISORY_LIMIT_SECONDS: u32 = 120;

pub fn run(args: &[&str]) -> TaskResult {
    match args {
        [] | ["--full"] => {
            all(!args.is_empty())?;
            words::report(words::MAX_LINES)
        }
        ["--words"] => words::report(usize::MAX),
        other => Err(TaskError(format!(
            "unknown arguments {other:?}\n  hint: `cargo xtask check --help` lists the options"
        ))),
    }
}

/// Whether the dependencies are compared with `deny.toml`: in CI, and with `--full`.
pub fn needs_deny(is_full: bool) -> bool {
    is_full || std::env::var_os("CI").is_some_and(|value| value == "true")
}

/// All checks. They are also a part of `cargo xtask test`.
pub fn all(is_full: bool) -> TaskResult {
    build::run_cargo(&["fmt", "--all", "--check"])?;
    tidy::run()?;
    scripts::check()?;
    config_file::check()?;
    if needs_deny(is_full) {
        deny(&["--all-features", "check", "bans", "licenses", "sources"])?;
        compare_advisories()?;
    } else {
        println!(
            "dependencies are not compared with deny.toml; `cargo xtask check --full` does it"
        );
    }
    // `--all-targets` leaves out targets with `test = false`, and cannot be combined with `--test`.
    for targets in [&["--all-targets"][..], &["--test", "*"]] {
        let words = [&["clippy", "--quiet", "--workspace"], targets, &["--", "--deny", "warnings"]];
        build::run_cargo(&words.concat())?;
    }
    openapi::check()?;
    man::check()?;
    let mut doc = build::cargo();
    doc.args(["doc", "--quiet", "--workspace", "--no-deps", "--document-private-items"])
        // With the example, dependencies have the features that clippy has checked; see `build::debug_programs`.
        .args(["--lib", "--bins", "--example", build::OPENAPI])
        .env("RUSTDOCFLAGS", "--deny warnings --allow rustdoc::private_intra_doc_links");
    process::run(&mut doc)
}

/// Compares the dependencies with the database of security advisories, if it can be reached.
fn compare_advisories() -> TaskResult {
    let mut fetch = Command::new("timeout");
    fetch.arg(ADVISORY_LIMIT_SECONDS.to_string()).arg(provision::cargo_deny()?);
    let fetched = fetch.args(["fetch", "db"]).current_dir(build::root()).output()?;
    if fetched.status.success() {
        return deny(&["check", "--disable-fetch", "advisories"]);
    }
    let text = String::from_utf8_lossy(&fetched.stderr);
    let reason = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no answer in time");
    println!(
        "dependencies are NOT compared with security advisories: the database cannot be reached"
    );
    println!("  {}", reason.trim());
    Ok(())
}

/// Compares the dependencies with `deny.toml`.
fn deny(args: &[&str]) -> TaskResult {
    let mut command = Command::new(provision::cargo_deny()?);
    process::run(command.args(args).current_dir(build::root())).map_err(|_lines_above| {
        "a dependency breaks a rule of deny.toml\n  hint: the lines above name the dependency and the rule".into()
    })
}
