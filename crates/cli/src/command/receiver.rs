// SPDX-License-Identifier: Apache-2.0
//! `vipwatch receiver`: runs a receiver for the reports of monitors.

mod status;

use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use vipwatch_api::ReloadOutcome;
use vipwatch_core::ErrorChain;
use vipwatch_linux::account::{AccountKind, id};
use vipwatch_linux::file::is_storage_error;
use vipwatch_linux::listen::ListenError;
use vipwatch_linux::process::{raise_file_limit, share_heaps};
use vipwatch_linux::signal::{ServiceSignal, ServiceSignals};
use vipwatch_node::api_server::ApiServer;
use vipwatch_node::config::{ProgramCheck, ReceiverConfig};
use vipwatch_node::log::{self, LogLevel};
use vipwatch_node::receiver::{ReceiverService, ServiceContext};
use vipwatch_node::reload_requests::ReloadRequests;
use vipwatch_node::service::{StartupFds, StatusText};
use vipwatch_node::view::{ApiContext, ReloadGaps, ServiceInfo};
use vipwatch_node::{Config, direct, service};
use vipwatch_receiver::ReceiverError;
use vipwatch_receiver::journal::JournalError;
use vipwatch_web::WebServer;

use crate::args::{ReceiverArgs, ReceiverCommand, ServeArgs, config_error};
use crate::failure::{CommandError, ExitStatus};

/// The longest time between two checks of the sockets.
const MAX_WAIT: Duration = Duration::from_secs(10);

pub(crate) fn run(options: &ReceiverArgs) -> Result<(), CommandError> {
    match &options.command {
        Some(ReceiverCommand::Status(options)) => status::run(options),
        None => serve(&options.serve),
    }
}

impl ServeArgs {
    /// As [`Self::settings`], for a process that sends to the targets of the receiver. Other targets in the file may need
    /// credentials of the node's service.
    fn checked_settings(&self) -> Result<(Config, ReceiverConfig), CommandError> {
        let (config, receiver) = self.settings()?;
        receiver.check_target_secrets().map_err(|error| config_error(&error))?;
        Ok((config, receiver))
    }

    /// The configuration with these options applied.
    fn settings(&self) -> Result<(Config, ReceiverConfig), CommandError> {
        let programs = ProgramCheck::in_node(self.hook_runner.as_deref());
        let loaded = Config::load_trusted(self.config.as_deref(), programs);
        let mut config = loaded.map_err(|error| config_error(&error))?;
        let default = || ReceiverConfig::new(&config.locations.neutron);
        let mut receiver = config.receiver.take().unwrap_or_else(default);
        if let Some(state_path) = &self.state_path {
            receiver.set_state_path(state_path);
        }
        if let Some(socket) = &self.socket {
            receiver.socket.clone_from(socket);
        }
        if let Some(directory) = &self.state_dir {
            config.state_dir.clone_from(directory);
        }
        let find = |name: &String, kind: AccountKind| {
            id(name, kind).ok_or_else(|| unknown_account(name, kind))
        };
        if let Some(owner) = &self.owner {
            receiver.options.user = Some(find(owner, AccountKind::User)?);
        }
        if let Some(group) = &self.group {
            receiver.options.group = Some(find(group, AccountKind::Group)?);
        }
        for name in &self.allow {
            receiver.allow.add(name).map_err(|error| unknown_account(&error.name, error.kind))?;
        }
        receiver.options.mode = self.mode.unwrap_or(receiver.options.mode);
        receiver.interval = self.interval.unwrap_or(receiver.interval);
        config.hook_runner.clone_from(&self.hook_runner);
        Ok((config, receiver))
    }
}

pub(super) fn unknown_account(name: &str, kind: AccountKind) -> CommandError {
    let message = format!("there is no {} {name:?}: it is not in {}", kind.word(), kind.file());
    CommandError::new(ExitStatus::NotFound, message)
        .hint("a numeric id is accepted without a lookup")
}

