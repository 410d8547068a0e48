//! What the command line means on this machine: every name checked, every path absolute,
//! every default filled in. Nothing is changed yet.

use std::path::{Path, PathBuf};
use std::time::Duration;

use vipwatch_core::{
    AnnouncePlan, ErrorChain, InstanceId, LinkName, NameError, NetnsName, WatchedAddress, parse_vip,
};
use vipwatch_linux::monitor::{Monitor, Scope};
use vipwatch_linux::netns::{Netns, NetnsError, NetnsId};
use vipwatch_linux::privilege::Identity;
use vipwatch_outlets::agent::AgentTrust;
use vipwatch_outlets::announce::{AnnounceTrigger, Announcer, AnnouncerError};

use crate::account;
use crate::announce;
use crate::args::{Args, PROGRAM};
use crate::config::NeutronConfig;
use crate::failure::{Code, Failure};
use crate::log::Facility;
use crate::pid_file;
use crate::words::{Era, Word};

/// The longest path a unix socket can have: `sun_path` without its final zero.
const SOCKET_PATH_LIMIT: usize = 107;

/// Everything that was decided.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) instance: InstanceId,
    pub(crate) netns: NetnsName,
    pub(crate) link: LinkName,
    /// As given; upstream takes any text, and so must we.
    pub(crate) cidr: String,
    /// `None` if the text is no address: then nothing can ever be primary.
    pub(crate) watch: Option<WatchedAddress>,
    pub(crate) conf_dir: PathBuf,
    pub(crate) pid_file: PathBuf,
    pub(crate) socket: PathBuf,
    pub(crate) log_file: PathBuf,
    pub(crate) syslog: Option<Facility>,
    pub(crate) is_debug: bool,
    pub(crate) has_conntrackd: bool,
    pub(crate) identity: Identity,
    pub(crate) trust: AgentTrust,
    pub(crate) word: Word,
    /// Why this word.
    pub(crate) word_source: &'static str,
    pub(crate) audit_interval: Duration,
    pub(crate) announce: announce::AnnounceMode,
    /// Somebody asked for it, so that not being able to is an error.
    is_announce_asked: bool,
    /// When and how; `None` for never.
    pub(crate) announce_plan: Option<(AnnounceTrigger, AnnouncePlan)>,
    /// This process and its ancestors, as they are before it becomes a daemon.
    pub(crate) started_by: Vec<u32>,
    handle: Option<Netns>,
}

/// The namespace, entered, with the kernel's news of it subscribed to.
#[derive(Debug)]
pub(crate) struct EnteredNetns {
    pub(crate) netns: NetnsId,
    /// `None` if there is nothing that could be watched.
    pub(crate) monitor: Option<Monitor>,
    /// `None` if nothing is to be announced; an error if nothing can be.
    pub(crate) announcer: Result<Option<Box<Announcer>>, AnnouncerError>,
}

