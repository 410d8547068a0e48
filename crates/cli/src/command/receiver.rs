//! `vipwatch agent`: takes what monitors report, promises, and does an agent's duties; or plays an agent
//! that fails.

mod status;

use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, poll};
use vipwatch_core::ErrorChain;
use vipwatch_linux::account::{AccountKind, id};
use vipwatch_linux::file::is_storage_error;
use vipwatch_linux::listen::ListenError;
use vipwatch_linux::process::{raise_file_limit, share_heaps};
use vipwatch_linux::signal::{Signal, Signals};
use vipwatch_node::config::AgentConfig;
use vipwatch_node::log::{self, LogLevel};
use vipwatch_node::query_server::QueryServer;
use vipwatch_node::receiver::{ReceiverService, ServiceContext};
use vipwatch_node::service::StartupFds;
use vipwatch_node::{Config, direct, service};
use vipwatch_receiver::ReceiverError;
use vipwatch_receiver::journal::JournalError;
use vipwatch_receiver::simulate::{self, Behaviour};

use crate::args::{ReceiverArgs, ReceiverCommand, ServeArgs, wrong};
use crate::failure::{CommandError, ExitStatus};
use crate::show;

pub(crate) fn run(options: &ReceiverArgs) -> Result<(), CommandError> {
    match &options.command {
        Some(ReceiverCommand::Status(options)) => status::run(options),
        None => {
            let named = options.serve.simulate.as_deref();
            let played = Behaviour::ALL.iter().find(|(name, _)| Some(*name) == named);
            match played {
                Some((_, manner)) => play(&options.serve, *manner),
                None => serve(&options.serve),
            }
        }
    }
}

impl ServeArgs {
    /// The configuration, with what was said here instead.
    fn settings(&self) -> Result<(Config, AgentConfig), CommandError> {
        let mut config =
            Config::load_trusted(self.config.as_deref()).map_err(|error| wrong(&error))?;
        let usual = || AgentConfig::new(&config.places.neutron);
        let mut agent = config.agent.take().unwrap_or_else(usual);
        if let Some(state_path) = &self.state_path {
            agent.move_to(state_path);
        }
        if let Some(socket) = &self.socket {
            agent.socket.clone_from(socket);
        }
        if let Some(directory) = &self.state_dir {
            config.state_dir.clone_from(directory);
        }
        let find =
            |name: &String, kind: AccountKind| id(name, kind).ok_or_else(|| unknown(name, kind));
        if let Some(owner) = &self.owner {
            agent.options.user = Some(find(owner, AccountKind::User)?);
        }
        if let Some(group) = &self.group {
            agent.options.group = Some(find(group, AccountKind::Group)?);
        }
        for name in &self.allow {
            agent.allow.add(name).map_err(|error| unknown(&error.name, error.kind))?;
        }
        agent.options.mode = self.mode.unwrap_or(agent.options.mode);
        agent.interval = self.interval.unwrap_or(agent.interval);
        Ok((config, agent))
    }
}

fn unknown(name: &str, kind: AccountKind) -> CommandError {
    let message = format!("there is no {} {name:?}: it is not in {}", kind.word(), kind.file());
    CommandError::new(ExitStatus::Missing, message).hint("a number is taken as it is")
}

