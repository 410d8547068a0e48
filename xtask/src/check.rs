//! `cargo xtask check`: format, lints, house rules, documentation, dependencies.

use std::path::PathBuf;
use std::process::Command;

use crate::{Stop, Task, build, provision, tidy};

/// What is built where no cargo-deny is installed.
const CARGO_DENY: &str = "cargo-deny@0.20.2";

pub fn run(words: &[&str]) -> Task {
    quick()?;
    match words {
        [] => Ok(()),
        // Needs the advisory database, which is fetched from its own host.
        ["--advisories"] => deny(&["check", "advisories"]),
        other => Err(Stop(format!("unknown words {other:?}; there is --advisories"))),
    }
}

/// All that needs nothing but Rust; part of `cargo xtask test` too.
pub fn quick() -> Task {
    build::run_cargo(&["fmt", "--all", "--check"])?;
    deny(&["--all-features", "check", "bans", "licenses", "sources"])?;
    // Tests that plain `cargo test` leaves alone are not among "all", and cannot be named beside it.
    for targets in [&["--all-targets"][..], &["--test", "*"]] {
        let words = [&["clippy", "--quiet", "--workspace"], targets, &["--", "--deny", "warnings"]];
        build::run_cargo(&words.concat())?;
    }
    tidy::run()?;
    let status = build::cargo()
        .args(["doc", "--quiet", "--workspace", "--no-deps", "--document-private-items"])
        .env("RUSTDOCFLAGS", "--deny warnings --allow rustdoc::private_intra_doc_links")
        .status()?;
    if status.success() { Ok(()) } else { Err(Stop("the documentation does not build".to_owned())) }
}

/// Compares the dependencies with `deny.toml`.
fn deny(words: &[&str]) -> Task {
    let status = Command::new(cargo_deny()?).args(words).current_dir(build::root()).status()?;
    if status.success() {
        return Ok(());
    }
    Err(Stop("cargo-deny refuses a dependency\n  hint: deny.toml says what is allowed".to_owned()))
}

/// Where cargo-deny is; builds it below `target/tools` if it is not installed.
fn cargo_deny() -> Result<PathBuf, Stop> {
    let tools = build::target_directory().join("tools");
    let built = tools.join("bin/cargo-deny");
    let installed = provision::find("cargo-deny").or_else(|| {
        let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
        let home =
            home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")))?;
        Some(home.join("bin/cargo-deny")).filter(|path| path.is_file())
    });
    if let Some(path) = installed.or_else(|| Some(built.clone()).filter(|path| path.is_file())) {
        return Ok(path);
    }
    eprintln!("xtask: building {CARGO_DENY} (about two minutes, once)");
    let scratch = tools.join("build");
    let status = build::cargo()
        // Unoptimised: it runs for two seconds, and an optimised build takes several minutes longer.
        .args(["install", "--quiet", "--locked", "--debug", CARGO_DENY, "--root"])
        .arg(&tools)
        .arg("--target-dir")
        .arg(&scratch)
        .env("CARGO_PROFILE_DEV_DEBUG", "0")
        .status()?;
    let _ = std::fs::remove_dir_all(scratch);
    if status.success() {
        return Ok(built);
    }
    Err(Stop(format!("cannot build {CARGO_DENY}\n  hint: cargo install --locked {CARGO_DENY}")))
}
