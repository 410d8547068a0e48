// SPDX-License-Identifier: Apache-2.0
//! `vipwatch cluster`: prints what the nodes of a cluster know together.
//!
//! ```text
//!   node's API, or etcd ──▶ source ──▶ documents ──▶ selection ──▶ one file for each command
//! ```

mod balance;
mod basis;
mod drain_check;
mod etcd;
mod findings;
mod history;
mod node_feed;
mod nodes;
mod selection;
mod silence;
mod source;
mod status;
mod watch;

pub(super) use self::basis::push_warning;
pub(crate) use self::etcd::settings as etcd_settings;
pub(super) use self::node_feed::NodeFeed;
pub(super) use self::status::{addresses, backups, details, group_counts};
use crate::args::{ClusterArgs, ClusterCommand, EtcdOptions};
use crate::failure::CommandError;

/// Runs a subcommand. `root` has the options that stand before `cluster`.
pub(crate) fn run(options: &ClusterArgs, root: &EtcdOptions) -> Result<(), CommandError> {
    let given = options.command.etcd().clone().or(&options.etcd).or(root);
    let etcd = given.clone().or_environment();
    if etcd.etcd.is_empty() {
        given.check_needless()?;
    }
    match &options.command {
        ClusterCommand::Status(options) => status::run(options, &etcd),
        ClusterCommand::Watch(options) => watch::run(options, &etcd),
        ClusterCommand::Findings(options) => findings::run(options, &etcd),
        ClusterCommand::History(options) => history::run(options, &etcd),
        ClusterCommand::Balance(options) => balance::run(options, &etcd),
        ClusterCommand::Silence(options) => silence::run(options, &etcd),
        ClusterCommand::DrainCheck(options) => drain_check::run(options, &etcd),
        ClusterCommand::Nodes(options) => nodes::run(options, &etcd),
    }
}
