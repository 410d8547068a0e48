//! The node's configuration: one TOML file, or none.
//!
//! Everything has a default, so a node without a file watches what keepalived is run with.
//! [`Config::read`] finds every fault at once, each with its line; a key that does not exist is
//! answered with the one that was probably meant.

mod credentials;
mod document;
mod notify;
mod receiver;

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::discovery::{ConfigLocations, InstanceConfig, Origin};
use ipnet::IpNet;
use vipwatch_core::keepalived::{FilePosition, VirtualAddress, VrrpInstance};
use vipwatch_core::{ErrorChain, InstanceId, LinkName, NetnsName};
use vipwatch_history::Retention;
use vipwatch_linux::account::{AccountKind, id};
use vipwatch_linux::file::TextFile;
use vipwatch_linux::listen::{ListenError, check_path};

pub use self::document::{SettingError, nearest, span};
use self::document::{SettingErrors, Table};
pub use self::notify::{AgentRule, DeliveryMode, Hook, Rule, Target, Template, Webhook};
pub use self::receiver::{AgentConfig, AllowedAccounts, CLAIMS, UnknownAccount, Upstream, octal};
use crate::notify::hook::examine;

/// Where the file is if nobody says otherwise; it need not exist.
pub const FILE: &str = "/etc/vipwatch/vipwatch.toml";

/// Where the node answers if nobody says otherwise.
pub const SOCKET: &str = "/run/vipwatch/node.sock";

/// Where the history is kept if nobody says otherwise.
pub const STATE_DIR: &str = "/var/lib/vipwatch";

/// A configuration with everything in it, explained.
pub const EXAMPLE: &str = include_str!("config/example.toml");

/// Larger than any configuration that a person has written.
const LIMIT: u64 = 4 << 20;

/// How to listen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Listen {
    /// Through one socket; in each namespace if that cannot be had.
    #[default]
    Auto,
    /// In each namespace.
    Each,
}

/// How the log is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// To journald with fields, if that is who reads us; to standard error as text otherwise.
    #[default]
    Auto,
    /// To standard error, for people.
    Text,
    /// To standard error, an object a line.
    Json,
    /// To journald.
    Journald,
}

