//! `vipwatch agent`: takes what monitors report, promises, and tells; or plays an agent that fails.

use std::os::fd::AsFd;
use std::path::PathBuf;

use rustix::event::{PollFd, PollFlags, poll};
use serde_json::{Value, json};
use vipwatch_core::Chain;
use vipwatch_linux::account::{Kind, id};
use vipwatch_linux::listen::{ListenError, Looks, inherited, listen_at};
use vipwatch_linux::signal::{Signal, Signals};
use vipwatch_node::config::LogFormat;
use vipwatch_node::desk::Desk;
use vipwatch_node::log::{self, Level};
use vipwatch_node::{client, direct};
use vipwatch_receiver::simulate::{self, Manner};
use vipwatch_receiver::{Policy, Receiver, ReceiverError, Settings, Settled};

use super::{each, text};
use crate::args::{Agent, AgentCommand, AgentStatus, Format, Serve};
use crate::failure::{Code, Failure};
use crate::show;

/// How many monitors may wait to be taken: as many as a node has, at once.
const BACKLOG: i32 = 4096;

pub(crate) fn run(options: &Agent) -> Result<(), Failure> {
    match &options.command {
        Some(AgentCommand::Status(options)) => status(options),
        None => match options.serve.simulate {
            Some(manner) => play(&options.serve, manner.0),
            None => serve(&options.serve),
        },
    }
}

impl Serve {
    fn socket(&self) -> PathBuf {
        let name = || self.state_path.join("keepalived-state-change");
        self.socket.clone().unwrap_or_else(name)
    }

    fn looks(&self) -> Result<Looks, Failure> {
        let find = |name: &Option<String>, kind: Kind| match name {
            None => Ok(None),
            Some(name) => id(name, kind).map(Some).ok_or_else(|| unknown(name, kind)),
        };
        let (user, group) = (find(&self.owner, Kind::User)?, find(&self.group, Kind::Group)?);
        Ok(Looks { mode: self.mode, user, group, backlog: BACKLOG })
    }

    /// Root, our own user, and whoever else is allowed.
    fn users(&self) -> Result<Vec<u32>, Failure> {
        let mut users = vec![0, rustix::process::geteuid().as_raw()];
        for name in &self.allow {
            users.push(id(name, Kind::User).ok_or_else(|| unknown(name, Kind::User))?);
        }
        Ok(users)
    }
}

fn unknown(name: &str, kind: Kind) -> Failure {
    let message = format!("there is no {} {name:?}: it is not in {}", kind.word(), kind.file());
    Failure::new(Code::Missing, message).hint("a number is taken as it is")
}

fn serve(options: &Serve) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::new(Code::Missing, error);
    // ORDER: signals before any thread, so that no thread is killed by them.
    let signals = Signals::hold().map_err(failed)?;
    log::open(LogFormat::Auto, if options.debug { Level::Debug } else { Level::Info });
    std::fs::create_dir_all(&options.state_dir).map_err(|error| {
        let message = format!("cannot use {}: {error}", options.state_dir.display());
        Failure::new(Code::Missing, message).hint("give another directory with --state-dir")
    })?;
    let settings = Settings {
        socket: options.socket(),
        listener: inherited(),
        looks: options.looks()?,
        policy: Policy { users: options.users()?, interval: options.interval, ..Policy::default() },
        directory: options.state_dir.clone(),
    };
    let tell = Box::new(|settled: &Settled| {
        let Settled { instance, claim, seq } = settled;
        let (claim, state) = (claim.word(), claim.translated());
        tracing::info!(%instance, claim, state, seq, "settled");
    });
    let receiver = Receiver::start(settings, tell).map_err(|error| failure(&error))?;
    let mut office = direct::archive(&vipwatch_node::Config::default());
    office.receiver = Some(receiver.view());
    let mut desk = Desk::open(&options.status_socket, None, office)
        .map_err(|error| Failure::new(Code::Missing, Chain(&error)))?;
    desk.serve().map_err(failed)?;
    tracing::info!(socket = %options.socket().display(), "ready");
    vipwatch_node::service::notify("READY=1");
    loop {
        let mut polled = [PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN)];
        let _ = poll(&mut polled, None);
        if signals.read() == Some(Signal::Stop) {
            vipwatch_node::service::notify("STOPPING=1");
            drop(receiver);
            tracing::info!("stopped");
            return Ok(());
        }
    }
}

/// Plays an agent, until it is stopped.
fn play(options: &Serve, manner: Manner) -> Result<(), Failure> {
    let listener = listen_at(&options.socket(), options.looks()?)
        .map_err(|error| failure(&ReceiverError::Listen(error)))?;
    let heard: simulate::Heard = Box::new(|bytes: &[u8]| {
        let said = String::from_utf8_lossy(bytes);
        let of = |name: &str| {
            let line = said.lines().find(|line| line.to_lowercase().starts_with(name));
            line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim().to_owned())
        };
        let (router, word) = (of("x-neutron-router-id"), of("x-neutron-state"));
        let (router, word) = (router.unwrap_or_default(), word.unwrap_or_default());
        show::print(&format!("{}\n", show::harmless(&format!("{router} {word}"))));
    });
    let served = simulate::serve(listener, manner, &heard);
    served.map_err(|error| Failure::new(Code::Missing, error))
}

fn failure(error: &ReceiverError) -> Failure {
    let message = Chain(error);
    match error {
        ReceiverError::Listen(ListenError::Taken(_)) => Failure::new(Code::No, message)
            .hint("an agent runs already; two cannot have one socket"),
        ReceiverError::Listen(ListenError::Listen { source, .. })
            if source.kind() == std::io::ErrorKind::PermissionDenied =>
        {
            Failure::new(Code::NotPermitted, message).hint("run it as root, or give --socket")
        }
        ReceiverError::Listen(_) | ReceiverError::Journal(_) | ReceiverError::Start(_) => {
            Failure::new(Code::Missing, message)
        }
    }
}

fn status(options: &AgentStatus) -> Result<(), Failure> {
    let answer = client::ask(&options.status_socket, &json!({ "ask": "agent" }))
        .map_err(|error| crate::ask::failure(&error))?;
    match options.format {
        Format::Json => show::json(&answer),
        Format::Table => {
            let rows: Vec<Vec<String>> = each(&answer["routers"]).map(row).collect();
            if rows.is_empty() {
                show::print("nobody has reported yet\n");
            } else {
                let head = ["ID", "CLAIM", "AGE", "SETTLED", "STATE", "REPORTS"];
                show::print(&show::table(&head, &rows));
            }
            let of = |key: &str| text(&answer[key]);
            show::print(&format!(
                "{} accepted, {} coalesced, {} pending, {} could not be promised\n",
                of("accepted"),
                of("coalesced"),
                of("pending"),
                of("unable")
            ));
            for (reason, count) in answer["rejected"].as_object().into_iter().flatten() {
                show::print(&format!("rejected: {reason} {count}\n"));
            }
        }
    }
    Ok(())
}

fn row(router: &Value) -> Vec<String> {
    let held = if router["held"] == true { " (held back)" } else { "" };
    vec![
        text(&router["id"]),
        format!("{}{held}", text(&router["claim"])),
        format!("{} s", text(&router["age_seconds"])),
        text(&router["settled"]),
        text(&router["state"]),
        text(&router["reports"]),
    ]
}
