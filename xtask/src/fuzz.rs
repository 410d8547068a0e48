//! `cargo xtask fuzz`: readers of what others say, fed with anything. What makes one fail is kept, and shown.

pub mod keepalived;
mod mutation;

use std::path::PathBuf;
use std::process::Command;

use crate::build::{self, target_directory};
use crate::{Stop, Task, provision};

/// Every target; each is a program in `fuzz/targets`, with something to begin with in `fuzz/corpus`.
pub const TARGETS: [&str; 4] = ["request", "keepalived_conf", "netlink", "frame"];

/// What has the compiler count what an input reaches; no sanitizer, so an ordinary compiler will do.
const FLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Ccodegen-units=1 \
     -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
     -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares";

/// How long.
#[derive(Clone, Copy)]
enum Extent {
    Seconds(u64),
    /// So many inputs, the same every time.
    Inputs(u64),
}

pub fn run(words: &[&str]) -> Task {
    if let ["keepalived", rest @ ..] = words {
        return keepalived::outside(rest);
    }
    let mut targets = TARGETS.to_vec();
    let mut seconds = 60;
    let mut words = words.iter().copied();
    while let Some(word) = words.next() {
        match word {
            "--seconds" => {
                let value = words.next().and_then(|value| value.parse().ok());
                seconds = value.ok_or_else(|| Stop("--seconds needs a number".to_owned()))?;
            }
            word => {
                let known = TARGETS.into_iter().find(|target| *target == word);
                let unknown = || {
                    format!("unknown target {word:?}; there are keepalived, {}", TARGETS.join(", "))
                };
                targets = vec![known.ok_or_else(|| Stop(unknown()))?];
            }
        }
    }
    let home = build()?;
    targets.into_iter().try_for_each(|target| feed(&home, target, Extent::Seconds(seconds)))
}

/// A little of it, as a part of `cargo xtask test`.
pub fn briefly() -> Task {
    let home = build()?;
    TARGETS.into_iter().try_for_each(|target| feed(&home, target, Extent::Inputs(20_000)))
}

/// Builds every target; tells where.
fn build() -> Result<PathBuf, Stop> {
    provision::programs(&[provision::CPLUSPLUS])?;
    let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let directory = target_directory().join("fuzz");
    let status = build::cargo()
        .args(["build", "--quiet", "--locked", "--release", "--manifest-path", "fuzz/Cargo.toml"])
        .args(["--target", &triple, "--target-dir"])
        .arg(&directory)
        .env("RUSTFLAGS", FLAGS)
        .status()?;
    if !status.success() {
        return Err(Stop("the fuzz targets cannot be built".to_owned()));
    }
    Ok(directory.join(triple).join("release"))
}

fn feed(home: &std::path::Path, target: &str, extent: Extent) -> Task {
    let seeds = build::root().join("fuzz/corpus").join(target);
    let kept = target_directory().join("fuzz/corpus").join(target);
    let broken = target_directory().join("fuzz/broken").join(target);
    for directory in [&kept, &broken] {
        std::fs::create_dir_all(directory)?;
    }
    let mut command = Command::new(home.join(target));
    command.args(["-print_final_stats=1", "-verbosity=0", "-timeout=10", "-max_len=16384"]);
    command.arg(format!("-artifact_prefix={}/", broken.display()));
    match extent {
        Extent::Seconds(seconds) => {
            println!("── fuzz · {target}, for {seconds} s");
            command.arg(format!("-max_total_time={seconds}")).arg(&kept);
        }
        Extent::Inputs(count) => {
            println!("── fuzz · {target}, {count} inputs");
            // Nothing is kept, so that the next time is like this one.
            let brief = target_directory().join("fuzz/brief").join(target);
            let _ = std::fs::remove_dir_all(&brief);
            std::fs::create_dir_all(&brief)?;
            command.args([&format!("-runs={count}"), "-seed=1"]).arg(brief);
        }
    }
    let output = command.arg(&seeds).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(Stop(format!(
            "{target} failed; what it failed on is in {}\n{said}",
            broken.display()
        )));
    }
    let is_stat = |line: &&str| line.contains("executed_units") || line.contains("peak_rss");
    for line in said.lines().filter(is_stat) {
        println!("{line}");
    }
    Ok(())
}
