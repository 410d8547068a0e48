// SPDX-License-Identifier: Apache-2.0
//! Builds the programs that are tested, measured and shipped.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{TaskError, TaskResult, process};

/// The name of the drop-in's executable.
pub const DROPIN: &str = "neutron-keepalived-state-change";

/// The root directory of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask is a directory of the repository")
        .to_owned()
}

/// The target directory of cargo.
pub fn target_directory() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// The directory of cargo for fetched crates and installed programs.
pub fn cargo_home() -> Option<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")))
}

/// A cargo command that runs in the root directory.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// Runs cargo and waits for its end.
pub fn run_cargo(args: &[&str]) -> TaskResult {
    process::run(cargo().args(args))
}

/// Writes a file of the repository.
pub fn write(path: &Path, content: &[u8]) -> TaskResult {
    std::fs::File::create(path).and_then(|mut file| file.write_all(content))?;
    Ok(())
}

/// Builds the drop-in as it is shipped: small and static. It is linked against musl; against static glibc if the
/// compiler target for musl cannot be installed.
pub fn dropin() -> Result<PathBuf, TaskError> {
    let build =
        ["build", "--quiet", "--package", "vipwatch-dropin", "--profile", "dropin", "--target"];
    let musl = dropin_target("musl");
    if has_target(&musl) {
        run_cargo(&[&build[..], &[&musl]].concat())?;
        return Ok(dropin_path());
    }
    eprintln!(
        "xtask: cannot install the compiler target {musl}; linking against static glibc instead"
    );
    // An earlier build for musl would be taken for this one.
    let _ = std::fs::remove_file(dropin_path());
    let mut command = cargo();
    command.args(build).arg(dropin_target("gnu"));
    process::run(command.env("RUSTFLAGS", "-C target-feature=+crt-static"))?;
    Ok(dropin_path())
}

/// The path of the drop-in that [`dropin`] has built.
pub fn dropin_path() -> PathBuf {
    let path =
        |library| target_directory().join(dropin_target(library)).join("dropin").join(DROPIN);
    Some(path("musl")).filter(|path| path.exists()).unwrap_or_else(|| path("gnu"))
}

fn dropin_target(library: &str) -> String {
    format!("{}-unknown-linux-{library}", std::env::consts::ARCH)
}

/// Builds `vipwatch` with the profile `release`, as it is shipped.
pub fn vipwatch() -> Result<PathBuf, TaskError> {
    run_cargo(&["build", "--quiet", "--package", "vipwatch-cli", "--release"])?;
    Ok(target_directory().join("release/vipwatch"))
}

/// The name of the example that writes the OpenAPI document.
pub const OPENAPI: &str = "openapi";

/// Builds debug programs of the workspace with these names; returns their directory.
///
/// Cargo chooses the features of a dependency for all selected packages together, and compiles a crate once for each
/// choice. So this selection has the same features as that of [`tests`]: the whole workspace, and an example, which has the
/// dev-dependencies as tests have. With `--package`, each command would compile most crates again.
pub fn debug_programs(names: &[&str]) -> Result<PathBuf, TaskError> {
    let mut args = vec!["build", "--quiet", "--workspace", "--example", OPENAPI];
    for name in names {
        args.extend(["--bin", name]);
    }
    run_cargo(&args)?;
    Ok(target_directory().join("debug"))
}

/// Builds the program that writes the OpenAPI document.
pub fn openapi() -> Result<PathBuf, TaskError> {
    Ok(debug_programs(&[])?.join("examples").join(OPENAPI))
}

/// Builds the program of `cargo xtask fuzz keepalived`.
pub fn compare() -> Result<PathBuf, TaskError> {
    Ok(debug_programs(&["vipwatch-compare"])?.join("vipwatch-compare"))
}

/// Builds the program of `cargo xtask bench`: optimised, so that the measuring code takes little CPU time from the measured
/// programs, and so that its simulated nodes are as fast as a real one.
pub fn bench() -> Result<PathBuf, TaskError> {
    eprintln!("xtask: building the measuring program");
    run_cargo(&["build", "--quiet", "--package", "vipwatch-bench", "--profile", "measure"])?;
    Ok(target_directory().join("measure/vipwatch-bench"))
}

/// Whether the compiler can build for `target`. If it cannot, rustup tries to install the target first.
pub fn has_target(target: &str) -> bool {
    let is_installed = || {
        Command::new("rustc")
            .args(["--print", "target-libdir", "--target", target])
            .current_dir(root())
            .output()
            .is_ok_and(|output| Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir())
    };
    if is_installed() {
        return true;
    }
    eprintln!("xtask: installing the compiler target {target}");
    let _ = Command::new("rustup")
        .args(["target", "add", target])
        .current_dir(root())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    is_installed()
}

/// An executable with tests.
#[derive(Serialize, Deserialize)]
pub struct TestProgram {
    /// The directory name of its package: `node`, `cli`, …
    pub package: String,
    /// The name of cargo's target; for integration tests, that of the suite.
    pub target: String,
    pub path: PathBuf,
}

impl TestProgram {
    /// Package and target, for example `cli/netns`.
    pub fn name(&self) -> String {
        format!("{}/{}", self.package, self.target)
    }
}

/// Builds tests of the workspace: `options` are those with which cargo chooses targets.
pub fn tests(options: &[&str]) -> Result<Vec<TestProgram>, TaskError> {
    let output = cargo()
        .args(["test", "--no-run", "--message-format=json-render-diagnostics"])
        // A package alone would have other features; see `debug_programs`.
        .arg("--workspace")
        .args(options)
        .stderr(Stdio::inherit())
        .output()?;
    if !output.status.success() {
        return Err(TaskError("cannot build the tests".to_owned()));
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