fn serve(options: &ServeArgs) -> Result<(), CommandError> {
    vipwatch_node::panic::exit_on_panic();
    let failed = |error: std::io::Error| CommandError::new(ExitStatus::No, error);
    let StartupFds { listen_source, signals } = StartupFds::take().map_err(failed)?;
    // Each monitor that reports has a connection.
    raise_file_limit();
    share_heaps();
    let (config, settings) = options.checked_settings()?;
    let level = if options.debug { LogLevel::Debug } else { LogLevel::Info };
    let _log = log::open(config.log, level).map_err(failed)?;
    create_state_dir(&config.state_dir)?;
    check_socket_directory(options, &settings)?;
    let service_context = ServiceContext::standalone(&config)
        .map_err(|error| CommandError::new(ExitStatus::No, ErrorChain(&error)))?;
    let config = Config { receiver: Some(settings.clone()), ..config };
    let reload_requests = ReloadRequests::new().map_err(failed)?;
    let context = ApiContext {
        reload_requests: Some(reload_requests.clone()),
        ..direct::receiver_context(&config)
    };
    let service_info = Arc::clone(&context.service);
    let receiver_handle = context.receiver_handle.clone();
    // ORDER: the API server before the receiver, so that a process that can report can also query.
    let mut api_server = WebServer::open(&options.status_socket, config.group, context.clone())
        .map_err(|error| receiver_error(&ReceiverError::Listen(error)))?;
    let opened = ReceiverService::open(&settings, &service_context, listen_source);
    let receiver = opened.map_err(|error| receiver_error(&error))?;
    receiver_handle.set(Some(receiver.status()));
    api_server.serve().map_err(failed)?;
    tracing::info!(socket = %receiver.socket().display(), "receiver is ready");
    service::notify("READY=1");
    let settings = SettingsInForce { options, config, service_info };
    let inputs = LoopInputs { signals, reload_requests, context };
    run_until_stopped(settings, &inputs, &api_server, receiver)
}

fn create_state_dir(directory: &Path) -> Result<(), CommandError> {
    // A disk that hangs also blocks the creation of a directory that exists.
    if directory.is_dir() {
        return Ok(());
    }
    let error = match std::fs::create_dir_all(directory) {
        Ok(()) => return Ok(()),
        // The journal logs the error and retries.
        Err(error) if is_storage_error(&error) => return Ok(()),
        Err(error) => error,
    };
    let code = match error.kind() {
        ErrorKind::PermissionDenied => ExitStatus::NotPermitted,
        _ => ExitStatus::NotFound,
    };
    let message = format!("cannot use {}: {error}", directory.display());
    Err(CommandError::new(code, message).hint("set another directory with --state-dir"))
}

/// Fails if the directory of the default socket, which is Neutron's `state_path`, does not exist.
fn check_socket_directory(
    options: &ServeArgs,
    settings: &ReceiverConfig,
) -> Result<(), CommandError> {
    let missing = settings.socket.parent().filter(|directory| !directory.exists());
    let (Some(directory), None) = (missing, &options.socket) else { return Ok(()) };
    let message = format!("there is no directory {}", directory.display());
    let hint = "set Neutron's state_path with --state-path, or the socket with --socket";
    Err(CommandError::new(ExitStatus::NotFound, message).hint(hint))
}

/// The options and the configuration in force, which a reload replaces.
struct SettingsInForce<'a> {
    options: &'a ServeArgs,
    config: Config,
    /// The same for the API, with the outcome of the last reload.
    service_info: Arc<ServiceInfo>,
}

/// The events that the loop reads, and the state that it publishes.
struct LoopInputs {
    signals: ServiceSignals,
    reload_requests: ReloadRequests,
    context: ApiContext,
}

/// Reacts to signals and requests, and checks the sockets until the receiver ends.
fn run_until_stopped(
    mut settings: SettingsInForce<'_>,
    inputs: &LoopInputs,
    api_server: &WebServer,
    mut receiver: ReceiverService,
) -> Result<(), CommandError> {
    let mut watchdog = service::Watchdog::from_environment();
    let mut status_socket_lost = None;
    let mut status_text = StatusText::default();
    while receiver.is_alive() {
        inputs.context.store.record_turn();
        status_text.update(&inputs.context, vipwatch_linux::clock::now());
        wait(inputs, &watchdog);
        watchdog.tick(vipwatch_linux::clock::now());
        receiver.forget_old_routers(|_| false);
        receiver.check_socket();
        receiver.check_history();
        let lost = api_server.check_socket().err();
        if let Some(problem) = lost.as_ref().filter(|_| lost != status_socket_lost) {
            tracing::error!(%problem, "the status socket was lost");
        }
        if lost.is_none() && status_socket_lost.is_some() {
            tracing::info!("the status socket works again");
        }
        status_socket_lost = lost;
        match inputs.signals.read() {
            Some(ServiceSignal::Stop) => {
                service::notify("STOPPING=1");
                drop(receiver);
                tracing::info!("receiver process stopped");
                return Ok(());
            }
            Some(ServiceSignal::Reload) => {
                settings.reload(&mut receiver);
            }
            Some(ServiceSignal::Dump) => service::write_state_dump(&inputs.context),
            Some(ServiceSignal::ToggleDebug) => log::toggle_debug(),
            None => {}
        }
        let requests = inputs.reload_requests.take_all();
        if !requests.is_empty() {
            let outcome = settings.reload(&mut receiver);
            for request in requests {
                request.complete(outcome.clone());
            }
        }
    }
    Err(CommandError::new(ExitStatus::No, "the receiver has ended; see the log"))
}

