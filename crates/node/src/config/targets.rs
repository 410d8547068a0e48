// SPDX-License-Identifier: Apache-2.0
//! Hooks and webhooks, which rules and the receiver have in common, and the HTTP settings of webhooks and
//! the upstream.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use vipwatch_core::{DeliveryMode, EventKind};
use vipwatch_history::DeliverySource;

use super::Upstream;
use super::credentials::is_secret_header;
use super::document::{SettingErrors, Table, span};
use super::header::{HeaderValue, read_headers};
use super::hook_account::HookAccount;
use super::secret_line::SecretError;
use super::sections::absolute;
use super::target_name::{DefaultName, GivenName, TargetNames};
use super::target_url::{HttpUrl, TargetUrl};
use crate::notify::post::ca_bundle;

/// Default time limit of a hook.
const HOOK_TIMEOUT: Duration = Duration::from_secs(10);

/// Default time limit of one HTTP request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Defaults of `batch`.
const BATCH_MAX: usize = 100;
const BATCH_WAIT: Duration = Duration::from_millis(200);

/// A program to run.
#[derive(Debug, PartialEq, Eq)]
pub struct Hook {
    /// The name of the target.
    pub name: String,
    /// The program and its arguments; never empty.
    pub program: Vec<String>,
    /// The events for which it runs.
    pub on: Vec<EventKind>,
    /// The user and the group of the program.
    pub account: HookAccount,
    /// The time after which the program and everything that it has started are killed.
    pub timeout: Duration,
    /// What happens to notifications that wait.
    pub deliver: DeliveryMode,
    /// How long a role must last before the program runs; zero for no wait.
    pub settle: Duration,
    /// How often the program runs again after it has failed.
    pub retries: u32,
}

/// A URL to post to.
#[derive(Debug, PartialEq, Eq)]
pub struct Webhook {
    /// The name of the target.
    pub name: String,
    /// The URL and its HTTP settings.
    pub target: Target,
    /// The events that are posted.
    pub on: Vec<EventKind>,
    /// What happens to notifications that wait.
    pub deliver: DeliveryMode,
    /// How long a role must last before it is posted; zero for no wait.
    pub settle: Duration,
    /// The number of notifications in one request; `None` for one notification in each request.
    pub batch: Option<BatchSettings>,
}

/// One request for many notifications.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchSettings {
    /// Maximum number of notifications in one request.
    pub max: usize,
    /// How long the first notification waits for others.
    pub wait: Duration,
}

/// A target of any kind, for comparisons.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ConfiguredTarget {
    Hook(Arc<Hook>),
    Webhook(Arc<Webhook>),
    Upstream(Arc<Upstream>),
}

impl ConfiguredTarget {
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Hook(hook) => &hook.name,
            Self::Webhook(webhook) => &webhook.name,
            Self::Upstream(upstream) => &upstream.name,
        }
    }
}

impl From<Arc<Hook>> for ConfiguredTarget {
    fn from(hook: Arc<Hook>) -> Self {
        Self::Hook(hook)
    }
}

impl From<Arc<Webhook>> for ConfiguredTarget {
    fn from(webhook: Arc<Webhook>) -> Self {
        Self::Webhook(webhook)
    }
}

impl From<Arc<Upstream>> for ConfiguredTarget {
    fn from(upstream: Arc<Upstream>) -> Self {
        Self::Upstream(upstream)
    }
}

/// A URL with its HTTP settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Where the request goes.
    pub url: TargetUrl,
    /// The time limit of one request.
    pub timeout: Duration,
    /// A file with CA certificates to trust instead of the system's; `None` for the system's.
    pub ca_file: Option<PathBuf>,
    /// Additional request headers; their values are never logged or shown.
    pub headers: BTreeMap<String, HeaderValue>,
    /// Whether credentials may be sent to another host without encryption.
    pub may_send_unencrypted: bool,
}

/// What the targets of a rule, or of the receiver, have in common.
pub(super) struct TargetScope<'n> {
    pub(super) source: DeliverySource,
    /// The valid values of `on`.
    pub(super) events: &'static [EventKind],
    /// The events without the key `on`.
    pub(super) default_events: &'static [EventKind],
    pub(super) names: &'n mut TargetNames,
}

/// The values of `on` in a hook or webhook of a rule. Findings are sent only where `on` names them.
const EVENTS_OF_RULE: [EventKind; 7] = {
    let [primary, partial, backup, fault, unknown, removed] = EventKind::OF_INSTANCE;
    [primary, partial, backup, fault, unknown, removed, EventKind::Finding]
};

