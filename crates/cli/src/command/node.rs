//! `vipwatch node`: one process for every instance of this node.

use std::path::PathBuf;

use vipwatch_core::ErrorChain;
use vipwatch_history::HistoryError;
use vipwatch_linux::listen::ListenError;
use vipwatch_linux::process::share_heaps;
use vipwatch_node::config::{ConfigError, LogFormat};
use vipwatch_node::log::{self, LogLevel};
use vipwatch_node::service::StartupFds;
use vipwatch_node::{Config, NodeError};

use crate::args::{LogTo, NodeArgs, wrong};
use crate::failure::{CommandError, ExitStatus};

pub(crate) fn run(options: &NodeArgs) -> Result<(), CommandError> {
    vipwatch_node::panic::exit_on_panic();
    let startup_fds = StartupFds::take().map_err(|error| failure(&NodeError::Signals(error)))?;
    // ORDER: before the log, which has a thread.
    share_heaps();
    let said = Said::of(options);
    let config = said.load().map_err(|error| wrong(&error))?;
    let level = if options.debug { LogLevel::Debug } else { LogLevel::Info };
    let _log = log::open(config.log, level).map_err(|error| failure(&NodeError::Start(error)))?;
    let reload = Box::new(move || said.load());
    let node = vipwatch_node::Node::start(config, reload, startup_fds);
    let node = node.map_err(|error| failure(&error))?;
    node.run().map_err(|error| failure(&error))
}

/// What the command line says, which counts more than the file, also when that is read again.
struct Said {
    file: Option<PathBuf>,
    state_dir: Option<PathBuf>,
    socket: Option<PathBuf>,
    neutron: Option<PathBuf>,
    keepalived: Option<PathBuf>,
    log: Option<LogFormat>,
}

impl Said {
    fn of(options: &NodeArgs) -> Self {
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
        }
    }

    fn load(&self) -> Result<Config, ConfigError> {
        let mut config = Config::load_trusted(self.file.as_deref())?;
        let paths = [
            (&mut config.state_dir, &self.state_dir),
            (&mut config.socket, &self.socket),
            (&mut config.places.neutron, &self.neutron),
            (&mut config.places.keepalived, &self.keepalived),
        ];
        for (place, said) in paths {
            if let Some(said) = said {
                place.clone_from(said);
            }
        }
        if let (Some(agent), Some(neutron)) = (&mut config.agent, &self.neutron) {
            agent.move_to(neutron);
        }
        config.log = self.log.unwrap_or(config.log);
        Ok(config)
    }
}

fn failure(error: &NodeError) -> CommandError {
    use std::io::ErrorKind::PermissionDenied;
    let message = ErrorChain(error);
    match error {
        NodeError::Taken(_) | NodeError::QueryServer(ListenError::Taken(_)) => {
            CommandError::new(ExitStatus::No, message)
                .hint("one node process is enough for a machine")
        }
        NodeError::StateDir { source, .. }
        | NodeError::QueryServer(ListenError::Listen { source, .. })
            if source.kind() == PermissionDenied =>
        {
            CommandError::new(ExitStatus::NotPermitted, message)
                .hint("run it as root, or give other places with --state-dir and --socket")
        }
        NodeError::StateDir { .. } => CommandError::new(ExitStatus::Missing, message)
            .hint("give another one with --state-dir"),
        NodeError::Listen(_) => {
            CommandError::new(ExitStatus::NotPermitted, message).hint("run it as root")
        }
        NodeError::QueryServer(ListenError::NotASocket(_)) => {
            CommandError::new(ExitStatus::Missing, message)
                .hint("remove it, or give another place with --socket")
        }
        NodeError::History(HistoryError::TooNew { .. }) => {
            CommandError::new(ExitStatus::Missing, message)
                .hint("use the program that wrote it, or another --state-dir")
        }
        NodeError::Signals(_)
        | NodeError::History(_)
        | NodeError::QueryServer(ListenError::Listen { .. } | ListenError::Lost(_))
        | NodeError::Start(_)
        | NodeError::Wait(_) => CommandError::new(ExitStatus::Missing, message),
    }
}