fn serve(options: &ServeArgs) -> Result<(), CommandError> {
    vipwatch_node::panic::exit_on_panic();
    let failed = |error: std::io::Error| CommandError::new(ExitStatus::Missing, error);
    let StartupFds { listen_source, signals } = StartupFds::take().map_err(failed)?;
    // Each monitor that reports has one.
    raise_file_limit();
    share_heaps();
    let (config, agent) = options.settings()?;
    let level = if options.debug { LogLevel::Debug } else { LogLevel::Info };
    let _log = log::open(config.log, level).map_err(failed)?;
    let made = match std::fs::create_dir_all(&config.state_dir) {
        // The journal says so, and tries again.
        Err(error) if is_storage_error(&error) => Ok(()),
        made => made,
    };
    made.map_err(|error| {
        let code = match error.kind() {
            ErrorKind::PermissionDenied => ExitStatus::NotPermitted,
            _ => ExitStatus::Missing,
        };
        let message = format!("cannot use {}: {error}", config.state_dir.display());
        CommandError::new(code, message).hint("give another directory with --state-dir")
    })?;
    let place = agent.socket.parent().filter(|place| !place.exists());
    if let (Some(place), None) = (place, &options.socket) {
        let message = format!("there is no directory {}", place.display());
        let hint =
            "it is Neutron's state_path, if --state-path says nothing else; or give --socket";
        return Err(CommandError::new(ExitStatus::Missing, message).hint(hint));
    }
    let service_context = ServiceContext {
        state_dir: config.state_dir.clone(),
        node: vipwatch_node::name(),
        hooks_at_once: config.hooks_at_once,
    };
    let context = direct::archive(&config);
    let receiver_handle = context.receiver_handle.clone();
    // ORDER: the desk before the socket. Who could report can ask what became of it.
    let mut query_server = QueryServer::open(&options.status_socket, config.group, context)
        .map_err(|error| failure(&ReceiverError::Listen(error)))?;
    let opened = ReceiverService::open(&agent, &service_context, listen_source);
    let mut receiver = opened.map_err(|error| failure(&error))?;
    receiver_handle.set(Some(receiver.status()));
    query_server.serve().map_err(failed)?;
    tracing::info!(socket = %receiver.socket().display(), "ready");
    service::notify("READY=1");
    let mut watchdog = service::Watchdog::from_environment();
    let mut status_socket_lost = None;
    while receiver.is_alive() {
        wait(&signals, &watchdog);
        watchdog.tick(vipwatch_linux::clock::now());
        receiver.forget_old_routers(|_| false);
        receiver.check_socket();
        let lost = query_server.check_socket().err();
        if let Some(problem) = lost.as_ref().filter(|_| lost != status_socket_lost) {
            tracing::error!(%problem, "nothing can be asked here");
        }
        status_socket_lost = lost;
        match signals.read() {
            Some(Signal::Stop) => {
                service::notify("STOPPING=1");
                drop(receiver);
                tracing::info!("stopped");
                return Ok(());
            }
            Some(Signal::Reopen) => {
                service::notify_reloading();
                let taken = match options.settings() {
                    Ok((other, agent)) => {
                        if other.state_dir != config.state_dir {
                            tracing::warn!("state_dir takes a restart to change");
                        }
                        receiver.configure(&agent).map_err(|error| failure(&error))
                    }
                    Err(error) => Err(error),
                };
                match taken {
                    Ok(()) => {
                        let socket = receiver.socket().display();
                        tracing::info!(%socket, "the configuration was read again");
                    }
                    Err(error) => {
                        let text = "the configuration is not taken, the one before stands";
                        tracing::error!("{text}: {}", error.message);
                    }
                }
                service::notify("READY=1");
            }
            None => {}
        }
    }
    Err(CommandError::new(ExitStatus::Missing, "the receiver has ended; see the log"))
}

/// Waits for a signal, for not too long.
fn wait(signals: &Signals, watchdog: &service::Watchdog) {
    let longest = std::time::Duration::from_secs(10);
    let due = watchdog.due().map(|due| due.since(vipwatch_linux::clock::now()));
    let limit = due.unwrap_or(longest).min(longest);
    let mut polled = [PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN)];
    let _ = poll(&mut polled, rustix::event::Timespec::try_from(limit).ok().as_ref());
}

/// Plays an agent, until it is stopped.
fn play(options: &ServeArgs, manner: Behaviour) -> Result<(), CommandError> {
    let (_, agent) = options.settings()?;
    let heard: Arc<simulate::RequestCallback> = Arc::new(|bytes: &[u8], _| {
        let said = String::from_utf8_lossy(bytes);
        let of = |name: &str| {
            let line = said.lines().find(|line| line.to_lowercase().starts_with(name));
            line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim().to_owned())
        };
        let (router, word) = (of("x-neutron-router-id"), of("x-neutron-state"));
        let (router, word) = (router.unwrap_or_default(), word.unwrap_or_default());
        show::print(&format!("{}\n", show::escape_untrusted(&format!("{router} {word}"))));
    });
    let mode = options.simulate.as_deref().unwrap_or_default();
    crate::failure::warn(&format!("{mode} at {}", agent.socket.display()));
    let played = simulate::run(&agent.socket, agent.options, manner, &heard);
    played.map_err(|error| failure(&error))
}

fn failure(error: &ReceiverError) -> CommandError {
    let message = ErrorChain(error);
    match error {
        ReceiverError::Listen(ListenError::Taken(_)) => CommandError::new(ExitStatus::No, message)
            .hint("an agent runs already; two cannot have one socket"),
        ReceiverError::Listen(ListenError::Listen { source, .. })
            if source.kind() == ErrorKind::PermissionDenied =>
        {
            CommandError::new(ExitStatus::NotPermitted, message)
                .hint("run it as root, or give other places with --socket and --status-socket")
        }
        ReceiverError::Journal(JournalError::Locked(_)) => {
            CommandError::new(ExitStatus::No, message)
                .hint("a node with [agent] is one, too; give another directory with --state-dir")
        }
        ReceiverError::Listen(_) | ReceiverError::Journal(_) | ReceiverError::Start(_) => {
            CommandError::new(ExitStatus::Missing, message)
        }
    }
}