impl<'n> TargetScope<'n> {
    pub(super) fn rule(names: &'n mut TargetNames) -> Self {
        let default_events = &EventKind::OF_INSTANCE;
        Self { source: DeliverySource::Node, events: &EVENTS_OF_RULE, default_events, names }
    }

    pub(super) fn receiver(names: &'n mut TargetNames) -> Self {
        let events = &EventKind::OF_REPORT;
        Self { source: DeliverySource::Receiver, events, default_events: events, names }
    }

    /// Reads the `hook` and `webhook` tables of `table`.
    pub(super) fn hooks_and_webhooks(
        &mut self,
        table: &mut Table<'_, '_>,
        errors: &mut SettingErrors<'_>,
    ) -> (Vec<Arc<Hook>>, Vec<Arc<Webhook>>) {
        let hooks = table.tables("hook", errors).into_iter();
        let hooks = hooks.filter_map(|table| self.read_hook(table, errors)).collect();
        let webhooks = table.tables("webhook", errors).into_iter();
        let webhooks = webhooks.filter_map(|table| self.read_webhook(table, errors)).collect();
        (hooks, webhooks)
    }

    fn read_hook(
        &mut self,
        mut table: Table<'_, '_>,
        errors: &mut SettingErrors<'_>,
    ) -> Option<Arc<Hook>> {
        let offset = table.offset;
        let name = GivenName::read(&mut table, errors);
        let program = table.texts("program", errors);
        let on = self.read_on(&mut table, errors);
        let account = HookAccount::read(&mut table, errors);
        let timeout = table.parsed("timeout", errors, parse_limit).unwrap_or(HOOK_TIMEOUT);
        let (deliver, settle) = read_delivery(DeliveryMode::Every, &mut table, errors);
        let retries = table.number("retries", 0, 1000, errors).unwrap_or(0);
        table.finish(errors);
        let program = program.unwrap_or_default();
        let Some((program_offset, first)) = program.first() else {
            errors.add(offset, "a hook needs program = [\"/ABSOLUTE/PATH\", …]");
            return None;
        };
        if let Err(error) = absolute(first) {
            errors.add(*program_offset, format!("program: {error}"));
            return None;
        }
        let program: Vec<String> = program.into_iter().map(|(_, word)| word.to_owned()).collect();
        let default = DefaultName::Program(program.join(" "));
        let make = |name| {
            let (program, on, account) = (program.clone(), on.clone(), account.clone());
            let retries = u32::try_from(retries).unwrap_or(0);
            Arc::new(Hook { name, program, on, account, timeout, deliver, settle, retries })
        };
        Some(self.names.name(self.source, name, offset, default, make, errors))
    }

    fn read_webhook(
        &mut self,
        mut table: Table<'_, '_>,
        errors: &mut SettingErrors<'_>,
    ) -> Option<Arc<Webhook>> {
        let offset = table.offset;
        let name = GivenName::read(&mut table, errors);
        let target = Target::read("a webhook", &mut table, errors);
        let on = self.read_on(&mut table, errors);
        let (deliver, settle) = read_delivery(DeliveryMode::Latest, &mut table, errors);
        let batch = table.table("batch", errors).map(|table| BatchSettings::read(table, errors));
        table.finish(errors);
        let target = target?;
        let default = DefaultName::Url(target.url.default_name());
        let make = |name| {
            let (target, on) = (target.clone(), on.clone());
            Arc::new(Webhook { name, target, on, deliver, settle, batch })
        };
        Some(self.names.name(self.source, name, offset, default, make, errors))
    }

    /// Reads `on`: a selection of the events.
    fn read_on(&self, table: &mut Table<'_, '_>, errors: &mut SettingErrors<'_>) -> Vec<EventKind> {
        let Some(texts) = table.texts("on", errors) else { return self.default_events.to_vec() };
        let mut selected = Vec::new();
        for (offset, text) in texts {
            let kind = EventKind::from_word(text).filter(|kind| self.events.contains(kind));
            if kind.is_none() {
                let words: Vec<&str> = self.events.iter().map(|kind| kind.as_str()).collect();
                errors.add(offset, format!("{text:?} is not one of {}", words.join(", ")));
            }
            selected.extend(kind);
        }
        selected
    }
}

