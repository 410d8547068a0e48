// SPDX-License-Identifier: Apache-2.0
//! Turns the command line and the configuration files into checked settings: every name is valid, every path is
//! absolute, every default is filled in. It also enters the namespace and opens the sockets that need root.

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
use crate::announce::AnnounceMode;
use crate::args::{Args, PROGRAM};
use crate::config::NeutronConfig;
use crate::failure::{Code, Failure};
use crate::log::Facility;
use crate::pid_file;
use crate::primary_word::{AgentRelease, PrimaryWord};

/// Maximum length of a unix socket's path: `sun_path` without its final zero byte.
const MAX_SOCKET_PATH_BYTES: usize = 107;

/// The checked settings of a monitor.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) instance: InstanceId,
    pub(crate) netns: NetnsName,
    pub(crate) link: LinkName,
    /// The watched address as it was given. Neutron's own monitor accepts any text, so this program does too.
    pub(crate) cidr: String,
    /// The parsed address and its link; `None` if the text is not an address. The state is then always backup.
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
    pub(crate) word: PrimaryWord,
    /// The origin of the word, for `--check`.
    pub(crate) word_source: &'static str,
    pub(crate) audit_interval: Duration,
    pub(crate) announce: AnnounceMode,
    /// Whether the operator set the mode. If so, a monitor that cannot announce does not start.
    is_announce_set: bool,
    /// What starts an announcement, and its schedule; `None` if nothing is announced.
    pub(crate) announce_plan: Option<(AnnounceTrigger, AnnouncePlan)>,
    /// The pids of this process and its ancestors, before it becomes a daemon.
    pub(crate) started_by: Vec<u32>,
    /// The open namespace; `None` after [`Self::enter`].
    handle: Option<Netns>,
}

/// The entered namespace, and the sockets that were opened in it as root.
#[derive(Debug)]
pub(crate) struct EnteredNetns {
    pub(crate) netns: NetnsId,
    /// Subscribed to the events of the namespace; `None` if there is no valid address to watch.
    pub(crate) monitor: Option<Monitor>,
    /// `None` if announcements are off; an error if the packet socket could not be opened.
    pub(crate) announcer: Result<Option<Box<Announcer>>, AnnouncerError>,
}

impl Setup {
    /// Checks all options and fills in the defaults. Returns the first failure.
    pub(crate) fn resolve(args: Args) -> Result<Self, Failure> {
        let required = RequiredOptions::of(&args)?;
        let instance: InstanceId = parse_name(required.router_id, "router_id")?;
        let netns: NetnsName = parse_name(required.namespace, "namespace")?;
        let link: LinkName = parse_name(required.monitor_interface, "monitor_interface")?;
        let cidr = required.monitor_cidr.to_owned();
        let conf_dir = directory(required.conf_dir, "conf_dir")?;
        let own_pid_file = absolute(required.pid_file, "pid_file")?;
        let identity = identity(&args)?;
        let config = NeutronConfig::load(&args, identity)?;
        let handle = Netns::open(&netns).map_err(|error| netns_failure(&error))?;
        let WordChoice { word, source: word_source, release } =
            choose_word(&args, &config, &handle)?;
        let announce = args.announce.or(config.announce);
        let is_announce_set = announce.is_some();
        let announce = announce.unwrap_or_else(|| AnnounceMode::default_for(word));
        let is_any_agent = args.allow_any_agent || config.allow_any_agent == Some(true);
        Ok(Self {
            watch: parse_vip(&cidr).map(|vip| WatchedAddress { link, vip }),
            socket: socket(args.state_path.or(config.state_path))?,
            log_file: log_file(args.log_file.as_deref(), &conf_dir),
            syslog: syslog(args.syslog, args.syslog_facility.as_deref())?,
            is_debug: args.debug.or(config.debug).unwrap_or_else(|| release.forces_debug()),
            has_conntrackd: args.conntrackd == Some(true),
            trust: if is_any_agent { AgentTrust::Anyone } else { AgentTrust::User(identity.user) },
            audit_interval: args
                .audit_interval
                .or(config.audit_interval)
                .unwrap_or(Duration::from_mins(1)),
            announce,
            is_announce_set,
            announce_plan: announce.plan(&config.announce_overrides),
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

    /// Moves this process into the namespace, and opens the netlink and packet sockets, which needs privileges.
    pub(crate) fn enter(&mut self) -> Result<EnteredNetns, Failure> {
        let handle = match self.handle.take() {
            Some(handle) => handle,
            None => Netns::open(&self.netns).map_err(|error| netns_failure(&error))?,
        };
        let netns = handle.enter().map_err(|error| netns_failure(&error))?;
        let announcer = self.announcer();
        if let Err(error) = &announcer
            && self.is_announce_set
        {
            let message = format!("cannot announce: {}", ErrorChain(error));
            return Err(Failure::new(Code::NotPermitted, message)
                .hint("run as root or with CAP_NET_RAW, or use --announce off"));
        }
        let has_announcer = matches!(announcer, Ok(Some(_)));
        let scope = if has_announcer { Scope::All } else { Scope::Vip };
        let monitor = self.watch.map(|watch| Monitor::open(watch.vip, scope)).transpose();
        let monitor = monitor
            .map_err(|error| Failure::new(Code::Environment, ErrorChain(&error).to_string()))?;
        Ok(EnteredNetns { netns, monitor, announcer })
    }

    fn announcer(&self) -> Result<Option<Box<Announcer>>, AnnouncerError> {
        // Without an address to watch there is no monitor, and the announcer would get no observations.
        let Some((trigger, plan)) = self.announce_plan.filter(|_| self.watch.is_some()) else {
            return Ok(None);
        };
        Announcer::open(plan, trigger, Some(self.link)).map(Box::new).map(Some)
    }
}

/// The values of the options without a default.
struct RequiredOptions<'a> {
    router_id: &'a str,
    namespace: &'a str,
    conf_dir: &'a str,
    monitor_interface: &'a str,
    monitor_cidr: &'a str,
    pid_file: &'a str,
}

impl<'a> RequiredOptions<'a> {
    /// Fails if options are missing or empty; the message names all of them.
    fn of(args: &'a Args) -> Result<Self, Failure> {
        let mut missing = Vec::new();
        let mut value = |name: &str, value: &'a Option<String>| {
            let value = value.as_deref().unwrap_or_default();
            if value.is_empty() {
                missing.push(format!("--{name}"));
            }
            value
        };
        let required = Self {
            router_id: value("router_id", &args.router_id),
            namespace: value("namespace", &args.namespace),
            conf_dir: value("conf_dir", &args.conf_dir),
            monitor_interface: value("monitor_interface", &args.monitor_interface),
            monitor_cidr: value("monitor_cidr", &args.monitor_cidr),
            pid_file: value("pid_file", &args.pid_file),
        };
        if missing.is_empty() {
            return Ok(required);
        }
        let plural = if missing.len() == 1 { "" } else { "s" };
        let message = format!("missing option{plural} {}", missing.join(", "));
        Err(Failure::new(Code::Usage, message)
            .hint(format!("`{PROGRAM} --help` explains the options")))
    }
}

fn parse_name<T: std::str::FromStr<Err = NameError>>(
    text: &str,
    option: &str,
) -> Result<T, Failure> {
    text.parse().map_err(|error| {
        Failure::new(Code::Usage, format!("invalid name {text:?} in --{option}: {error}"))
    })
}

/// Returns the absolute path of an existing directory that is not a symbolic link.
fn directory(text: &str, option: &str) -> Result<PathBuf, Failure> {
    let path = absolute(text, option)?;
    let metadata = std::fs::symlink_metadata(&path).map_err(|error| {
        let message = format!("--{option} {}: {error}", path.display());
        Failure::new(Code::of(&error), message)
    })?;
    if metadata.is_symlink() {
        let message =
            format!("--{option} {} is a symbolic link, which is not allowed", path.display());
        return Err(
            Failure::new(Code::Environment, message).hint("use the path of the directory itself")
        );
    }
    if !metadata.is_dir() {
        let message = format!("--{option} {} is not a directory", path.display());
        return Err(Failure::new(Code::Environment, message));
    }
    Ok(path)
}

/// Makes a path absolute, because the daemon changes its working directory.
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
            "only root can run the monitor as user {} and group {}; the current user is {}",
            wanted.user, wanted.group, current.user
        );
        return Err(Failure::new(Code::NotPermitted, message)
            .hint("start the program as root, or leave out --user and --group"));
    }
    Ok(wanted)
}

