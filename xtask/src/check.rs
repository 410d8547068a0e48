//! `cargo xtask check`: format, lints, house rules, documentation, dependencies.

use crate::{Stop, Task, build, provision, tidy};

pub fn run(words: &[&str]) -> Task {
    quick()?;
    if provision::find("cargo-deny").is_none() && !cargo_home_has("cargo-deny") {
        eprintln!("xtask: installing cargo-deny (several minutes, once)");
        build::run_cargo(&["install", "--quiet", "--locked", "cargo-deny"])?;
    }
    build::run_cargo(&["deny", "--all-features", "check", "bans", "licenses", "sources"])?;
    match words {
        [] => Ok(()),
        // Needs the advisory database, which is fetched from its own host.
        ["--advisories"] => build::run_cargo(&["deny", "check", "advisories"]),
        other => Err(Stop(format!("unknown words {other:?}; there is --advisories"))),
    }
}

/// All that needs nothing but Rust; part of `cargo xtask test` too.
pub fn quick() -> Task {
    build::run_cargo(&["fmt", "--all", "--check"])?;
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

fn cargo_home_has(program: &str) -> bool {
    let home = std::env::var_os("CARGO_HOME").map(std::path::PathBuf::from).or_else(|| {
        std::env::var_os("HOME").map(|home| std::path::PathBuf::from(home).join(".cargo"))
    });
    home.is_some_and(|home| home.join("bin").join(program).exists())
}
