//! `[[outlet]]`: which instances, and who is told about them.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::discovery::{InstanceConfig, Origin};
use ureq::http::Uri;
use vipwatch_core::AnnouncePlan;
use vipwatch_core::RateLimit;
use vipwatch_linux::account::{AccountKind, id};
use vipwatch_outlets::agent::AgentTrust;

use super::credentials::{has_credentials, is_readable_on_the_way};
use super::document::{SettingErrors, Table, Value};
use super::{absolute, span};
use crate::notify::post::ca_bundle;

/// The user that packages of Neutron create.
const AGENT_USER: &str = "neutron";

/// The roles that can be told of.
const ROLES: [&str; 5] = ["primary", "partial", "backup", "fault", "unknown"];

/// One `[[outlet]]`.
#[derive(Debug, Clone)]
pub struct Rule {
    patterns: Vec<glob::Pattern>,
    origins: Vec<Origin>,
    /// The directory in which a file `state` says the role.
    pub state_file: Option<Template>,
    /// How addresses are announced when an instance becomes primary.
    pub announce: Option<AnnouncePlan>,
    /// The agent to tell.
    pub agent: Option<AgentRule>,
    /// Programs to run.
    pub hooks: Vec<Arc<Hook>>,
    /// Addresses to post to.
    pub webhooks: Vec<Arc<Webhook>>,
}

/// A path with `{id}`, `{netns}` and `{name}` in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template(String);

/// Whom to tell, and in which words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentRule {
    /// Its socket.
    pub socket: PathBuf,
    /// Whom to believe at the other end.
    pub trust: AgentTrust,
    /// Whether it says `master` where others say `primary` (Neutron up to 16).
    pub says_master: bool,
}

/// What to do when an instance changes again before it was told of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryMode {
    /// Only the last one matters.
    Latest,
    /// Every one, in order.
    Every,
}

/// A program to run.
#[derive(Debug, PartialEq, Eq)]
pub struct Hook {
    /// The program and its arguments; never none.
    pub program: Vec<String>,
    /// The roles it wants to hear of.
    pub on: Vec<&'static str>,
    /// How long it may take.
    pub deadline: Duration,
    /// Whether it wants every change.
    pub deliver: DeliveryMode,
}

/// An address to post to.
#[derive(Debug, PartialEq, Eq)]
pub struct Webhook {
    /// Where, and how.
    pub target: Target,
    /// The roles it wants to hear of.
    pub on: Vec<&'static str>,
    /// Whether it wants every change.
    pub deliver: DeliveryMode,
}

/// Somebody on the web, and how to reach him.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// `http://…` or `https://…`
    pub url: String,
    /// How long one attempt may take.
    pub timeout: Duration,
    /// Authorities to believe instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// More headers; never shown.
    pub headers: BTreeMap<String, String>,
    /// Whether the URL or a header holds a secret.
    pub has_credentials: bool,
}

impl Rule {
    /// Whether it is about `found`.
    pub fn covers(&self, found: &InstanceConfig) -> bool {
        let id = found.id.as_str();
        self.origins.contains(&found.origin)
            && self.patterns.iter().any(|pattern| pattern.matches(id))
    }

    pub(super) fn read(mut table: Table<'_, '_>, faults: &mut SettingErrors<'_>) -> Self {
        let offset = table.offset;
        let before = faults.list.len();
        let patterns = match table.texts("instances", faults) {
            None => vec![glob::Pattern::new("*").unwrap_or_default()],
            Some(texts) => texts
                .into_iter()
                .filter_map(|(offset, text)| match glob::Pattern::new(text) {
                    Ok(pattern) => Some(pattern),
                    Err(error) => {
                        faults.add(offset, format!("the pattern {text:?}: {}", error.msg));
                        None
                    }
                })
                .collect(),
        };
        // Neutron's routers have a monitor of their own, whose work nobody does twice unless he
        // is told to.
        let origins = match table.texts("origin", faults) {
            None => vec![Origin::Keepalived, Origin::Own],
            Some(texts) => {
                texts.into_iter().filter_map(|(at, word)| origin(at, word, faults)).collect()
            }
        };
        let state_file = table.parsed("state_file", faults, Template::parse);
        let announce = table.take("announce").and_then(|value| plan(value, faults));
        let agent = table.take("agent").and_then(|value| AgentRule::read(value, faults));
        let (hooks, webhooks) = hooks_and_webhooks(&ROLES, &mut table, faults);
        table.finish(faults);
        let is_idle = state_file.is_none() && announce.is_none() && agent.is_none();
        if is_idle && hooks.is_empty() && webhooks.is_empty() && faults.list.len() == before {
            let text = "an outlet needs state_file, announce, agent, hook or webhook";
            faults.add(offset, text);
        }
        Self { patterns, origins, state_file, announce, agent, hooks, webhooks }
    }
}

