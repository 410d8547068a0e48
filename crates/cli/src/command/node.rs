// SPDX-License-Identifier: Apache-2.0
//! `vipwatch node`: runs the node, one process for all instances.

use std::io::{self, ErrorKind};
use std::path::PathBuf;

use vipwatch_core::ErrorChain;
use vipwatch_linux::listen::ListenError;
use vipwatch_linux::process::share_heaps;
use vipwatch_node::api_server::ApiServerError;
use vipwatch_node::config::{ConfigError, LogFormat, ProgramCheck};
use vipwatch_node::log::{self, LogLevel};
use vipwatch_node::service::StartupFds;
use vipwatch_node::{Config, NodeError};
use vipwatch_web::WebFileError;

use crate::args::{LogTo, NodeArgs, config_error};
use crate::failure::{CommandError, ExitStatus};

pub(crate) fn run(options: &NodeArgs) -> Result<(), CommandError> {
    vipwatch_node::panic::exit_on_panic();
    let startup_fds = StartupFds::take().map_err(|error| failure(&NodeError::Signals(error)))?;
    // ORDER: before the log, which starts a thread.
    share_heaps();
    let overrides = Overrides::new(options);
    let config = overrides.load().map_err(|error| config_error(&error))?;
    let level = if options.debug { LogLevel::Debug } else { LogLevel::Info };
    let _log =
        log::open(config.log, level).map_err(|error| failure(&NodeError::StartWorker(error)))?;
    let reload = Box::new(move || overrides.load());
    let node =
        vipwatch_node::Node::start(config, reload, startup_fds, vipwatch_web::WebServer::opener());
    let node = node.map_err(|error| failure(&error))?;
    node.run().map_err(|error| failure(&error))
}

/// Options that override the configuration file, also after a reload.
struct Overrides {
    file: Option<PathBuf>,
    state_dir: Option<PathBuf>,
    socket: Option<PathBuf>,
    neutron: Option<PathBuf>,
    keepalived: Option<PathBuf>,
    log: Option<LogFormat>,
    hook_runner: Option<PathBuf>,
}

impl Overrides {
    fn new(options: &NodeArgs) -> Self {
        let log = options.log.map(|log| match log {
            LogTo::Text => LogFormat::Text,
            LogTo::Json => LogFormat::Json,
            LogTo::Journald => LogFormat::Journald,
        });
        Self {
            file: options.config.clone(),
            state_dir: options.state_dir.clone(),
            socket: options.socket.clone(),
            neutron: options.state_path.clone(),
            keepalived: options.keepalived_conf.clone(),
            log,
            hook_runner: options.hook_runner.clone(),
        }
    }

    fn load(&self) -> Result<Config, ConfigError> {
        let programs = ProgramCheck::in_node(self.hook_runner.as_deref());
        let mut config = Config::load_trusted(self.file.as_deref(), programs)?;
        config.check_target_secrets()?;
        let paths = [
            (&mut config.state_dir, &self.state_dir),
            (&mut config.socket, &self.socket),
            (&mut config.locations.neutron, &self.neutron),
        ];
        for (setting, option) in paths {
            if let Some(path) = option {
                setting.clone_from(path);
            }
        }
        if let Some(file) = &self.keepalived {
            config.locations.keepalived = vec![file.clone()];
        }
        if let (Some(receiver), Some(neutron)) = (&mut config.receiver, &self.neutron) {
            receiver.set_state_path(neutron);
        }
        config.log = self.log.unwrap_or(config.log);
        config.hook_runner.clone_from(&self.hook_runner);
        Ok(config)
    }
}

fn failure(error: &NodeError) -> CommandError {
    let message = ErrorChain(error);
    match error {
        NodeError::StateDirInUse(_)
        | NodeError::ApiServer(ApiServerError::Socket(ListenError::Taken(_))) => {
            CommandError::new(ExitStatus::No, message).hint("run one node process on a machine")
        }
        NodeError::StateDir { source, .. }
        | NodeError::ApiServer(ApiServerError::Socket(ListenError::Listen { source, .. }))
            if source.kind() == ErrorKind::PermissionDenied =>
        {
            CommandError::new(ExitStatus::NotPermitted, message)
                .hint("run it as root, or set other paths with --state-dir and --socket")
        }
        NodeError::StateDir { .. } => CommandError::new(ExitStatus::NotFound, message)
            .hint("set another directory with --state-dir"),
        NodeError::Listen(_) => {
            CommandError::new(ExitStatus::NotPermitted, message).hint("run it as root")
        }
        NodeError::ApiServer(ApiServerError::Socket(ListenError::NotASocket(_))) => {
            CommandError::new(ExitStatus::No, message)
                .hint("remove it, or set another path with --socket")
        }
        NodeError::ApiServer(ApiServerError::Tcp { source, .. }) => tcp_failure(message, source),
        NodeError::ApiServer(ApiServerError::WebFiles { source }) => {
            let failure = CommandError::new(ExitStatus::NotFound, message);
            match source.downcast_ref::<WebFileError>() {
                Some(error) => failure.hint(error.hint()),
                None => failure,
            }
        }
        NodeError::Signals(_)
        | NodeError::History(_)
        | NodeError::ApiServer(ApiServerError::Socket(
            ListenError::Listen { .. } | ListenError::Lost(_),
        ))
        | NodeError::StartWorker(_)
        | NodeError::Wait(_) => CommandError::new(ExitStatus::No, message),
    }
}

/// An address of `web.listen` that cannot be used.
fn tcp_failure(message: ErrorChain<'_>, source: &io::Error) -> CommandError {
    let (status, hint) = match source.kind() {
        ErrorKind::AddrInUse => (
            ExitStatus::No,
            "another process uses the port, `ss -ltnp` shows which one; stop it, or set another port in web.listen",
        ),
        ErrorKind::PermissionDenied => (
            ExitStatus::NotPermitted,
            "a port below 1024 needs root or CAP_NET_BIND_SERVICE; set a higher port in web.listen",
        ),
        ErrorKind::AddrNotAvailable => (
            ExitStatus::NotFound,
            "this machine does not have the address: correct web.listen, or start the node after the network",
        ),
        _ => (ExitStatus::No, "set another address in web.listen"),
    };
    CommandError::new(status, message).hint(hint)
}
