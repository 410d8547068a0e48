// SPDX-License-Identifier: Apache-2.0
//! `cargo xtask bench NAME`: builds the measured programs, installs the peers, and starts `vipwatch-bench`, the
//! crate `xtask/bench`, in its own namespaces.

use std::path::PathBuf;
use std::process::Command;

use crate::arguments::Arguments;
use crate::{TaskError, TaskResult, build, dist, process, provision, sandbox};

pub const HELP: &str = "\
Measure vipwatch and the programs it replaces, one after the other in one run on one machine.

Usage: cargo xtask bench NAME [--quick] [--json FILE]

Benches:
  cluster   Measure the cluster view with a real etcd: from a role change to the view of another node, with 1, 1,000 and
            10,000 changes at once; memory; 100 nodes with 100 instances each
  discovery Measure a scan of 5,000 routers, and the time to state files while a hostile configuration is read
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
VIPWATCH_BEFORE=PROGRAM compares `discovery` with an earlier build.
The environment variable VIPWATCH_NAMESPACES=N measures `node` and `witness` at N namespaces only.
VIPWATCH_BROWSER_REPORT=FILE adds the frame times that the test of the dashboard has written to FILE to `web`.
Neutron is installed from PyPI, once, below ~/.cache/vipwatch. Close other programs first: they change the results.

Examples:
  cargo xtask bench dropin --quick
  VIPWATCH_NAMESPACES=1000 cargo xtask bench node --json node.json
";

const NAMES: [&str; 8] =
    ["cluster", "discovery", "dropin", "announce", "node", "receiver", "web", "witness"];

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
    let mut args = Arguments::new(args);
    let json = args.path("--json")?;
    let is_quick = args.flag("--quick");
    let known = NAMES.join(", ");
    let name = args.word("bench", &NAMES)?;
    let name = name.ok_or_else(|| format!("no bench given; choose one of {known}"))?;
    args.finish()?;
    provision::programs(&[provision::BASIC])?;
    provision::programs(match name {
        "node" | "receiver" => &[provision::PEERS],
        "cluster" => &[provision::ETCD],
        "discovery" => &[],
        "web" => &[provision::KEEPALIVED],
        "witness" => &[provision::KEEPALIVED, provision::IPERF3],
        "dropin" => &[provision::PEERS, provision::C_COMPILER],
        _ => &[provision::TCPDUMP, provision::ARPING],
    })?;
    sandbox::check_namespaces()?;
    let program = build::bench()?.display().to_string();
    let subject =
        if matches!(name, "dropin" | "announce") { build::dropin()? } else { dist::vipwatch()? };
    let mut paths = vec![("VIPWATCH_SUBJECT", subject)];
    if matches!(name, "node" | "receiver" | "dropin") {
        paths.push(("VIPWATCH_NEUTRON_29", provision::neutron("29.0.0")?));
    }
    if name == "dropin" {
        paths.push(("VIPWATCH_NEUTRON_28", provision::neutron("28.0.2")?));
        paths.push(("VIPWATCH_LIMIT", build_limit()?));
    }
    paths.extend(json.map(|path| ("VIPWATCH_JSON", path)));
    let before = std::env::var_os("VIPWATCH_BEFORE").map(PathBuf::from);
    paths.extend(before.map(|path| ("VIPWATCH_BEFORE", path)));
    let environment: Vec<_> =
        paths.iter().map(|(name, path)| (*name, path.display().to_string())).collect();
    let mut line = vec!["bench", &program, name];
    line.extend(is_quick.then_some("--quick"));
    sandbox::enter(&line, &environment)
}

/// Compiles `limit.c`, the lower bound of `bench dropin`.
fn build_limit() -> Result<PathBuf, TaskError> {
    let directory = build::target_directory().join("bench");
    std::fs::create_dir_all(&directory)?;
    let (program, source) =
        (directory.join("limit"), build::root().join("xtask/bench/src/dropin/limit.c"));
    process::run(Command::new("cc").args(["-O2", "-o"]).arg(&program).arg(&source))?;
    Ok(program)
}
