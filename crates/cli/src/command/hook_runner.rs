// SPDX-License-Identifier: Apache-2.0
//! `vipwatch hook-runner`: runs the programs of hooks for a node.

use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;

use rustix::fs::OFlags;
use vipwatch_core::ErrorChain;
use vipwatch_linux::account::{AccountKind, id};
use vipwatch_linux::listen::{ListenError, SocketOptions, inherited, listen_at};
use vipwatch_linux::process::silence_standard_input;
use vipwatch_linux::signal::RunnerSignals;
use vipwatch_node::config::AllowedAccounts;
use vipwatch_node::hook_runner::{NODE_USER, RequestSource, Runner};
use vipwatch_node::log::{self, LogLevel};

use super::receiver::unknown_account;
use crate::args::HookRunnerArgs;
use crate::failure::{CommandError, ExitStatus};

/// Maximum number of connections that wait to be accepted.
const BACKLOG: i32 = 1024;

pub(crate) fn run(options: &HookRunnerArgs) -> Result<(), CommandError> {
    vipwatch_node::panic::exit_on_panic();
    let failed = |error: io::Error| CommandError::new(ExitStatus::Missing, error);
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
        RequestSource::Socket { listener: listener(options, passed)?, allow }
    };
    let runner = Runner::new(source, options.config.as_deref(), signals);
    let ended = runner.and_then(Runner::run);
    ended.map_err(|error| CommandError::new(ExitStatus::Missing, ErrorChain(&error)))
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

/// The socket that systemd has passed, or a new one.
fn listener(options: &HookRunnerArgs, passed: Option<OwnedFd>) -> Result<OwnedFd, CommandError> {
    if let Some(passed) = passed {
        return Ok(passed);
    }
    let group = id(NODE_USER, AccountKind::Group);
    let settings = SocketOptions { mode: 0o660, user: None, group, backlog: BACKLOG };
    let bound = listen_at(&options.socket, settings).map_err(|error| listen_failure(&error))?;
    Ok(bound.listener)
}

fn listen_failure(error: &ListenError) -> CommandError {
    let message = ErrorChain(error);
    match error {
        ListenError::Taken(_) => CommandError::new(ExitStatus::No, message).hint(
            "another hook runner uses this socket; stop it, or set another path with --socket",
        ),
        ListenError::Listen { source, .. } if source.kind() == ErrorKind::PermissionDenied => {
            CommandError::new(ExitStatus::NotPermitted, message)
                .hint("run it as root, or set another path with --socket")
        }
        ListenError::Listen { .. } | ListenError::NotASocket(_) | ListenError::Lost(_) => {
            CommandError::new(ExitStatus::Missing, message).hint("set another path with --socket")
        }
    }
}