/// Everything there is to say.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where the history is kept.
    pub state_dir: PathBuf,
    /// Where the node answers.
    pub socket: PathBuf,
    /// Whose members may ask; root and the node's own user always may.
    pub group: Option<u32>,
    /// How to listen.
    pub listen: Listen,
    /// How to log.
    pub log: LogFormat,
    /// How often each namespace is looked into, whatever was heard.
    pub audit_every: Duration,
    /// Where instances are found.
    pub places: ConfigLocations,
    /// How much history is kept.
    pub keep: Retention,
    /// Runs of one hook at a time.
    pub hooks_at_once: usize,
    /// Instances that are in no file of keepalived's.
    pub instances: Vec<Arc<InstanceConfig>>,
    /// Who is told what; in order.
    pub rules: Vec<Rule>,
    /// How monitors are received; `None` if they are not.
    pub agent: Option<AgentConfig>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            state_dir: PathBuf::from(STATE_DIR),
            socket: PathBuf::from(SOCKET),
            group: None,
            listen: Listen::default(),
            log: LogFormat::default(),
            audit_every: Duration::from_mins(30),
            places: ConfigLocations::default(),
            keep: Retention::default(),
            hooks_at_once: 8,
            instances: Vec::new(),
            rules: Vec::new(),
            agent: None,
        }
    }
}

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// Others than root and its reader may write to it, and it names programs to run.
    #[error("{} may be written by others than root, and says which programs to run", .0.display())]
    Exposed(PathBuf),
    /// It holds credentials, and every user of the machine can read it.
    #[error("{} holds credentials, and every user can read it", .0.display())]
    Readable(PathBuf),
    /// The node cannot keep its files there.
    #[error("cannot use the directory {}", path.display())]
    StateDir {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A socket cannot be made.
    #[error(transparent)]
    Socket(#[from] ListenError),
    /// It can, and is wrong.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Wrong(Vec<SettingError>),
}

impl ConfigError {
    /// Whether this user may not read the file.
    pub fn is_not_permitted(&self) -> bool {
        matches!(self, Self::Read { source, .. } if source.kind() == io::ErrorKind::PermissionDenied)
    }
}

impl Config {
    /// Reads `file`; without one, the usual file if it exists.
    pub fn load(file: Option<&Path>) -> Result<Self, ConfigError> {
        let path = file.unwrap_or(Path::new(FILE));
        match read_file(file)? {
            Some(file) => Self::read(path, &file.text).map_err(ConfigError::Wrong),
            None => Ok(Self::default()),
        }
    }

    /// As [`Self::load`], for a process that runs what the file says and sends what it holds: others
    /// may not write to it, nor read credentials in it.
    pub fn load_trusted(file: Option<&Path>) -> Result<Self, ConfigError> {
        let path = file.unwrap_or(Path::new(FILE));
        let Some(file) = read_file(file)? else { return Ok(Self::default()) };
        let ours = rustix::process::geteuid().as_raw();
        let is_ours = file.metadata.uid() == 0 || file.metadata.uid() == ours;
        if !is_ours || file.metadata.mode() & 0o022 != 0 {
            return Err(ConfigError::Exposed(path.to_owned()));
        }
        let config = Self::read(path, &file.text).map_err(ConfigError::Wrong)?;
        if file.metadata.mode() & 0o004 != 0 && config.has_credentials() {
            return Err(ConfigError::Readable(path.to_owned()));
        }
        Ok(config)
    }

    /// As [`Self::load`], for a command that only asks: of a wrong file what can be understood, and what is wrong.
    pub fn load_for_asking(file: Option<&Path>) -> Result<(Self, Vec<SettingError>), ConfigError> {
        let path = file.unwrap_or(Path::new(FILE));
        match read_file(file)? {
            Some(file) => Ok(Self::understand(path, &file.text)),
            None => Ok((Self::default(), Vec::new())),
        }
    }

    /// Whether a node could use the places that it names, as far as can be told without using them.
    pub fn check_places(&self) -> Result<(), ConfigError> {
        check_directory(&self.state_dir)?;
        check_path(&self.socket)?;
        self.agent.iter().try_for_each(|agent| check_path(&agent.socket))?;
        Ok(())
    }

    /// What keeps a target from being reached, as far as can be told now. The node takes the file all
    /// the same: a hook may be installed later.
    pub fn warnings(&self) -> Vec<String> {
        let of_rules = self.rules.iter().flat_map(|rule| &rule.hooks);
        let of_agent = self.agent.iter().flat_map(|agent| &agent.hooks);
        let hooks = of_rules.chain(of_agent).filter_map(|hook| {
            let error = examine(Path::new(&hook.program[0])).err()?;
            Some(format!("hook {}: {}", hook.program[0], ErrorChain(&error)))
        });
        hooks.collect()
    }

    /// Logs the [`Self::warnings`].
    pub(crate) fn log_warnings(&self) {
        for warning in self.warnings() {
            tracing::warn!(warning, "configuration warning");
        }
    }

    /// Whether a webhook or the upstream has a secret in its URL or headers.
    fn has_credentials(&self) -> bool {
        self.web_targets().any(|target| target.has_credentials)
    }

    fn web_targets(&self) -> impl Iterator<Item = &Target> {
        let of_rules = self.rules.iter().flat_map(|rule| &rule.webhooks);
        let of_agent = self.agent.iter().flat_map(|agent| &agent.webhooks);
        let upstream = self.agent.iter().filter_map(|agent| agent.upstream.as_ref());
        let webhooks = of_rules.chain(of_agent).map(|webhook| &webhook.target);
        webhooks.chain(upstream.map(|upstream| &upstream.target))
    }

    /// Understands `text`, which is in `file`.
    pub fn read(file: &Path, text: &str) -> Result<Self, Vec<SettingError>> {
        let (config, faults) = Self::understand(file, text);
        if faults.is_empty() { Ok(config) } else { Err(faults) }
    }

    /// What can be understood of `text`, and what cannot.
    fn understand(file: &Path, text: &str) -> (Self, Vec<SettingError>) {
        let mut faults = SettingErrors::of(file, text);
        let (document, errors) = toml::de::DeTable::parse_recoverable(text);
        for error in errors {
            let offset = error.span().map_or(0, |span| span.start);
            faults.add(offset, error.message().replace('\n', ", "));
        }
        // What follows from a document that is none is not worth a word.
        let syntax_faults = faults.list.len();
        let mut config = Self::default();
        let mut root = Table::new("", document.get_ref(), 0);
        if let Some(table) = root.table("node", &mut faults) {
            config.take_node(table, &mut faults);
        }
        if let Some(table) = root.table("find", &mut faults) {
            config.take_places(table, &mut faults);
        }
        if let Some(table) = root.table("history", &mut faults) {
            config.take_history(table, &mut faults);
        }
        for table in root.tables("instance", &mut faults) {
            config.take_instance(file, table, &mut faults);
        }
        for table in root.tables("outlet", &mut faults) {
            config.rules.push(Rule::read(table, &mut faults));
        }
        if let Some(table) = root.table("agent", &mut faults) {
            let offset = table.offset;
            let agent = AgentConfig::read(table, &config.places.neutron, &mut faults);
            let told = config.rules.iter().filter_map(|rule| rule.agent.as_ref());
            if agent.socket == config.socket {
                faults.add(offset, "agent.socket is node.socket: monitors report elsewhere");
            }
            if told.into_iter().any(|told| told.socket == agent.socket) {
                let text = "an outlet tells the agent at this socket, which is our own";
                faults.add(offset, text);
            }
            config.agent = Some(agent);
        }
        root.finish(&mut faults);
        if syntax_faults > 0 {
            faults.list.truncate(syntax_faults);
        }
        faults.list.sort_by_key(|fault| fault.line);
        (config, faults.list)
    }

    fn take_node(&mut self, mut table: Table<'_, '_>, faults: &mut SettingErrors<'_>) {
        set(&mut self.state_dir, table.parsed("state_dir", faults, absolute));
        set(&mut self.socket, table.parsed("socket", faults, absolute));
        self.group = table.parsed("socket_group", faults, |name| {
            id(name, AccountKind::Group).ok_or_else(|| format!("there is no group {name:?}"))
        });
        set(
            &mut self.listen,
            table.parsed("listen", faults, |word| match word {
                "auto" => Ok(Listen::Auto),
                "each" => Ok(Listen::Each),
                _ => Err(format!("it is \"auto\" or \"each\", not {word:?}")),
            }),
        );
        set(
            &mut self.log,
            table.parsed("log", faults, |word| match word {
                "auto" => Ok(LogFormat::Auto),
                "text" => Ok(LogFormat::Text),
                "json" => Ok(LogFormat::Json),
                "journald" => Ok(LogFormat::Journald),
                _ => {
                    Err(format!("it is \"auto\", \"text\", \"json\" or \"journald\", not {word:?}"))
                }
            }),
        );
        set(
            &mut self.audit_every,
            table.parsed("audit_every", faults, |text| {
                let every = span(text)?;
                let is_sane = (Duration::from_secs(10)..=Duration::from_hours(24)).contains(&every);
                is_sane.then_some(every).ok_or_else(|| "it is 10s to 24h".to_owned())
            }),
        );
        let at_once = table.number("hooks_at_once", 1, 256, faults);
        set(&mut self.hooks_at_once, at_once.and_then(|count| usize::try_from(count).ok()));
        table.finish(faults);
    }

    fn take_places(&mut self, mut table: Table<'_, '_>, faults: &mut SettingErrors<'_>) {
        set(&mut self.places.neutron, table.parsed("neutron_state_path", faults, absolute));
        set(&mut self.places.keepalived, table.parsed("keepalived_conf", faults, absolute));
        self.places.config_id = table.parsed("config_id", faults, |id| match id {
            "" => Err("it is empty".to_owned()),
            id if id.contains(char::is_whitespace) => Err(format!("{id:?} is not one word")),
            id => Ok(id.to_owned()),
        });
        table.finish(faults);
    }

    fn take_history(&mut self, mut table: Table<'_, '_>, faults: &mut SettingErrors<'_>) {
        let days = table.number("keep_days", 1, 3650, faults);
        set(&mut self.keep.age, days.map(|days| Duration::from_secs(days * 86_400)));
        set(&mut self.keep.changes, table.number("keep_changes", 1, u64::MAX, faults));
        let megabytes = table.number("keep_megabytes", 1, 1 << 30, faults);
        set(&mut self.keep.bytes, megabytes.map(|count| count << 20));
        table.finish(faults);
    }

    fn take_instance(
        &mut self,
        file: &Path,
        mut table: Table<'_, '_>,
        faults: &mut SettingErrors<'_>,
    ) {
        let offset = table.offset;
        let parse = |text: &str| text.parse::<InstanceId>().map_err(|error| error.to_string());
        let id = table.parsed("id", faults, parse);
        if let Some(id) = id.as_ref().filter(|id| self.instances.iter().any(|own| own.id == **id)) {
            faults.add(offset, format!("instance {id} is there already"));
        }
        let netns = table.parsed("netns", faults, |text| {
            text.parse::<NetnsName>().map_err(|error| error.to_string())
        });
        let link = table.parsed("link", faults, |text| {
            text.parse::<LinkName>().map_err(|error| error.to_string())
        });
        let vrid = table.number("vrid", 1, 255, faults).and_then(|vrid| u8::try_from(vrid).ok());
        let texts = table.texts("addresses", faults).unwrap_or_default();
        let mut addresses = Vec::new();
        for (offset, text) in &texts {
            match address(text, link) {
                Ok(address) => addresses.push(address),
                Err(why) => faults.add(*offset, why),
            }
        }
        if texts.is_empty() {
            faults.add(offset, "an instance needs addresses = [\"IP/LENGTH dev LINK\"]");
        }
        table.finish(faults);
        let Some(id) = id else {
            return faults.add(offset, "an instance needs an id");
        };
        let Some(first) = addresses.first() else { return };
        let vrrp = VrrpInstance {
            position: FilePosition { file: 0, line: faults.line(offset) },
            name: id.to_string(),
            interface: link.unwrap_or(first.link),
            vrid,
            priority: None,
            advert_interval: None,
            addresses,
            has_ipv6_gateway: false,
        };
        let (origin, file, vrrp) = (Origin::Own, file.into(), Arc::new(vrrp));
        self.instances.push(Arc::new(InstanceConfig { id, origin, netns, file, vrrp }));
    }
}

/// Reads `file`; `None` if no file was named, and the usual one does not exist.
fn read_file(file: Option<&Path>) -> Result<Option<TextFile>, ConfigError> {
    let path = file.unwrap_or(Path::new(FILE));
    match vipwatch_linux::file::read_text_file(path, LIMIT) {
        Ok(text) => Ok(Some(text)),
        Err(error) if file.is_none() && error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(ConfigError::Read { file: path.to_owned(), source }),
    }
}

/// Whether `path` is a directory, or could be made: its nearest ancestor that exists is one.
fn check_directory(path: &Path) -> Result<(), ConfigError> {
    let nearest = path.ancestors().find(|ancestor| ancestor.symlink_metadata().is_ok());
    match nearest {
        Some(nearest) if !nearest.is_dir() => {
            let text = format!("{} is not a directory", nearest.display());
            let source = io::Error::new(io::ErrorKind::NotADirectory, text);
            Err(ConfigError::StateDir { path: path.to_owned(), source })
        }
        _ => Ok(()),
    }
}

/// Keeps the default where nothing, or nothing useful, is said.
fn set<T>(place: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *place = value;
    }
}