/// The word for a primary, and how it was chosen.
struct WordChoice {
    word: PrimaryWord,
    source: &'static str,
    release: AgentRelease,
}

fn choose_word(args: &Args, config: &NeutronConfig, netns: &Netns) -> Result<WordChoice, Failure> {
    let given = match (args.primary_word, config.primary_word) {
        (Some(word), _) => Some((word, "--primary_word")),
        (None, Some(word)) => Some((word, "primary_word in the configuration file")),
        (None, None) => None,
    };
    let release = match detect_release(args, netns) {
        Ok(release) => release,
        // With a given word, the releases that an error leaves open (15, and 16 to 21) need no distinction.
        Err(_) if given.is_some() => AgentRelease::Ussuri,
        Err(failure) => return Err(failure),
    };
    let (word, source) = given.unwrap_or_else(|| (release.word(), release.describe()));
    Ok(WordChoice { word, source, release })
}

fn detect_release(args: &Args, netns: &Netns) -> Result<AgentRelease, Failure> {
    let has_process_tag = std::env::var_os("PROCESS_TAG").is_some();
    let is_inside = || NetnsId::current().map(|current| current == netns.id());
    AgentRelease::detect(args, has_process_tag, is_inside).map_err(|error| {
        let message = format!("cannot find the network namespace of this process: {error}");
        Failure::new(Code::of(&error), message)
            .hint("the word for a primary depends on it: mount /proc, or set primary_word")
    })
}

fn socket(state_path: Option<String>) -> Result<PathBuf, Failure> {
    let state_path = state_path.unwrap_or_else(|| "/var/lib/neutron".to_owned());
    let path = absolute(&state_path, "state_path")?.join("keepalived-state-change");
    let length = path.as_os_str().len();
    if length > MAX_SOCKET_PATH_BYTES {
        let message = format!(
            "the path of the agent's socket, {}, has {length} bytes; the kernel allows {MAX_SOCKET_PATH_BYTES}",
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
            Failure::new(Code::Usage, format!("unknown facility {name:?} in --syslog-log-facility"))
                .hint("use LOG_USER, LOG_DAEMON, or LOG_LOCAL0 to LOG_LOCAL7")
        })?,
        None => Facility::USER,
    };
    Ok((is_on != Some(false)).then_some(facility))
}

fn netns_failure(error: &NetnsError) -> Failure {
    let message = ErrorChain(error).to_string();
    match error {
        NetnsError::Missing(_) => Failure::new(Code::Environment, message)
            .hint("`ip netns list` shows the existing namespaces"),
        NetnsError::NotANamespace(_) => Failure::new(Code::Environment, message)
            .hint("in a container, share the host's /run/netns with mount propagation"),
        NetnsError::Open { source, .. } => Failure::new(Code::of(source), message),
        NetnsError::Enter { source, .. } => {
            Failure::new(Code::of(source), message).hint("run as root or with CAP_SYS_ADMIN")
        }
    }
}