/// Programs and addresses, with those of `roles` that they want to hear of.
pub(super) fn hooks_and_webhooks(
    roles: &[&'static str],
    table: &mut Table<'_, '_>,
    faults: &mut SettingErrors<'_>,
) -> (Vec<Arc<Hook>>, Vec<Arc<Webhook>>) {
    let hooks = table.tables("hook", faults).into_iter();
    let hooks = hooks.filter_map(|table| Hook::read(table, roles, faults)).map(Arc::new).collect();
    let webhooks = table.tables("webhook", faults).into_iter();
    let webhooks =
        webhooks.filter_map(|table| Webhook::read(table, roles, faults)).map(Arc::new).collect();
    (hooks, webhooks)
}

fn origin(offset: usize, word: &str, faults: &mut SettingErrors<'_>) -> Option<Origin> {
    let all = [Origin::Neutron, Origin::Keepalived, Origin::Own];
    let found = all.into_iter().find(|origin| origin.word() == word);
    if found.is_none() {
        let text = format!("origin is \"neutron\", \"keepalived\" or \"vipwatch\", not {word:?}");
        faults.add(offset, text);
    }
    found
}

impl Template {
    fn parse(text: &str) -> Result<Self, String> {
        absolute(text)?;
        let mut rest = text;
        while let Some((_, after)) = rest.split_once('{') {
            let (name, after) =
                after.split_once('}').ok_or_else(|| format!("{text:?}: a {{ is not closed"))?;
            if !["id", "netns", "name"].contains(&name) {
                return Err(format!("{{{name}}} is not {{id}}, {{netns}} or {{name}}"));
            }
            rest = after;
        }
        if !text.contains("{id}") {
            return Err(format!("{text:?} is the same for every instance: put {{id}} into it"));
        }
        Ok(Self(text.to_owned()))
    }

    /// The path for `found`. An instance's name cannot lead elsewhere: what could is replaced.
    pub fn path(&self, found: &InstanceConfig) -> PathBuf {
        let netns = found.netns.as_ref().map_or("", |netns| netns.as_str());
        let name = found.vrrp.name.replace(['/', '\0'], "_");
        let name = if name.starts_with('.') { format!("_{name}") } else { name };
        let path = self.0.replace("{id}", found.id.as_str()).replace("{netns}", netns);
        PathBuf::from(path.replace("{name}", &name))
    }
}

/// `true`, or a table that says how.
fn plan(value: &Value<'_>, faults: &mut SettingErrors<'_>) -> Option<AnnouncePlan> {
    match value.get_ref().as_bool() {
        Some(true) => return Some(AnnouncePlan::PRIMARY),
        Some(false) => return None,
        None => {}
    }
    let mut table = Table::of("announce", value, faults)?;
    let mut plan = AnnouncePlan::PRIMARY;
    if let Some(count) = table.number("count", 1, 100, faults) {
        plan.count = u16::try_from(count).unwrap_or(plan.count);
    }
    if let Some(gap) = table.span("gap", faults) {
        plan.gap = gap.max(Duration::from_millis(10));
    }
    let optional = |span: Duration| Some(span).filter(|span| !span.is_zero());
    if let Some(pause) = table.span("second_burst", faults) {
        plan.second_burst = optional(pause);
    }
    if let Some(pause) = table.span("refresh", faults) {
        plan.refresh = optional(pause);
    }
    if let Some(check) = table.span("check", faults) {
        plan.check = optional(check);
    }
    if let Some(rate) = table.number("rate", 1, 1_000_000, faults) {
        let rate = u32::try_from(rate).unwrap_or(u32::MAX);
        plan.rate = RateLimit { per_second: rate, burst: rate };
    }
    table.finish(faults);
    Some(plan)
}

impl AgentRule {
    /// A path, or a table with more.
    fn read(value: &Value<'_>, faults: &mut SettingErrors<'_>) -> Option<Self> {
        if let Some(text) = value.get_ref().as_str() {
            return match absolute(text) {
                Ok(socket) => {
                    let trust = AgentTrust::User(agent_user(&socket));
                    Some(Self { socket, trust, says_master: false })
                }
                Err(why) => {
                    faults.add(value.span().start, format!("agent: {why}"));
                    None
                }
            };
        }
        let mut table = Table::of("agent", value, faults)?;
        let offset = table.offset;
        let socket = table.parsed("socket", faults, absolute);
        let user = table.parsed("user", faults, |name| {
            id(name, AccountKind::User).ok_or_else(|| format!("there is no user {name:?}"))
        });
        let says_master = table.parsed("primary_word", faults, |word| match word {
            "primary" => Ok(false),
            "master" => Ok(true),
            _ => Err(format!("it is \"primary\" or \"master\", not {word:?}")),
        });
        let is_any_allowed = table.flag("allow_any_agent", faults).unwrap_or(false);
        table.finish(faults);
        let Some(socket) = socket else {
            faults.add(offset, "agent needs socket = \"PATH\"");
            return None;
        };
        if is_any_allowed && user.is_some() {
            faults.add(offset, "agent: user and allow_any_agent exclude each other");
        }
        let trust = match user {
            _ if is_any_allowed => AgentTrust::Anyone,
            Some(user) => AgentTrust::User(user),
            None => AgentTrust::User(agent_user(&socket)),
        };
        Some(Self { socket, trust, says_master: says_master.unwrap_or(false) })
    }
}

/// The user that Neutron's agent runs as, where the configuration does not say: the owner of the
/// socket's directory, which is Neutron's `state_path`. If that is root, or if there is no such
/// directory yet, the user `neutron`; without one, root.
fn agent_user(socket: &Path) -> u32 {
    let owner = socket.parent().and_then(|directory| directory.metadata().ok());
    let owner = owner.map(|metadata| metadata.uid()).filter(|user| *user != 0);
    owner.or_else(|| id(AGENT_USER, AccountKind::User)).unwrap_or(0)
}

/// Those of `roles` that are told of; all if nothing is said.
fn chosen(
    roles: &[&'static str],
    table: &mut Table<'_, '_>,
    faults: &mut SettingErrors<'_>,
) -> Vec<&'static str> {
    let Some(texts) = table.texts("on", faults) else { return roles.to_vec() };
    let mut chosen = Vec::new();
    for (offset, text) in texts {
        match roles.iter().find(|role| **role == text) {
            Some(role) => chosen.push(*role),
            None => faults.add(offset, format!("{text:?} is not one of {}", roles.join(", "))),
        }
    }
    chosen
}

fn deliver(table: &mut Table<'_, '_>, faults: &mut SettingErrors<'_>) -> Option<DeliveryMode> {
    table.parsed("deliver", faults, |word| match word {
        "latest" => Ok(DeliveryMode::Latest),
        "every" => Ok(DeliveryMode::Every),
        _ => Err(format!("it is \"latest\" or \"every\", not {word:?}")),
    })
}

/// A span that is not nothing, and not for ever.
pub(super) fn limit(text: &str) -> Result<Duration, String> {
    let limit = span(text)?;
    let is_sane = (Duration::from_millis(1)..=Duration::from_mins(10)).contains(&limit);
    is_sane.then_some(limit).ok_or_else(|| "it is 1ms to 10m".to_owned())
}

impl Hook {
    fn read(
        mut table: Table<'_, '_>,
        roles: &[&'static str],
        faults: &mut SettingErrors<'_>,
    ) -> Option<Self> {
        let offset = table.offset;
        let program = table.texts("program", faults);
        let on = chosen(roles, &mut table, faults);
        let deadline = table.parsed("deadline", faults, limit).unwrap_or(Duration::from_secs(10));
        let deliver = deliver(&mut table, faults).unwrap_or(DeliveryMode::Every);
        table.finish(faults);
        let program: Vec<String> =
            program.into_iter().flatten().map(|(_, word)| word.to_owned()).collect();
        let is_fine = program.first().is_some_and(|first| Path::new(first).is_absolute());
        if !is_fine {
            faults.add(offset, "a hook needs program = [\"/ABSOLUTE/PATH\", …]");
            return None;
        }
        Some(Self { program, on, deadline, deliver })
    }
}

impl Webhook {
    fn read(
        mut table: Table<'_, '_>,
        roles: &[&'static str],
        faults: &mut SettingErrors<'_>,
    ) -> Option<Self> {
        let target = Target::read("a webhook", &mut table, faults);
        let on = chosen(roles, &mut table, faults);
        let deliver = deliver(&mut table, faults).unwrap_or(DeliveryMode::Latest);
        table.finish(faults);
        Some(Self { target: target?, on, deliver })
    }
}

impl Target {
    /// Takes its keys from `table`, which `what` has.
    pub(super) fn read(
        what: &str,
        table: &mut Table<'_, '_>,
        faults: &mut SettingErrors<'_>,
    ) -> Option<Self> {
        let offset = table.offset;
        let url = table.parsed("url", faults, parse_url);
        let timeout = table.parsed("timeout", faults, limit).unwrap_or(Duration::from_secs(5));
        let ca_file = table.parsed("ca_file", faults, |text| {
            let path = absolute(text)?;
            let failed = |error| format!("cannot read CA certificates from {text}: {error}");
            ca_bundle::read(&path).map(|_| path).map_err(failed)
        });
        let mut headers = BTreeMap::new();
        if let Some(value) = table.take("headers") {
            match value.get_ref().as_table() {
                Some(table) => {
                    for (name, value) in table {
                        match value.get_ref().as_str() {
                            Some(text) if is_header(name.get_ref(), text) => {
                                headers.insert(name.get_ref().to_string(), text.to_owned());
                            }
                            _ => faults.add(value.span().start, "a header is a line of text"),
                        }
                    }
                }
                None => faults.add(value.span().start, "headers is a table of strings"),
            }
        }
        let may_be_read = table.flag("allow_credentials_over_http", faults).unwrap_or(false);
        let Some((url, uri)) = url else {
            faults.add(offset, format!("{what} needs url = \"http://…\""));
            return None;
        };
        let has_credentials = has_credentials(&uri, &headers);
        if has_credentials && !may_be_read && is_readable_on_the_way(&uri) {
            let text = "url: credentials would be sent to another host without encryption; use \
                        https://, or set allow_credentials_over_http = true";
            faults.add(offset, text);
        }
        Some(Self { url, timeout, ca_file, headers, has_credentials })
    }
}

/// The address as it is written, and its parts.
fn parse_url(text: &str) -> Result<(String, Uri), String> {
    let uri: Uri = text.parse().map_err(|error| format!("{text:?} is not a URL: {error}"))?;
    let is_web = matches!(uri.scheme_str(), Some("http" | "https"));
    let has_host = uri.host().is_some_and(|host| !host.is_empty());
    (is_web && has_host)
        .then(|| (text.to_owned(), uri))
        .ok_or_else(|| "it begins with http:// or https://".to_owned())
}

/// Whether it can stand in a request as it is.
fn is_header(name: &str, value: &str) -> bool {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !name.is_empty()
        && name.bytes().all(is_token)
        && value.bytes().all(|byte| byte == b'\t' || (b' '..=b'~').contains(&byte))
}
