// SPDX-License-Identifier: Apache-2.0
//! `vipwatch hook-runner`: runs the programs of hooks for a node.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use rustix::fs::OFlags;
use vipwatch_core::ErrorChain;
use vipwatch_linux::account::{AccountKind, id};
use vipwatch_linux::listen::{bound_path, inherited};
use vipwatch_linux::process::silence_standard_input;
use vipwatch_linux::signal::RunnerSignals;
use vipwatch_node::config::AllowedAccounts;
use vipwatch_node::hook_runner::{NODE_USER, RequestSource, Runner};
use vipwatch_node::log::{self, LogLevel};

use super::receiver::unknown_account;
use crate::args::HookRunnerArgs;
use crate::failure::{CommandError, ExitStatus};

pub(crate) fn run(options: &HookRunnerArgs) -> Result<(), CommandError> {
    vipwatch_node::panic::exit_on_panic();
    let failed = |error: io::Error| CommandError::new(ExitStatus::No, error);
    // ORDER: before the process opens a file, which could get the same descriptor number.
    let passed = inherited();
    let signals = RunnerSignals::block().map_err(failed)?;
    // The log of a child is that of the node, which logs the results of hooks itself.
    if !options.child || options.debug {
        let level = if options.debug { LogLevel::Debug } else { LogLevel::Info };
        log::open_without_thread(level);
    }
    let source = if options.child {
        RequestSource::Node(node_socket().map_err(failed)?)
    } else {
        let allow = allowed_accounts(options)?;
        RequestSource::Socket { listener: checked(passed)?, allow }
    };
    let runner = Runner::new(source, options.config.as_deref(), signals);
    let ended = runner.and_then(Runner::run);
    ended.map_err(|error| CommandError::new(ExitStatus::No, ErrorChain(&error)))
}

/// The socket to the node, on another descriptor than standard input, which the programs of hooks would inherit.
fn node_socket() -> io::Result<OwnedFd> {
    let socket = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    silence_standard_input()?;
    let flags = rustix::fs::fcntl_getfl(&socket)?;
    rustix::fs::fcntl_setfl(&socket, flags | OFlags::NONBLOCK)?;
    Ok(socket)
}

fn allowed_accounts(options: &HookRunnerArgs) -> Result<AllowedAccounts, CommandError> {
    let mut allow = AllowedAccounts::default();
    for name in &options.allow {
        allow.add(name).map_err(|error| unknown_account(&error.name, error.kind))?;
    }
    if options.allow.is_empty() {
        allow.users.extend(id(NODE_USER, AccountKind::User));
    }
    Ok(allow)
}

/// The passed socket, if other users cannot pass its directory.
fn checked(passed: Option<OwnedFd>) -> Result<OwnedFd, CommandError> {
    let missing = || {
        let text = "the service manager has passed no socket to the hook runner";
        CommandError::new(ExitStatus::NotFound, text)
            .hint("start vipwatch-hook-runner.socket; a node without --hook-runner starts its own")
    };
    let listener = passed.ok_or_else(missing)?;
    let directory = bound_path(&listener).and_then(|path| path.parent().map(PathBuf::from));
    let directory = directory.ok_or_else(missing)?;
    let own_user = rustix::process::geteuid().as_raw();
    // Others can neither pass the directory nor change it.
    let is_closed = directory.symlink_metadata().is_ok_and(|metadata| {
        metadata.is_dir() && metadata.mode() & 0o033 == 0 && [0, own_user].contains(&metadata.uid())
    });
    if is_closed {
        return Ok(listener);
    }
    let (text, directory) = ("other users can reach the hook runner's socket", directory.display());
    Err(CommandError::new(ExitStatus::NotPermitted, format!("{text} in {directory}")).hint(
        format!("run `chown root` and `chmod 0700` on {directory}, and set DirectoryMode=0700"),
    ))
}
