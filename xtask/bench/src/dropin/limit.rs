// SPDX-License-Identifier: Apache-2.0
//! The lower bound on this machine: `limit.c`, which does only what every monitor must do.

use std::path::Path;
use std::process::Command;

use vipwatch_testkit::Router;

use super::as_service;
use crate::report::{BenchTarget, Row};

/// The target: the median of the drop-in divided by that of the limit.
const MAX_RATIO: f64 = 1.2;

/// The command that runs `program`, the compiled `limit.c`, in the router's namespace.
pub(super) fn command(program: &Path, router: &Router) -> Command {
    let address = router.cidr.split('/').next().unwrap_or_default();
    let mut command = Command::new("ip");
    command.args(["netns", "exec", router.netns.name()]).arg(program);
    command.args([&router.link, address]).arg(router.conf_dir.join("state"));
    command.arg(router.state_path.join("keepalived-state-change"));
    command.arg(&router.id).arg(router.pid_file());
    as_service(&mut command);
    command
}

/// The ratio of the drop-in to the limit, from a row that has both.
pub(super) fn distance(row: &Row) -> Row {
    let limit = row.peers.get(2).copied().flatten();
    let ratio = row.ours.zip(limit).map(|(ours, limit)| ours / limit);
    let distance = Row::new(format!("{}: ours ÷ limit", row.metric), "×");
    distance.ours(ratio).target(BenchTarget::AtMost(MAX_RATIO))
}
