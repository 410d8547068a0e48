//! Building what is tested, measured and shipped.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::{Stop, Task};

/// The program operators install.
pub const PROGRAM: &str = "neutron-keepalived-state-change";

/// The repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the repository").to_owned()
}

/// Where cargo builds.
pub fn target_directory() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// Cargo, with the repository as its directory.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// Runs cargo to its end.
pub fn run_cargo(words: &[&str]) -> Task {
    let status = cargo().args(words).status()?;
    if status.success() { Ok(()) } else { Err(Stop(format!("cargo {} failed", words.join(" ")))) }
}

/// The drop-in as it is shipped: small and static. Against musl where that target can be
/// had, against static glibc where it cannot.
pub fn dropin() -> Result<PathBuf, Stop> {
    let architecture = std::env::consts::ARCH;
    let musl = format!("{architecture}-unknown-linux-musl");
    let build =
        ["build", "--quiet", "--package", "vipwatch-dropin", "--profile", "dropin", "--target"];
    if has_target(&musl) {
        run_cargo(&[&build[..], &[&musl]].concat())?;
        return Ok(target_directory().join(&musl).join("dropin").join(PROGRAM));
    }
    eprintln!("xtask: the target {musl} cannot be had; building against static glibc");
    let gnu = format!("{architecture}-unknown-linux-gnu");
    let status =
        cargo().args(build).arg(&gnu).env("RUSTFLAGS", "-C target-feature=+crt-static").status()?;
    if !status.success() {
        return Err(Stop("the drop-in cannot be built".to_owned()));
    }
    Ok(target_directory().join(&gnu).join("dropin").join(PROGRAM))
}

/// `vipwatch`, by the profile `release`, as it is shipped, or `demo`, which is built sooner.
pub fn vipwatch(profile: &str) -> Result<PathBuf, Stop> {
    run_cargo(&["build", "--quiet", "--package", "vipwatch-cli", "--profile", profile])?;
    Ok(target_directory().join(profile).join("vipwatch"))
}

/// Whether the compiler can build for `target`; asks rustup for it if not.
fn has_target(target: &str) -> bool {
    let is_there = || {
        Command::new("rustc")
            .args(["--print", "target-libdir", "--target", target])
            .current_dir(root())
            .output()
            .is_ok_and(|output| Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir())
    };
    if is_there() {
        return true;
    }
    eprintln!("xtask: adding the compiler target {target}");
    let _ = Command::new("rustup")
        .args(["target", "add", target])
        .current_dir(root())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    is_there()
}

/// A test program: what it is called, and where it is.
pub struct TestProgram {
    pub package: String,
    pub target: String,
    pub path: PathBuf,
}

/// Builds every test of the workspace.
pub fn tests() -> Result<Vec<TestProgram>, Stop> {
    let output = cargo()
        .args(["test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"])
        // The last three are not part of a plain `cargo test`.
        .args(["--lib", "--bins", "--test", "netns", "--test", "contract", "--test", "neutron"])
        .stderr(Stdio::inherit())
        .output()?;
    if !output.status.success() {
        return Err(Stop("the tests cannot be built".to_owned()));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let program = |line: &str| -> Option<TestProgram> {
        let message: Value = serde_json::from_str(line).ok()?;
        let is_test = message["profile"]["test"] == Value::Bool(true);
        let path = message["executable"].as_str().filter(|_| is_test)?;
        let package = message["manifest_path"].as_str()?;
        let package = Path::new(package).parent()?.file_name()?.to_str()?;
        Some(TestProgram {
            package: package.to_owned(),
            target: message["target"]["name"].as_str()?.to_owned(),
            path: PathBuf::from(path),
        })
    };
    Ok(text.lines().filter_map(program).collect())
}
