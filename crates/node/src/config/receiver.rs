//! `[agent]`: how monitors are received, and what is done with what they report.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use vipwatch_core::debounce::ReportedState;
use vipwatch_linux::account::{AccountKind, id};
use vipwatch_linux::listen::SocketOptions;

use super::document::{SettingErrors, Table};
use super::notify::{Hook, Target, Webhook, hooks_and_webhooks};
use super::{absolute, set};

/// What monitors can claim, in words.
pub const CLAIMS: [&str; 4] = [
    ReportedState::Primary.as_str(),
    ReportedState::Backup.as_str(),
    ReportedState::Fault.as_str(),
    ReportedState::Unknown.as_str(),
];

/// How many monitors may wait to be let in: as many as a node has, at once.
const BACKLOG: i32 = 4096;

/// What Neutron's agents and monitors call their socket.
const SOCKET: &str = "keepalived-state-change";

/// How monitors are received.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentConfig {
    /// Neutron's `state_path`, where its routers' configurations are.
    pub state_path: PathBuf,
    /// Where they report.
    pub socket: PathBuf,
    /// Whose the socket is, and who may use it.
    pub options: SocketOptions,
    /// Users and groups whose processes may report, besides root and our own user.
    pub allow: AllowedAccounts,
    /// For how long a primary is held back.
    pub interval: Duration,
    /// Whether forwarding and router advertisements are set in the routers' namespaces.
    pub has_ipv6_params: bool,
    /// Who is told of many at once.
    pub upstream: Option<Arc<Upstream>>,
    /// Programs to run.
    pub hooks: Vec<Arc<Hook>>,
    /// Addresses to post to.
    pub webhooks: Vec<Arc<Webhook>>,
}

/// Users and groups.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllowedAccounts {
    /// Users.
    pub users: Vec<u32>,
    /// Groups, whose members count by any of their groups.
    pub groups: Vec<u32>,
}

/// A name that is in neither `/etc/passwd` nor `/etc/group`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no {} {name:?}: it is not in {}", kind.word(), kind.file())]
pub struct UnknownAccount {
    /// The name.
    pub name: String,
    /// What it was to be the name of.
    pub kind: AccountKind,
}

impl AllowedAccounts {
    /// Adds `USER` or `@GROUP`, by name or number.
    pub fn add(&mut self, text: &str) -> Result<(), UnknownAccount> {
        let (name, kind, list) = match text.strip_prefix('@') {
            Some(group) => (group, AccountKind::Group, &mut self.groups),
            None => (text, AccountKind::User, &mut self.users),
        };
        let unknown = || UnknownAccount { name: name.to_owned(), kind };
        list.push(id(name, kind).ok_or_else(unknown)?);
        Ok(())
    }
}

/// Somebody who is told of many at once.
#[derive(Debug, PartialEq, Eq)]
pub struct Upstream {
    /// Where, and how.
    pub target: Target,
    /// How often at most.
    pub interval: Duration,
}

impl AgentConfig {
    /// As Neutron's agent does it, below its `state_path`, with nobody told.
    pub fn new(state_path: &Path) -> Self {
        Self {
            state_path: state_path.to_owned(),
            socket: state_path.join(SOCKET),
            options: SocketOptions { mode: 0o660, user: None, group: None, backlog: BACKLOG },
            allow: AllowedAccounts::default(),
            interval: Duration::from_secs(2),
            has_ipv6_params: false,
            upstream: None,
            hooks: Vec::new(),
            webhooks: Vec::new(),
        }
    }

    /// Neutron's `state_path` is another one; so is the socket, unless it was named.
    pub fn move_to(&mut self, state_path: &Path) {
        if self.socket == self.state_path.join(SOCKET) {
            self.socket = state_path.join(SOCKET);
        }
        state_path.clone_into(&mut self.state_path);
    }

    pub(super) fn read(
        mut table: Table<'_, '_>,
        state_path: &Path,
        faults: &mut SettingErrors<'_>,
    ) -> Self {
        let mut config = Self::new(state_path);
        set(&mut config.socket, table.parsed("socket", faults, absolute));
        let find = |kind: AccountKind| {
            move |name: &str| {
                id(name, kind).ok_or_else(|| format!("there is no {} {name:?}", kind.word()))
            }
        };
        config.options.user = table.parsed("owner", faults, find(AccountKind::User));
        config.options.group = table.parsed("group", faults, find(AccountKind::Group));
        set(&mut config.options.mode, table.parsed("mode", faults, octal));
        for (offset, name) in table.texts("allow", faults).unwrap_or_default() {
            if let Err(unknown) = config.allow.add(name) {
                faults.add(offset, format!("allow: {unknown}"));
            }
        }
        set(&mut config.interval, table.span("interval", faults));
        set(&mut config.has_ipv6_params, table.flag("ipv6_params", faults));
        config.upstream = table.table("upstream", faults).and_then(|mut table| {
            let target = Target::read("an upstream", &mut table, faults);
            let interval = table.span("interval", faults).unwrap_or(config.interval);
            table.finish(faults);
            Some(Arc::new(Upstream { target: target?, interval }))
        });
        (config.hooks, config.webhooks) = hooks_and_webhooks(&CLAIMS, &mut table, faults);
        table.finish(faults);
        config
    }
}

/// Permissions, as `chmod` takes them.
pub fn octal(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| "it is an octal number up to 777".to_owned())
}
