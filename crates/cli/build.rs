// SPDX-License-Identifier: Apache-2.0
//! Sets `VIPWATCH_COMMIT`, the commit that the program is built from: the variable of this name, if it is set (packages
//! have no checkout), otherwise the current commit of the checkout. Without both, the program has no commit.
//!
//! The script runs again only after a commit or a checkout.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=VIPWATCH_COMMIT");
    let commit = std::env::var("VIPWATCH_COMMIT").ok().or_else(checked_out_commit);
    println!("cargo:rustc-env=VIPWATCH_COMMIT={}", commit.unwrap_or_default().trim());
}

/// The commit of the checkout; `None` without git or outside a checkout.
fn checked_out_commit() -> Option<String> {
    // The sources may be in a directory of another project's checkout.
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().ok()?;
    if Path::new(&git(&["rev-parse", "--show-toplevel"])?).canonicalize().ok()? != root {
        return None;
    }
    for name in ["HEAD", "logs/HEAD"] {
        let path = git(&["rev-parse", "--path-format=absolute", "--git-path", name])?;
        // cargo would run the script each time for a file that does not exist.
        if Path::new(&path).exists() {
            println!("cargo:rerun-if-changed={path}");
        }
    }
    git(&["rev-parse", "--short=12", "HEAD"])
}

/// The output of git; `None` if it fails.
fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok()?;
    let text = String::from_utf8(output.stdout).ok().filter(|_| output.status.success())?;
    Some(text.trim().to_owned())
}