impl Setup {
    /// Decides everything, or says what is wrong first.
    pub(crate) fn resolve(args: Args) -> Result<Self, Failure> {
        let instance: InstanceId =
            named(required(args.router_id.as_deref(), "router_id")?, "router_id")?;
        let netns: NetnsName =
            named(required(args.namespace.as_deref(), "namespace")?, "namespace")?;
        let link: LinkName = named(
            required(args.monitor_interface.as_deref(), "monitor_interface")?,
            "monitor_interface",
        )?;
        let cidr = required(args.monitor_cidr.as_deref(), "monitor_cidr")?.to_owned();
        let conf_dir = directory(required(args.conf_dir.as_deref(), "conf_dir")?, "conf_dir")?;
        let own_pid_file = absolute(required(args.pid_file.as_deref(), "pid_file")?, "pid_file")?;
        let identity = identity(&args)?;
        let config = NeutronConfig::load(&args, identity)?;
        let handle = Netns::open(&netns).map_err(|error| netns_failure(&error))?;
        let given_word = match (args.primary_word, config.primary_word) {
            (Some(word), _) => Some((word, "--primary_word")),
            (None, Some(word)) => Some((word, "primary_word in the configuration file")),
            (None, None) => None,
        };
        let era = match era(&args, &handle) {
            Ok(era) => era,
            // With a word given, nothing depends on the difference.
            Err(_) if given_word.is_some() => Era::Ussuri,
            Err(failure) => return Err(failure),
        };
        let (word, word_source) = given_word.unwrap_or_else(|| (era.word(), era.describe()));
        let announce = args.announce.or(config.announce);
        let is_announce_asked = announce.is_some();
        let announce = announce.unwrap_or_else(|| announce::AnnounceMode::expected_by(word));
        let is_any_agent = args.allow_any_agent || config.allow_any_agent == Some(true);
        Ok(Self {
            watch: parse_vip(&cidr).map(|vip| WatchedAddress { link, vip }),
            socket: socket(args.state_path.or(config.state_path))?,
            log_file: log_file(args.log_file.as_deref(), &conf_dir),
            syslog: syslog(args.syslog, args.syslog_facility.as_deref())?,
            is_debug: args.debug.or(config.debug).unwrap_or_else(|| era.forces_debug()),
            has_conntrackd: args.conntrackd == Some(true),
            trust: if is_any_agent { AgentTrust::Anyone } else { AgentTrust::User(identity.user) },
            audit_interval: args
                .audit_interval
                .or(config.audit_interval)
                .unwrap_or(Duration::from_mins(1)),
            announce,
            is_announce_asked,
            announce_plan: announce.plan(&config.announce_changes),
            instance,
            netns,
            link,
            cidr,
            conf_dir,
            pid_file: own_pid_file,
            identity,
            word,
            word_source,
            started_by: pid_file::ancestry(),
            handle: Some(handle),
        })
    }

    /// Moves this process into the namespace and subscribes, while it still may.
    pub(crate) fn enter(&mut self) -> Result<EnteredNetns, Failure> {
        let handle = match self.handle.take() {
            Some(handle) => handle,
            None => Netns::open(&self.netns).map_err(|error| netns_failure(&error))?,
        };
        let netns = handle.enter().map_err(|error| netns_failure(&error))?;
        let announcer = self.announcer();
        if let Err(error) = &announcer
            && self.is_announce_asked
        {
            let message = format!("cannot announce: {}", ErrorChain(error));
            return Err(Failure::new(Code::NotPermitted, message)
                .hint("this takes root, or CAP_NET_RAW; or use --announce off"));
        }
        let has_announcer = matches!(announcer, Ok(Some(_)));
        let scope = if has_announcer { Scope::All } else { Scope::Vip };
        let monitor = self.watch.map(|watch| Monitor::open(watch.vip, scope)).transpose();
        let monitor = monitor
            .map_err(|error| Failure::new(Code::Environment, ErrorChain(&error).to_string()))?;
        Ok(EnteredNetns { netns, monitor, announcer })
    }

    fn announcer(&self) -> Result<Option<Box<Announcer>>, AnnouncerError> {
        // With nothing to watch nobody would tell it anything.
        let Some((when, plan)) = self.announce_plan.filter(|_| self.watch.is_some()) else {
            return Ok(None);
        };
        Announcer::open(plan, when, Some(self.link)).map(Box::new).map(Some)
    }
}

fn required<'a>(value: Option<&'a str>, name: &str) -> Result<&'a str, Failure> {
    value.filter(|value| !value.is_empty()).ok_or_else(|| {
        Failure::new(Code::Usage, format!("missing option --{name}"))
            .hint(format!("`{PROGRAM} --help` explains the options"))
    })
}

fn named<T: std::str::FromStr<Err = NameError>>(text: &str, option: &str) -> Result<T, Failure> {
    text.parse().map_err(|error| {
        Failure::new(Code::Usage, format!("--{option} {text:?} cannot be a name: {error}"))
    })
}

