//! `vipwatch node`: one process for every instance of this node.

use std::path::PathBuf;

use vipwatch_core::Chain;
use vipwatch_history::HistoryError;
use vipwatch_linux::listen::ListenError;
use vipwatch_linux::process::share_heaps;
use vipwatch_node::config::{ConfigError, LogFormat};
use vipwatch_node::log::{self, Level};
use vipwatch_node::service::Inheritance;
use vipwatch_node::{Config, NodeError};

use crate::args::{LogTo, Node, wrong};
use crate::failure::{Code, Failure};

pub(crate) fn run(options: &Node) -> Result<(), Failure> {
    vipwatch_node::panic::exit_on_panic();
    let inheritance = Inheritance::take().map_err(|error| failure(&NodeError::Signals(error)))?;
    // ORDER: before the log, which has a thread.
    share_heaps();
    let said = Said::of(options);
    let config = said.load().map_err(|error| wrong(&error))?;
    let level = if options.debug { Level::Debug } else { Level::Info };
    let _log = log::open(config.log, level).map_err(|error| failure(&NodeError::Start(error)))?;
    let reload = Box::new(move || said.load());
    let node = vipwatch_node::Node::start(config, reload, inheritance);
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
    fn of(options: &Node) -> Self {
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

fn failure(error: &NodeError) -> Failure {
    use std::io::ErrorKind::PermissionDenied;
    let message = Chain(error);
    match error {
        NodeError::Taken(_) | NodeError::Desk(ListenError::Taken(_)) => {
            Failure::new(Code::No, message).hint("one node process is enough for a machine")
        }
        NodeError::StateDir { source, .. }
        | NodeError::Desk(ListenError::Listen { source, .. })
            if source.kind() == PermissionDenied =>
        {
            Failure::new(Code::NotPermitted, message)
                .hint("run it as root, or give other places with --state-dir and --socket")
        }
        NodeError::StateDir { .. } => {
            Failure::new(Code::Missing, message).hint("give another one with --state-dir")
        }
        NodeError::Listen(_) => Failure::new(Code::NotPermitted, message).hint("run it as root"),
        NodeError::Desk(ListenError::NotASocket(_)) => Failure::new(Code::Missing, message)
            .hint("remove it, or give another place with --socket"),
        NodeError::History(HistoryError::TooNew { .. }) => Failure::new(Code::Missing, message)
            .hint("use the program that wrote it, or another --state-dir"),
        NodeError::Signals(_)
        | NodeError::History(_)
        | NodeError::Desk(ListenError::Listen { .. } | ListenError::Lost(_))
        | NodeError::Start(_)
        | NodeError::Wait(_) => Failure::new(Code::Missing, message),
    }
}
