// SPDX-License-Identifier: Apache-2.0
//! `cargo xtask bench NAME`: builds the measured programs, installs the peers, and starts `vipwatch-bench`, the
//! crate `xtask/bench`, in its own namespaces.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use crate::{TaskError, TaskResult, build, dist, provision, sandbox};

pub const HELP: &str = "\
Measure vipwatch and the programs it replaces, one after the other in one run on one machine.

Usage: cargo xtask bench NAME [--quick] [--json FILE]

Benches:
  cluster   Measure the cluster view with a real etcd: from a role change to the view of another node, with 1, 1,000 and
            10,000 changes at once; memory; 100 nodes with 100 instances each
  dropin    Measure the drop-in, the script of Neutron 29.0.0 and the daemon of Neutron 28.0.2: time from the
            change of an address to the state file and to the agent, CPU time, memory, processes
  announce  Measure gratuitous ARP of the drop-in and of arping, for 1, 100 and 1,000 addresses
  node      Measure one node and one script for each namespace, at 10, 1,000 and 5,000 namespaces
  receiver  Measure the receiver and that of Neutron 29.0.0: 1,000 reports at once, and a minute of reports
  web       Measure a node that answers over TCP, and the dump with which exporters read a keepalived: time to events,
            cost of a request, 500 clients, memory
  witness   Measure a node with and without its witness: CPU time, wake-ups and memory at 1,000 adverts a second, time
            to findings, forwarding of a captured link, state files, and the end of the process

Options:
  --quick      Repeat less often and use fewer instances; the results are too inexact to be quoted
  --json FILE  Write the results to FILE as JSON too

The results are printed as a Markdown table. docs/reference/bench-NAME.md explains every row.
The environment variable VIPWATCH_NAMESPACES=N measures `node` and `witness` at N namespaces only.
VIPWATCH_BROWSER_REPORT=FILE adds the frame times that the test of the dashboard has written to FILE to `web`.
Neutron is installed from PyPI, once, below ~/.cache/vipwatch. Close other programs first: they change the results.

Examples:
  cargo xtask bench dropin --quick
  VIPWATCH_NAMESPACES=1000 cargo xtask bench node --json node.json
";

const NAMES: [&str; 7] = ["cluster", "dropin", "announce", "node", "receiver", "web", "witness"];

/// A parsed command line.
struct BenchOptions<'a> {
    name: &'a str,
    is_quick: bool,
    json: Option<PathBuf>,
}

fn parse<'a>(args: &[&'a str]) -> Result<BenchOptions<'a>, TaskError> {
    let mut name = None;
    let mut json = None;
    let mut is_quick = false;
    let mut args = args.iter().copied();
    while let Some(arg) = args.next() {
        match arg {
            "--json" => {
                let path =
                    args.next().ok_or_else(|| TaskError("--json needs a file".to_owned()))?;
                json = Some(std::path::absolute(path)?);
            }
            "--quick" => is_quick = true,
            arg if arg.starts_with('-') => return Err(TaskError(format!("unknown option {arg}"))),
            arg => name = Some(arg),
        }
    }
    let known = NAMES.join(", ");
    let name = name.ok_or_else(|| TaskError(format!("no bench given; choose one of {known}")))?;
    if !NAMES.contains(&name) {
        return Err(TaskError(format!("unknown bench {name:?}; choose one of {known}")));
    }
    Ok(BenchOptions { name, is_quick, json })
}

/// Runs every bench with `--quick`, one after the other, so that none stops working unnoticed.
pub fn all_quickly() -> TaskResult {
    let mut failed = Vec::new();
    for name in NAMES {
        println!("── bench · {name} --quick");
        if let Err(TaskError(error)) = prepare(&[name, "--quick"]) {
            println!("bench {name} failed: {error}");
            failed.push(name);
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    Err(TaskError(format!("failed benches: {}", failed.join(", "))))
}

/// Builds and installs everything, then starts the bench in the sandbox.
pub fn prepare(args: &[&str]) -> TaskResult {
    let options = parse(args)?;
    provision::programs(&[provision::BASIC])?;
    sandbox::check_namespaces()?;
    let mut line = vec!["bench".to_owned(), build::bench()?.display().to_string()];
    line.push(options.name.to_owned());
    let mut add = |option: &str, path: PathBuf| {
        line.extend([option.to_owned(), path.display().to_string()]);
    };
    if matches!(options.name, "node" | "receiver") {
        add("--subject", dist::vipwatch()?);
        provision::programs(&[provision::PEERS])?;
        add("--neutron-29", provision::neutron("29.0.0")?);
    } else if options.name == "cluster" {
        add("--subject", dist::vipwatch()?);
        provision::programs(&[provision::ETCD])?;
    } else if options.name == "web" {
        add("--subject", dist::vipwatch()?);
        provision::programs(&[provision::KEEPALIVED])?;
    } else if options.name == "witness" {
        add("--subject", dist::vipwatch()?);
        provision::programs(&[provision::KEEPALIVED, provision::IPERF3])?;
    } else if options.name == "dropin" {
        add("--subject", build::dropin()?);
        provision::programs(&[provision::PEERS, provision::C_COMPILER])?;
        add("--limit", build_limit()?);
        add("--neutron-29", provision::neutron("29.0.0")?);
        add("--neutron-28", provision::neutron("28.0.2")?);
    } else {
        add("--subject", build::dropin()?);
        provision::programs(&[provision::TCPDUMP, provision::ARPING])?;
    }
    if let Some(json) = options.json {
        add("--json", json);
    }
    line.extend(options.is_quick.then(|| "--quick".to_owned()));
    let line: Vec<&str> = line.iter().map(String::as_str).collect();
    sandbox::enter(&line, &[])
}

/// Compiles `limit.c`, the lower bound of `bench dropin`.
fn build_limit() -> Result<PathBuf, TaskError> {
    let program = build::target_directory().join("bench/limit");
    std::fs::create_dir_all(program.parent().unwrap_or(&program))?;
    let source = build::root().join("xtask/bench/src/dropin/limit.c");
    let status = Command::new("cc").args(["-O2", "-o"]).arg(&program).arg(&source).status()?;
    if status.success() {
        return Ok(program);
    }
    Err(TaskError(format!("cannot compile {}", source.display())))
}

/// Replaces this process by `vipwatch-bench`, with the rest of `args`.
///
/// The bench must be the first process of the PID namespace: it inherits the monitors that run in the background.
pub fn run(args: &[&str]) -> TaskResult {
    let (program, args) =
        args.split_first().ok_or_else(|| TaskError("no bench program given".to_owned()))?;
    let error = Command::new(program).args(args).exec();
    Err(TaskError(format!("cannot start {program}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_may_stand_before_and_after_the_name() {
        let options = parse(&["--quick", "node", "--json", "/tmp/node.json"]).ok().unwrap();
        assert_eq!(options.name, "node");
        assert!(options.is_quick);
        assert_eq!(options.json, Some(PathBuf::from("/tmp/node.json")));
    }

    #[test]
    fn an_unknown_bench_is_refused() {
        assert!(parse(&["disk"]).is_err());
        assert!(parse(&[]).is_err());
        assert!(parse(&["node", "--json"]).is_err());
    }
}