fn absolute(text: &str) -> Result<PathBuf, String> {
    let path = Path::new(text);
    let is_fine = path.is_absolute() && !text.contains('\0');
    is_fine.then(|| path.to_owned()).ok_or_else(|| format!("{text:?} is not an absolute path"))
}

/// `IP[/LENGTH] [dev LINK]`.
fn address(text: &str, link: Option<LinkName>) -> Result<VirtualAddress, String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let (cidr, named) = match *words.as_slice() {
        [cidr] => (cidr, None),
        [cidr, "dev", link] => (cidr, Some(link)),
        _ => return Err(format!("{text:?} is not \"IP/LENGTH dev LINK\"")),
    };
    let link = match named {
        Some(named) => Some(named.parse().map_err(|error| format!("the link {named:?}: {error}"))?),
        None => link,
    };
    let link = link.ok_or_else(|| format!("{text:?}: on which link? Add \"dev LINK\""))?;
    Ok(VirtualAddress { cidr: cidr_of(cidr)?, link, is_excluded: false })
}

/// An address, and a prefix length that its family can have.
fn cidr_of(text: &str) -> Result<IpNet, String> {
    if let Some(cidr) = vipwatch_core::parse_vip(text) {
        return Ok(cidr);
    }
    let (ip, length) = text.split_once('/').unwrap_or((text, ""));
    let family = match ip.parse() {
        Ok(std::net::IpAddr::V4(_)) => "an IPv4 address has a prefix length of 0 to 32",
        Ok(std::net::IpAddr::V6(_)) => "an IPv6 address has a prefix length of 0 to 128",
        Err(_) => return Err(format!("{ip:?} is not an address")),
    };
    Err(format!("{text}: {family}, not {length:?}"))
}

#[cfg(test)]
mod tests;
