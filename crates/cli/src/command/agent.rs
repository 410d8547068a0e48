//! `vipwatch agent`: takes what monitors report, promises, and does an agent's duties; or plays an agent
//! that fails.

mod status;

use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, poll};
use vipwatch_core::Chain;
use vipwatch_linux::account::{Kind, id};
use vipwatch_linux::file::is_storage_trouble;
use vipwatch_linux::listen::ListenError;
use vipwatch_linux::process::{raise_file_limit, share_heaps};
use vipwatch_linux::signal::{Signal, Signals};
use vipwatch_node::config::AgentConfig;
use vipwatch_node::desk::Desk;
use vipwatch_node::log::{self, Level};
use vipwatch_node::reception::{House, Reception};
use vipwatch_node::service::Inheritance;
use vipwatch_node::{Config, direct, service};
use vipwatch_receiver::ReceiverError;
use vipwatch_receiver::journal::JournalError;
use vipwatch_receiver::simulate::{self, Manner};

use crate::args::{Agent, AgentCommand, Serve, wrong};
use crate::failure::{Code, Failure};
use crate::show;

pub(crate) fn run(options: &Agent) -> Result<(), Failure> {
    match &options.command {
        Some(AgentCommand::Status(options)) => status::run(options),
        None => {
            let named = options.serve.simulate.as_deref();
            let played = Manner::ALL.iter().find(|(name, _)| Some(*name) == named);
            match played {
                Some((_, manner)) => play(&options.serve, *manner),
                None => serve(&options.serve),
            }
        }
    }
}

impl Serve {
    /// The configuration, with what was said here instead.
    fn settings(&self) -> Result<(Config, AgentConfig), Failure> {
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
        let find = |name: &String, kind: Kind| id(name, kind).ok_or_else(|| unknown(name, kind));
        if let Some(owner) = &self.owner {
            agent.looks.user = Some(find(owner, Kind::User)?);
        }
        if let Some(group) = &self.group {
            agent.looks.group = Some(find(group, Kind::Group)?);
        }
        for name in &self.allow {
            agent.allow.add(name).map_err(|error| unknown(&error.name, error.kind))?;
        }
        agent.looks.mode = self.mode.unwrap_or(agent.looks.mode);
        agent.interval = self.interval.unwrap_or(agent.interval);
        Ok((config, agent))
    }
}

fn unknown(name: &str, kind: Kind) -> Failure {
    let message = format!("there is no {} {name:?}: it is not in {}", kind.word(), kind.file());
    Failure::new(Code::Missing, message).hint("a number is taken as it is")
}

fn serve(options: &Serve) -> Result<(), Failure> {
    vipwatch_node::panic::exit_on_panic();
    let failed = |error: std::io::Error| Failure::new(Code::Missing, error);
    let Inheritance { entrance, signals } = Inheritance::take().map_err(failed)?;
    // Each monitor that reports has one.
    raise_file_limit();
    share_heaps();
    let (config, agent) = options.settings()?;
    let level = if options.debug { Level::Debug } else { Level::Info };
    let _log = log::open(config.log, level).map_err(failed)?;
    let made = match std::fs::create_dir_all(&config.state_dir) {
        // The journal says so, and tries again.
        Err(error) if is_storage_trouble(&error) => Ok(()),
        made => made,
    };
    made.map_err(|error| {
        let code = match error.kind() {
            ErrorKind::PermissionDenied => Code::NotPermitted,
            _ => Code::Missing,
        };
        let message = format!("cannot use {}: {error}", config.state_dir.display());
        Failure::new(code, message).hint("give another directory with --state-dir")
    })?;
    let place = agent.socket.parent().filter(|place| !place.exists());
    if let (Some(place), None) = (place, &options.socket) {
        let message = format!("there is no directory {}", place.display());
        let hint =
            "it is Neutron's state_path, if --state-path says nothing else; or give --socket";
        return Err(Failure::new(Code::Missing, message).hint(hint));
    }
    let house = House {
        directory: config.state_dir.clone(),
        node: vipwatch_node::name(),
        hooks_at_once: config.hooks_at_once,
    };
    let office = direct::archive(&config);
    let front = office.front.clone();
    // ORDER: the desk before the socket. Who could report can ask what became of it.
    let mut desk = Desk::open(&options.status_socket, config.group, office)
        .map_err(|error| failure(&ReceiverError::Listen(error)))?;
    let opened = Reception::open(&agent, &house, entrance);
    let mut reception = opened.map_err(|error| failure(&error))?;
    front.set(Some(reception.claims()));
    desk.serve().map_err(failed)?;
    tracing::info!(socket = %reception.socket().display(), "ready");
    service::notify("READY=1");
    let mut watchdog = service::Watchdog::from_environment();
    let mut status_socket_lost = None;
    while reception.is_alive() {
        wait(&signals, &watchdog);
        watchdog.tick(vipwatch_linux::clock::now());
        reception.tidy(|_| false);
        reception.check_socket();
        let lost = desk.check_socket().err();
        if let Some(problem) = lost.as_ref().filter(|_| lost != status_socket_lost) {
            tracing::error!(%problem, "nothing can be asked here");
        }
        status_socket_lost = lost;
        match signals.read() {
            Some(Signal::Stop) => {
                service::notify("STOPPING=1");
                drop(reception);
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
                        reception.configure(&agent).map_err(|error| failure(&error))
                    }
                    Err(error) => Err(error),
                };
                match taken {
                    Ok(()) => {
                        let socket = reception.socket().display();
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
    Err(Failure::new(Code::Missing, "the receiver has ended; see the log"))
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
fn play(options: &Serve, manner: Manner) -> Result<(), Failure> {
    let (_, agent) = options.settings()?;
    let heard: Arc<simulate::Heard> = Arc::new(|bytes: &[u8], _| {
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
    let played = simulate::play(&agent.socket, agent.looks, manner, &heard);
    played.map_err(|error| failure(&error))
}

fn failure(error: &ReceiverError) -> Failure {
    let message = Chain(error);
    match error {
        ReceiverError::Listen(ListenError::Taken(_)) => Failure::new(Code::No, message)
            .hint("an agent runs already; two cannot have one socket"),
        ReceiverError::Listen(ListenError::Listen { source, .. })
            if source.kind() == ErrorKind::PermissionDenied =>
        {
            Failure::new(Code::NotPermitted, message)
                .hint("run it as root, or give other places with --socket and --status-socket")
        }
        ReceiverError::Journal(JournalError::Taken(_)) => Failure::new(Code::No, message)
            .hint("a node with [agent] is one, too; give another directory with --state-dir"),
        ReceiverError::Listen(_) | ReceiverError::Journal(_) | ReceiverError::Start(_) => {
            Failure::new(Code::Missing, message)
        }
    }
}
