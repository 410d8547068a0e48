//! Hooks and webhooks, which rules and the receiver have in common, and the HTTP settings of webhooks and
//! the upstream.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ureq::http::Uri;

use super::credentials::{has_credentials, is_readable_in_transit};
use super::document::{SettingErrors, Table, span};
use super::sections::absolute;
use crate::notify::post::ca_bundle;

/// Default time limit of a hook.
const HOOK_DEADLINE: Duration = Duration::from_secs(10);

/// Default time limit of one HTTP request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// What happens to a notification that waits when its instance changes again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryMode {
    /// The newer notification replaces it.
    Latest,
    /// Every notification is delivered, in order.
    Every,
}

/// A program to run.
#[derive(Debug, PartialEq, Eq)]
pub struct Hook {
    /// The program and its arguments; never empty.
    pub program: Vec<String>,
    /// The roles for which it runs.
    pub on: Vec<&'static str>,
    /// The time after which the process is killed.
    pub deadline: Duration,
    /// What happens to notifications that wait.
    pub deliver: DeliveryMode,
}

/// A URL to post to.
#[derive(Debug, PartialEq, Eq)]
pub struct Webhook {
    /// The URL and its HTTP settings.
    pub target: Target,
    /// The roles that are posted.
    pub on: Vec<&'static str>,
    /// What happens to notifications that wait.
    pub deliver: DeliveryMode,
}

/// A URL with its HTTP settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// `http://…` or `https://…`
    pub url: String,
    /// The time limit of one request.
    pub timeout: Duration,
    /// A file with CA certificates to trust instead of the system's; `None` for the system's.
    pub ca_file: Option<PathBuf>,
    /// Additional request headers; they are never logged or shown.
    pub headers: BTreeMap<String, String>,
    /// Whether the URL or a header contains a secret.
    pub has_credentials: bool,
}

