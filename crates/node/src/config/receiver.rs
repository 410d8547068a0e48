// SPDX-License-Identifier: Apache-2.0
//! `[receiver]`: the socket on which monitors report, and the targets of their reports.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use vipwatch_history::DeliverySource;
use vipwatch_linux::account::{AccountKind, id};
use vipwatch_linux::listen::SocketOptions;

use super::document::{SettingErrors, Table};
use super::sections::{absolute, set};
use super::target_name::{DefaultName, GivenName, TargetNames};
use super::targets::{Hook, Target, TargetScope, Webhook, parse_settle};

/// Maximum number of connections that wait to be accepted (`listen(2)`): every monitor of a node at once.
const BACKLOG: i32 = 4096;

/// The file name of the socket in Neutron's `state_path`.
const SOCKET_NAME: &str = "keepalived-state-change";

/// The settings of the receiver.
#[derive(Debug, Clone, PartialEq)]
pub struct ReceiverConfig {
    /// Neutron's `state_path`, which contains the configurations of its routers.
    pub state_path: PathBuf,
    /// The path of the socket on which monitors report.
    pub socket: PathBuf,
    /// The owner, group and mode of the socket.
    pub options: SocketOptions,
    /// Users and groups that may report, besides root and the receiver's own user.
    pub allow: AllowedAccounts,
    /// How long a reported `primary` is held back, in case the monitor reports another state.
    pub interval: Duration,
    /// Whether the receiver sets IPv6 forwarding and router advertisements in the routers' namespaces.
    pub has_ipv6_params: bool,
    /// A URL to which the states of many routers are posted in one request; `None` for none.
    pub upstream: Option<Arc<Upstream>>,
    /// Programs to run.
    pub hooks: Vec<Arc<Hook>>,
    /// URLs to post to.
    pub webhooks: Vec<Arc<Webhook>>,
}

/// User and group ids that may report.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllowedAccounts {
    /// User ids.
    pub users: Vec<u32>,
    /// Group ids; a process is a member by its primary or a supplementary group.
    pub groups: Vec<u32>,
}

/// A name that is in neither `/etc/passwd` nor `/etc/group`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no {} {name:?}: it is not in {}", kind.word(), kind.file())]
pub struct UnknownAccount {
    /// The name.
    pub name: String,
    /// Whether it is the name of a user or of a group.
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

/// A URL to which the states of many routers are posted in one request.
#[derive(Debug, PartialEq, Eq)]
pub struct Upstream {
    /// The name of the target.
    pub name: String,
    /// The URL and its HTTP settings.
    pub target: Target,
    /// The shortest time between two requests.
    pub interval: Duration,
    /// How long a state must last before it is posted; zero for no wait.
    pub settle: Duration,
}

impl ReceiverConfig {
    /// The default settings: the socket of Neutron's agent in `state_path`, and no targets.
    pub fn new(state_path: &Path) -> Self {
        Self {
            state_path: state_path.to_owned(),
            socket: state_path.join(SOCKET_NAME),
            options: SocketOptions { mode: 0o660, user: None, group: None, backlog: BACKLOG },
            allow: AllowedAccounts::default(),
            interval: Duration::from_secs(2),
            has_ipv6_params: false,
            upstream: None,
            hooks: Vec::new(),
            webhooks: Vec::new(),
        }
    }

    /// Replaces Neutron's `state_path`, and the socket, unless the configuration names another socket.
    pub fn set_state_path(&mut self, state_path: &Path) {
        if self.socket == self.state_path.join(SOCKET_NAME) {
            self.socket = state_path.join(SOCKET_NAME);
        }
        state_path.clone_into(&mut self.state_path);
    }

    pub(super) fn read(
        mut table: Table<'_, '_>,
        state_path: &Path,
        names: &mut TargetNames,
        errors: &mut SettingErrors<'_>,
    ) -> Self {
        let mut config = Self::new(state_path);
        set(&mut config.socket, table.parsed("socket", errors, absolute));
        let find = |kind: AccountKind| {
            move |name: &str| {
                id(name, kind).ok_or_else(|| format!("there is no {} {name:?}", kind.word()))
            }
        };
        config.options.user = table.parsed("owner", errors, find(AccountKind::User));
        config.options.group = table.parsed("group", errors, find(AccountKind::Group));
        set(&mut config.options.mode, table.parsed("mode", errors, octal));
        for (offset, name) in table.texts("allow", errors).unwrap_or_default() {
            if let Err(unknown) = config.allow.add(name) {
                errors.add(offset, format!("allow: {unknown}"));
            }
        }
        set(&mut config.interval, table.span("interval", errors));
        set(&mut config.has_ipv6_params, table.flag("ipv6_params", errors));
        config.upstream = table.table("upstream", errors).and_then(|mut table| {
            let (offset, name) = (table.offset, GivenName::read(&mut table, errors));
            let target = Target::read("an upstream", &mut table, errors);
            let interval = table.span("interval", errors).unwrap_or(config.interval);
            let settle = table.parsed("settle", errors, parse_settle).unwrap_or(Duration::ZERO);
            table.finish(errors);
            let target = target?;
            let default = DefaultName::Url(target.url.default_name());
            let make = |name| {
                let target = target.clone();
                Arc::new(Upstream { name, target, interval, settle })
            };
            Some(names.name(DeliverySource::Receiver, name, offset, default, make, errors))
        });
        (config.hooks, config.webhooks) =
            TargetScope::receiver(names).hooks_and_webhooks(&mut table, errors);
        table.finish(errors);
        config
    }
}

/// Parses permissions as `chmod` does: an octal number up to 777.
pub fn octal(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| "it is an octal number up to 777".to_owned())
}