/// An existing directory that is not a symbolic link.
fn directory(text: &str, option: &str) -> Result<PathBuf, Failure> {
    let path = absolute(text, option)?;
    let metadata = std::fs::symlink_metadata(&path).map_err(|error| {
        let message = format!("--{option} {}: {error}", path.display());
        Failure::new(Code::of(&error), message)
    })?;
    if metadata.is_symlink() {
        let message =
            format!("--{option} {} is a symbolic link: it is not followed", path.display());
        return Err(Failure::new(Code::Environment, message).hint("give the directory itself"));
    }
    if !metadata.is_dir() {
        let message = format!("--{option} {} is not a directory", path.display());
        return Err(Failure::new(Code::Environment, message));
    }
    Ok(path)
}

/// A daemon leaves its caller's directory: a relative path would lose its meaning.
fn absolute(text: &str, option: &str) -> Result<PathBuf, Failure> {
    if text.contains('\0') {
        return Err(Failure::new(Code::Usage, format!("--{option} contains a zero byte")));
    }
    std::path::absolute(text).map_err(|error| {
        Failure::new(Code::Usage, format!("--{option} {text:?} is not a path: {error}"))
    })
}

fn identity(args: &Args) -> Result<Identity, Failure> {
    let current = Identity::current();
    let wanted = Identity {
        user: args.user.as_deref().map_or(Ok(current.user), account::user)?,
        group: args.group.as_deref().map_or(Ok(current.group), account::group)?,
    };
    if current.user != 0 && wanted != current {
        let message = format!(
            "only root can become user {} and group {}; this is user {}",
            wanted.user, wanted.group, current.user
        );
        return Err(Failure::new(Code::NotPermitted, message)
            .hint("start it as root, or leave out --user and --group"));
    }
    Ok(wanted)
}

fn era(args: &Args, netns: &Netns) -> Result<Era, Failure> {
    let has_process_tag = std::env::var_os("PROCESS_TAG").is_some();
    let is_inside = || NetnsId::current().map(|current| current == netns.id());
    Era::conclude(args, has_process_tag, is_inside).map_err(|error| {
        let message = format!("cannot tell which network namespace this process is in: {error}");
        Failure::new(Code::of(&error), message).hint(
            "the word for a primary depends on it: give the process a /proc, or set primary_word",
        )
    })
}

fn socket(state_path: Option<String>) -> Result<PathBuf, Failure> {
    let state_path = state_path.unwrap_or_else(|| "/var/lib/neutron".to_owned());
    let path = absolute(&state_path, "state_path")?.join("keepalived-state-change");
    let length = path.as_os_str().len();
    if length > SOCKET_PATH_LIMIT {
        let message = format!(
            "the agent's socket {} has {length} bytes; the kernel allows {SOCKET_PATH_LIMIT}",
            path.display()
        );
        return Err(Failure::new(Code::Usage, message).hint("shorten --state_path"));
    }
    Ok(path)
}

fn log_file(given: Option<&str>, conf_dir: &Path) -> PathBuf {
    match given {
        Some(given) if !given.is_empty() => conf_dir.join(given),
        _ => conf_dir.join(format!("{PROGRAM}.log")),
    }
}

fn syslog(is_on: Option<bool>, facility: Option<&str>) -> Result<Option<Facility>, Failure> {
    let facility = match facility {
        Some(name) => Facility::parse(name).ok_or_else(|| {
            Failure::new(Code::Usage, format!("--syslog-log-facility {name:?} is unknown"))
                .hint("LOG_USER, LOG_DAEMON, or LOG_LOCAL0 to LOG_LOCAL7")
        })?,
        None => Facility::USER,
    };
    Ok((is_on != Some(false)).then_some(facility))
}

fn netns_failure(error: &NetnsError) -> Failure {
    let message = ErrorChain(error).to_string();
    match error {
        NetnsError::Missing(_) => {
            Failure::new(Code::Environment, message).hint("`ip netns list` shows those there are")
        }
        NetnsError::NotANamespace(_) => Failure::new(Code::Environment, message)
            .hint("in a container, share the host's /run/netns with mount propagation"),
        NetnsError::Open { source, .. } => Failure::new(Code::of(source), message),
        NetnsError::Enter { source, .. } => {
            Failure::new(Code::of(source), message).hint("this takes root, or CAP_SYS_ADMIN")
        }
    }
}
