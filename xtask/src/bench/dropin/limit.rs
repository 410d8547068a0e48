//! The limit on this machine: `limit.c`, which does the least that any monitor must do.

use std::path::PathBuf;
use std::process::Command;

use vipwatch_testkit::Router;

use super::as_service;
use crate::bench::report::{BenchTarget, Row};
use crate::{Stop, Task, build};

/// Ours takes at most so many times as long, at the median.
const MAX_TIMES: f64 = 1.2;

fn program() -> PathBuf {
    build::target_directory().join("bench/limit")
}

/// Compiles the limit.
pub fn build() -> Task {
    let program = program();
    std::fs::create_dir_all(program.parent().unwrap_or(&program))?;
    let source = build::root().join("xtask/src/bench/dropin/limit.c");
    let status = Command::new("cc").args(["-O2", "-o"]).arg(&program).arg(&source).status()?;
    if status.success() { Ok(()) } else { Err(Stop(format!("cc {} failed", source.display()))) }
}

/// The limit, in the router's namespace.
pub(super) fn command(router: &Router) -> Command {
    let address = router.cidr.split('/').next().unwrap_or_default();
    let mut command = Command::new("ip");
    command.args(["netns", "exec", router.netns.name()]).arg(program());
    command.args([&router.link, address]).arg(router.conf_dir.join("state"));
    command.arg(router.state_path.join("keepalived-state-change"));
    command.arg(&router.id).arg(router.pid_file());
    as_service(&mut command);
    command
}

/// How far ours is from the limit, by a row that has both.
pub(super) fn distance(row: &Row) -> Row {
    let mut distance = Row::new(format!("{}: ours ÷ limit", row.metric), "×");
    let limit = row.peers.get(2).copied().flatten();
    distance.ours = row.ours.zip(limit).map(|(ours, limit)| ours / limit);
    distance.target = Some(BenchTarget::AtMost(MAX_TIMES));
    distance
}