/// Reads `deliver`, with its default, and `settle`.
fn read_delivery(
    default: DeliveryMode,
    table: &mut Table<'_, '_>,
    errors: &mut SettingErrors<'_>,
) -> (DeliveryMode, Duration) {
    let deliver = table.parsed("deliver", errors, |word| match word {
        "latest" => Ok(DeliveryMode::Latest),
        "every" => Ok(DeliveryMode::Every),
        _ => Err(format!("it is \"latest\" or \"every\", not {word:?}")),
    });
    let deliver = deliver.unwrap_or(default);
    let settle = table.parsed("settle", errors, |text| {
        let settle = parse_settle(text)?;
        match deliver {
            DeliveryMode::Every if !settle.is_zero() => {
                Err("it needs deliver = \"latest\"".to_owned())
            }
            DeliveryMode::Latest | DeliveryMode::Every => Ok(settle),
        }
    });
    (deliver, settle.unwrap_or(Duration::ZERO))
}

impl BatchSettings {
    fn read(mut table: Table<'_, '_>, errors: &mut SettingErrors<'_>) -> Self {
        let max = table.number("max", 1, 10_000, errors);
        let wait = table.parsed("wait", errors, |text| {
            let wait = span(text)?;
            let is_valid = wait <= Duration::from_mins(1);
            is_valid.then_some(wait).ok_or_else(|| "it is at most 1m".to_owned())
        });
        table.finish(errors);
        let max = max.and_then(|max| usize::try_from(max).ok());
        Self { max: max.unwrap_or(BATCH_MAX), wait: wait.unwrap_or(BATCH_WAIT) }
    }
}

/// Parses the time that a role must last, at most 10 minutes; zero turns it off.
pub(super) fn parse_settle(text: &str) -> Result<Duration, String> {
    let settle = span(text)?;
    let is_valid = settle <= Duration::from_mins(10);
    is_valid.then_some(settle).ok_or_else(|| "it is at most 10m".to_owned())
}

/// Parses a time limit of 1 ms to 10 minutes.
fn parse_limit(text: &str) -> Result<Duration, String> {
    let limit = span(text)?;
    let is_valid = (Duration::from_millis(1)..=Duration::from_mins(10)).contains(&limit);
    is_valid.then_some(limit).ok_or_else(|| "it is 1ms to 10m".to_owned())
}

impl Target {
    /// Reads the HTTP keys of `table`. `owner` is the subject of the message for a missing URL.
    pub(super) fn read(
        owner: &str,
        table: &mut Table<'_, '_>,
        errors: &mut SettingErrors<'_>,
    ) -> Option<Self> {
        let offset = table.offset;
        let url = TargetUrl::read_setting(owner, table, errors);
        let timeout = table.parsed("timeout", errors, parse_limit).unwrap_or(REQUEST_TIMEOUT);
        let ca_file = table.parsed("ca_file", errors, |text| {
            let path = absolute(text)?;
            let failed = |error| format!("cannot read CA certificates from {text}: {error}");
            ca_bundle::read(&path).map(|_| path).map_err(failed)
        });
        let headers = read_headers(table, errors);
        let may_send_unencrypted =
            table.flag("allow_credentials_over_http", errors).unwrap_or(false);
        let target = Self { url: url?, timeout, ca_file, headers, may_send_unencrypted };
        if let TargetUrl::Text(url) = &target.url
            && target.is_refused(url)
        {
            let text = "url: credentials would be sent to another host without encryption; use \
                        https://, or set allow_credentials_over_http = true";
            errors.add(offset, text);
        }
        Some(target)
    }

    /// The URL of the next request. Reads the file with it.
    pub(crate) fn read_url(&self) -> Result<Cow<'_, HttpUrl>, SecretError> {
        self.url.read(|url| self.is_refused(url))
    }

    /// Whether the configuration file has a secret in the URL or in a header.
    pub(super) fn has_credentials(&self) -> bool {
        let has_secret_url = matches!(&self.url, TargetUrl::Text(url) if url.has_secret());
        let is_secret = |(name, value): (&String, &HeaderValue)| {
            matches!(value, HeaderValue::Text(_)) && is_secret_header(name)
        };
        has_secret_url || self.headers.iter().any(is_secret)
    }

    /// Whether others could read credentials of a request to `url` in transit, and nothing permits that.
    fn is_refused(&self, url: &HttpUrl) -> bool {
        let is_secret = |(name, value): (&String, &HeaderValue)| {
            matches!(value, HeaderValue::Credential(_)) || is_secret_header(name)
        };
        let has_secret = url.has_secret() || self.headers.iter().any(is_secret);
        has_secret && !self.may_send_unencrypted && url.is_readable_in_transit()
    }
}