impl SettingsInForce<'_> {
    /// Reads the configuration again and applies it, or logs why it cannot be applied. The API shows the outcome.
    fn reload(&mut self, receiver: &mut ReceiverService) -> ReloadOutcome {
        service::notify_reloading();
        let outcome = match self.apply(receiver) {
            Ok((config, needs_restart)) => {
                self.config = config;
                let socket = receiver.socket().display();
                tracing::info!(%socket, "configuration reloaded");
                self.service_info.record_reload(
                    &self.config,
                    ReloadGaps { needs_restart, ..ReloadGaps::default() },
                )
            }
            Err(error) => {
                let error = error.message;
                tracing::error!(error, "configuration rejected; the previous one stays in use");
                self.service_info.record_failed_reload(error)
            }
        };
        service::notify("READY=1");
        outcome
    }

    /// Applies the configuration file; returns the configuration that is in force then, and the keys that need a restart.
    fn apply(&self, receiver: &mut ReceiverService) -> Result<(Config, Vec<String>), CommandError> {
        let (config, settings) = self.options.checked_settings()?;
        let mut needs_restart = Vec::new();
        if config.state_dir != self.config.state_dir {
            let (from, to) = (self.config.state_dir.display(), config.state_dir.display());
            tracing::warn!(key = "node.state_dir", %from, %to, "this setting changes only after a restart");
            needs_restart.push("node.state_dir".to_owned());
        }
        let before = receiver.config().clone();
        receiver.configure(&settings).map_err(|error| receiver_error(&error))?;
        vipwatch_node::log_receiver_changes(&before, receiver.config());
        let receiver = Some(receiver.config().clone());
        Ok((self.config.with_reloaded(Config { receiver, ..config }), needs_restart))
    }
}

/// Waits for a signal or a request, or until the watchdog must be notified, but not longer than [`MAX_WAIT`].
fn wait(inputs: &LoopInputs, watchdog: &service::Watchdog) {
    let due = watchdog.due().map(|due| due.since(vipwatch_linux::clock::now()));
    let limit = due.unwrap_or(MAX_WAIT).min(MAX_WAIT);
    let sources = [inputs.signals.as_fd(), inputs.reload_requests.as_fd()];
    let mut polled = sources.map(|source| PollFd::from_borrowed_fd(source, PollFlags::IN));
    let _ = poll(&mut polled, rustix::event::Timespec::try_from(limit).ok().as_ref());
}

/// The error and hint for a socket or a journal that cannot be used.
pub(super) fn receiver_error(error: &ReceiverError) -> CommandError {
    let message = ErrorChain(error);
    match error {
        ReceiverError::Listen(ListenError::Taken(_)) => CommandError::new(ExitStatus::No, message)
            .hint("another receiver or an agent uses this socket; stop it, or set another path with --socket"),
        ReceiverError::Listen(ListenError::Listen { source, .. })
            if source.kind() == ErrorKind::PermissionDenied =>
        {
            CommandError::new(ExitStatus::NotPermitted, message)
                .hint("run it as root, or set other paths with --socket and --status-socket")
        }
        ReceiverError::Journal(JournalError::Locked(_)) => {
            CommandError::new(ExitStatus::No, message)
                .hint("a node with [receiver] also runs one; set another directory with --state-dir")
        }
        ReceiverError::Listen(_) | ReceiverError::Journal(_) | ReceiverError::Start(_) => {
            CommandError::new(ExitStatus::No, message)
        }
    }
}