/// Reads the `hook` and `webhook` tables of `table`. `roles` are the valid values of `on`.
pub(super) fn hooks_and_webhooks(
    roles: &[&'static str],
    table: &mut Table<'_, '_>,
    errors: &mut SettingErrors<'_>,
) -> (Vec<Arc<Hook>>, Vec<Arc<Webhook>>) {
    let hooks = table.tables("hook", errors).into_iter();
    let hooks = hooks.filter_map(|table| Hook::read(table, roles, errors)).map(Arc::new).collect();
    let webhooks = table.tables("webhook", errors).into_iter();
    let webhooks =
        webhooks.filter_map(|table| Webhook::read(table, roles, errors)).map(Arc::new).collect();
    (hooks, webhooks)
}

/// Reads `on`: a selection of `roles`; all of them without the key.
fn read_on(
    roles: &[&'static str],
    table: &mut Table<'_, '_>,
    errors: &mut SettingErrors<'_>,
) -> Vec<&'static str> {
    let Some(texts) = table.texts("on", errors) else { return roles.to_vec() };
    let mut selected = Vec::new();
    for (offset, text) in texts {
        match roles.iter().find(|role| **role == text) {
            Some(role) => selected.push(*role),
            None => errors.add(offset, format!("{text:?} is not one of {}", roles.join(", "))),
        }
    }
    selected
}

fn read_deliver(table: &mut Table<'_, '_>, errors: &mut SettingErrors<'_>) -> Option<DeliveryMode> {
    table.parsed("deliver", errors, |word| match word {
        "latest" => Ok(DeliveryMode::Latest),
        "every" => Ok(DeliveryMode::Every),
        _ => Err(format!("it is \"latest\" or \"every\", not {word:?}")),
    })
}

/// Parses a time limit of 1 ms to 10 minutes.
fn parse_limit(text: &str) -> Result<Duration, String> {
    let limit = span(text)?;
    let is_valid = (Duration::from_millis(1)..=Duration::from_mins(10)).contains(&limit);
    is_valid.then_some(limit).ok_or_else(|| "it is 1ms to 10m".to_owned())
}

impl Hook {
    fn read(
        mut table: Table<'_, '_>,
        roles: &[&'static str],
        errors: &mut SettingErrors<'_>,
    ) -> Option<Self> {
        let offset = table.offset;
        let program = table.texts("program", errors);
        let on = read_on(roles, &mut table, errors);
        let deadline = table.parsed("deadline", errors, parse_limit).unwrap_or(HOOK_DEADLINE);
        let deliver = read_deliver(&mut table, errors).unwrap_or(DeliveryMode::Every);
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
        Some(Self { program, on, deadline, deliver })
    }
}

impl Webhook {
    fn read(
        mut table: Table<'_, '_>,
        roles: &[&'static str],
        errors: &mut SettingErrors<'_>,
    ) -> Option<Self> {
        let target = Target::read("a webhook", &mut table, errors);
        let on = read_on(roles, &mut table, errors);
        let deliver = read_deliver(&mut table, errors).unwrap_or(DeliveryMode::Latest);
        table.finish(errors);
        Some(Self { target: target?, on, deliver })
    }
}

impl Target {
    /// Reads the HTTP keys of `table`. `owner` is the subject of the message for a missing URL.
    pub(super) fn read(
        owner: &str,
        table: &mut Table<'_, '_>,
        errors: &mut SettingErrors<'_>,
    ) -> Option<Self> {
        let offset = table.offset;
        let url = table.parsed("url", errors, parse_url);
        let timeout = table.parsed("timeout", errors, parse_limit).unwrap_or(REQUEST_TIMEOUT);
        let ca_file = table.parsed("ca_file", errors, |text| {
            let path = absolute(text)?;
            let failed = |error| format!("cannot read CA certificates from {text}: {error}");
            ca_bundle::read(&path).map(|_| path).map_err(failed)
        });
        let headers = read_headers(table, errors);
        let may_send_unencrypted =
            table.flag("allow_credentials_over_http", errors).unwrap_or(false);
        let Some((url, uri)) = url else {
            errors.add(offset, format!("{owner} needs url = \"http://…\""));
            return None;
        };
        let has_credentials = has_credentials(&uri, &headers);
        if has_credentials && !may_send_unencrypted && is_readable_in_transit(&uri) {
            let text = "url: credentials would be sent to another host without encryption; use \
                        https://, or set allow_credentials_over_http = true";
            errors.add(offset, text);
        }
        Some(Self { url, timeout, ca_file, headers, has_credentials })
    }
}

fn read_headers(
    table: &mut Table<'_, '_>,
    errors: &mut SettingErrors<'_>,
) -> BTreeMap<String, String> {
    let mut headers = BTreeMap::new();
    let Some(value) = table.take("headers") else { return headers };
    let Some(table) = value.get_ref().as_table() else {
        errors.add(value.span().start, "headers is a table of strings");
        return headers;
    };
    for (name, value) in table {
        match value.get_ref().as_str() {
            Some(text) if is_header(name.get_ref(), text) => {
                headers.insert(name.get_ref().to_string(), text.to_owned());
            }
            _ => errors.add(value.span().start, "a header is a line of text"),
        }
    }
    headers
}

/// The URL as it is written, and parsed.
fn parse_url(text: &str) -> Result<(String, Uri), String> {
    let uri: Uri = text.parse().map_err(|error| format!("{text:?} is not a URL: {error}"))?;
    let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
    let has_host = uri.host().is_some_and(|host| !host.is_empty());
    (is_http && has_host)
        .then(|| (text.to_owned(), uri))
        .ok_or_else(|| "it begins with http:// or https://".to_owned())
}

/// Whether the name is a token of RFC 9110 §5.6.2 and the value is printable ASCII.
fn is_header(name: &str, value: &str) -> bool {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !name.is_empty()
        && name.bytes().all(is_token)
        && value.bytes().all(|byte| byte == b'\t' || (b' '..=b'~').contains(&byte))
}
