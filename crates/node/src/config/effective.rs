// SPDX-License-Identifier: Apache-2.0
//! The settings in force, in the structure of the configuration file: with every default, and without secrets.
//!
//! Headers are shown by name only, and the URL of a webhook or of the upstream by its scheme, host and port.

mod neutron;

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use vipwatch_api::ClusterScope;
use vipwatch_cluster::key::ClusterName;
use vipwatch_core::{AnnouncePlan, EventKind, NetnsName};
use vipwatch_outlets::agent::AgentTrust;

use self::neutron::NeutronSection;
use super::{AgentRule, ClusterConfig, Config, Hook, InstanceGroup, ReceiverConfig, Rule, Target};
use super::{TargetUrl, Upstream, WebConfig, WebFile, Webhook};
use crate::discovery::InstanceConfig;

/// The settings in force. A setting that is `None` is absent in the document ([`without_nulls`]).
#[derive(Debug, Serialize)]
struct EffectiveSettings<'c> {
    node: NodeSection<'c>,
    find: FindSection<'c>,
    history: HistorySection,
    witness: WitnessSection<'c>,
    web: WebSection<'c>,
    cluster: ClusterSection<'c>,
    metrics: MetricsSection<'c>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    group: Vec<GroupSection<'c>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    instance: Vec<InstanceSection<'c>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notify: Vec<RuleSection<'c>>,
    receiver: Option<ReceiverSection<'c>>,
}

#[derive(Debug, Serialize)]
struct NodeSection<'c> {
    /// Absent for the name of the host.
    name: Option<&'c str>,
    state_dir: &'c Path,
    socket: &'c Path,
    /// The id of the group; absent if only root and the node's user may use the socket.
    socket_group: Option<String>,
    listen: &'static str,
    log: &'static str,
    audit_every: String,
    hooks_at_once: usize,
}

#[derive(Debug, Serialize)]
struct FindSection<'c> {
    neutron_state_path: &'c Path,
    keepalived_conf: &'c [PathBuf],
    exclude: &'c [PathBuf],
    processes: bool,
    containers: bool,
    config_id: String,
}

#[derive(Debug, Serialize)]
struct HistorySection {
    #[serde(rename = "keep_days")]
    days: u64,
    #[serde(rename = "keep_transitions")]
    transitions: u64,
    #[serde(rename = "keep_megabytes")]
    megabytes: u64,
    #[serde(rename = "keep_undelivered")]
    undelivered: u64,
}

#[derive(Debug, Serialize)]
struct WitnessSection<'c> {
    enabled: bool,
    sent: Vec<&'c str>,
    exclude: Vec<&'c str>,
}

#[derive(Debug, Serialize)]
struct WebSection<'c> {
    listen: Vec<String>,
    hosts: &'c [String],
    /// The names of the files; their content is never shown.
    certificate: Option<String>,
    key: Option<String>,
    client_ca: Option<String>,
    token_file: Option<String>,
}

#[derive(Debug, Serialize)]
struct ClusterSection<'c> {
    /// Empty: the cluster view is off.
    endpoints: &'c [String],
    allow_unencrypted: bool,
    domain: &'c str,
    view: ClusterScope,
    /// The names of the files; their content is never shown.
    ca: Option<String>,
    certificate: Option<String>,
    key: Option<String>,
    user: Option<&'c str>,
    password: Option<String>,
    heartbeat: String,
    lease: String,
    settle: String,
    slow_settle: String,
    min_backups: u32,
    neutron: Option<NeutronSection<'c>>,
}

#[derive(Debug, Serialize)]
struct MetricsSection<'c> {
    per_instance: bool,
    textfile: Option<&'c Path>,
    textfile_every: String,
}

#[derive(Debug, Serialize)]
struct GroupSection<'c> {
    name: &'c str,
    instances: Vec<&'c str>,
}

#[derive(Debug, Serialize)]
struct InstanceSection<'c> {
    id: &'c str,
    netns: Option<&'c str>,
    addresses: Vec<String>,
    vrid: Option<u8>,
}

#[derive(Debug, Serialize)]
struct RuleSection<'c> {
    instances: Vec<&'c str>,
    origin: Vec<&'static str>,
    state_file: Option<&'c str>,
    announce: Option<AnnounceSection>,
    agent: Option<AgentSection<'c>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    hook: Vec<HookSection<'c>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    webhook: Vec<WebhookSection<'c>>,
}

#[derive(Debug, Serialize)]
struct AnnounceSection {
    count: u16,
    gap: String,
    /// `0s`: off, as for `refresh` and `check`.
    second_burst: String,
    refresh: String,
    check: String,
    rate: u32,
}

#[derive(Debug, Serialize)]
struct AgentSection<'c> {
    socket: &'c Path,
    user: Option<String>,
    allow_any_agent: bool,
    primary_word: &'static str,
}

#[derive(Debug, Serialize)]
struct HookSection<'c> {
    name: &'c str,
    program: &'c [String],
    on: Vec<&'static str>,
    /// Absent for the user of the node.
    user: Option<&'c str>,
    /// Absent for the primary group of the user.
    group: Option<&'c str>,
    timeout: String,
    deliver: &'static str,
    /// `0s`: off.
    /// Absent if the target is called at once.
    settle: Option<String>,
    retries: u32,
}

#[derive(Debug, Serialize)]
struct WebhookSection<'c> {
    name: &'c str,
    #[serde(flatten)]
    target: TargetSection<'c>,
    on: Vec<&'static str>,
    deliver: &'static str,
    /// `0s`: off.
    /// Absent if the target is called at once.
    settle: Option<String>,
    batch: Option<BatchSection>,
}

#[derive(Debug, Serialize)]
struct BatchSection {
    max: usize,
    wait: String,
}

#[derive(Debug, Serialize)]
struct TargetSection<'c> {
    /// Without its secret, or the name of a credential; absent with `url_file`.
    url: Option<String>,
    url_file: Option<&'c Path>,
    timeout: String,
    ca_file: Option<&'c Path>,
    /// The names of the headers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    headers: Vec<&'c str>,
}

#[derive(Debug, Serialize)]
struct UpstreamSection<'c> {
    name: &'c str,
    #[serde(flatten)]
    target: TargetSection<'c>,
    interval: String,
    /// `0s`: off.
    /// Absent if the target is called at once.
    settle: Option<String>,
}

#[derive(Debug, Serialize)]
struct ReceiverSection<'c> {
    socket: &'c Path,
    owner: Option<String>,
    group: Option<String>,
    mode: String,
    /// Ids of users, and of groups with `@`.
    allow: Vec<String>,
    interval: String,
    ipv6_params: bool,
    upstream: Option<UpstreamSection<'c>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    hook: Vec<HookSection<'c>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    webhook: Vec<WebhookSection<'c>>,
}

impl Config {
    /// The settings in force as JSON, without secrets.
    pub fn settings(&self) -> serde_json::Map<String, Value> {
        match serde_json::to_value(self.effective()).map(without_nulls) {
            Ok(Value::Object(settings)) => settings,
            // The settings are a table with strings as keys, so this cannot happen.
            Ok(_) | Err(_) => serde_json::Map::new(),
        }
    }

    /// The settings in force, without secrets.
    fn effective(&self) -> EffectiveSettings<'_> {
        EffectiveSettings {
            node: NodeSection {
                name: self.name.as_ref().map(ClusterName::as_str),
                state_dir: &self.state_dir,
                socket: &self.socket,
                socket_group: self.group.map(|group| group.to_string()),
                listen: self.listen.into(),
                log: self.log.into(),
                audit_every: span_text(self.audit_every),
                hooks_at_once: self.hooks_at_once,
            },
            find: FindSection {
                neutron_state_path: &self.locations.neutron,
                keepalived_conf: &self.locations.keepalived,
                exclude: &self.locations.exclude,
                processes: self.locations.has_processes,
                containers: self.locations.has_containers,
                config_id: self.locations.config_id(),
            },
            history: HistorySection {
                days: self.keep.age.as_secs() / 86_400,
                transitions: self.keep.transitions,
                megabytes: self.keep.bytes >> 20,
                undelivered: self.keep.undelivered,
            },
            witness: WitnessSection {
                enabled: self.witness.is_enabled,
                sent: self.witness.sent.iter().map(glob::Pattern::as_str).collect(),
                exclude: self.witness.excluded.iter().map(glob::Pattern::as_str).collect(),
            },
            web: WebSection::of(&self.web),
            cluster: ClusterSection::of(&self.cluster),
            metrics: MetricsSection {
                per_instance: self.metrics.is_per_instance,
                textfile: self.metrics.textfile.as_deref(),
                textfile_every: span_text(self.metrics.textfile_every),
            },
            group: self.groups.0.iter().map(GroupSection::of).collect(),
            instance: self.instances.iter().map(|instance| InstanceSection::of(instance)).collect(),
            notify: self.rules.iter().map(RuleSection::of).collect(),
            receiver: self.receiver.as_ref().map(ReceiverSection::of),
        }
    }
}

impl<'c> WebSection<'c> {
    fn of(web: &'c WebConfig) -> Self {
        let tls = web.tls.as_ref();
        Self {
            listen: web.listen.iter().map(ToString::to_string).collect(),
            hosts: &web.hosts,
            certificate: tls.map(|tls| tls.certificate.to_string()),
            key: tls.map(|tls| tls.key.to_string()),
            client_ca: tls.and_then(|tls| tls.client_ca.as_ref()).map(ToString::to_string),
            token_file: web.token_file.as_ref().map(ToString::to_string),
        }
    }
}

impl<'c> ClusterSection<'c> {
    fn of(cluster: &'c ClusterConfig) -> Self {
        let identity = cluster.identity.as_ref();
        let login = cluster.login.as_ref();
        Self {
            endpoints: &cluster.endpoints,
            allow_unencrypted: cluster.allow_unencrypted,
            domain: cluster.domain.as_str(),
            view: cluster.scope,
            ca: cluster.ca.as_ref().map(ToString::to_string),
            certificate: identity.map(|files| files.certificate.to_string()),
            key: identity.map(|files| files.key.to_string()),
            user: login.map(|login| login.user.as_str()),
            password: login.map(|login| login.password.to_string()),
            heartbeat: span_text(cluster.heartbeat),
            lease: span_text(cluster.lease),
            settle: span_text(cluster.settle),
            slow_settle: span_text(cluster.slow_settle),
            min_backups: cluster.min_backups,
            neutron: cluster.neutron.as_ref().map(NeutronSection::of),
        }
    }
}

impl<'c> GroupSection<'c> {
    fn of(group: &'c InstanceGroup) -> Self {
        let instances = group.patterns.iter().map(glob::Pattern::as_str).collect();
        Self { name: &group.name, instances }
    }
}

impl<'c> InstanceSection<'c> {
    fn of(instance: &'c InstanceConfig) -> Self {
        let addresses = instance.vrrp.addresses.iter();
        Self {
            id: instance.id.as_str(),
            netns: instance.netns.as_ref().map(NetnsName::as_str),
            addresses: addresses
                .map(|address| format!("{} dev {}", address.cidr, address.link))
                .collect(),
            vrid: instance.vrrp.vrid,
        }
    }
}

impl<'c> RuleSection<'c> {
    fn of(rule: &'c Rule) -> Self {
        Self {
            instances: rule.patterns.iter().map(glob::Pattern::as_str).collect(),
            origin: rule.origins.iter().map(|origin| origin.word()).collect(),
            state_file: rule.state_file.as_ref().map(|template| template.0.as_str()),
            announce: rule.announce.map(AnnounceSection::of),
            agent: rule.agent.as_ref().map(AgentSection::of),
            hook: rule.hooks.iter().map(|hook| HookSection::of(hook)).collect(),
            webhook: rule.webhooks.iter().map(|webhook| WebhookSection::of(webhook)).collect(),
        }
    }
}

impl AnnounceSection {
    fn of(plan: AnnouncePlan) -> Self {
        let optional = |span: Option<Duration>| span_text(span.unwrap_or_default());
        Self {
            count: plan.count,
            gap: span_text(plan.gap),
            second_burst: optional(plan.second_burst),
            refresh: optional(plan.refresh),
            check: optional(plan.check),
            rate: plan.rate.per_second,
        }
    }
}

impl<'c> AgentSection<'c> {
    fn of(agent: &'c AgentRule) -> Self {
        Self {
            socket: &agent.socket,
            user: match agent.trust {
                AgentTrust::User(user) => Some(user.to_string()),
                AgentTrust::Anyone => None,
            },
            allow_any_agent: matches!(agent.trust, AgentTrust::Anyone),
            primary_word: if agent.says_master { "master" } else { "primary" },
        }
    }
}

impl<'c> HookSection<'c> {
    fn of(hook: &'c Hook) -> Self {
        Self {
            name: &hook.name,
            program: &hook.program,
            on: event_words(&hook.on),
            user: hook.account.user.as_deref(),
            group: hook.account.group.as_deref(),
            timeout: span_text(hook.timeout),
            deliver: hook.deliver.into(),
            settle: optional_span(hook.settle),
            retries: hook.retries,
        }
    }
}

impl<'c> WebhookSection<'c> {
    fn of(webhook: &'c Webhook) -> Self {
        Self {
            name: &webhook.name,
            target: TargetSection::of(&webhook.target),
            on: event_words(&webhook.on),
            deliver: webhook.deliver.into(),
            settle: optional_span(webhook.settle),
            batch: webhook
                .batch
                .map(|batch| BatchSection { max: batch.max, wait: span_text(batch.wait) }),
        }
    }
}

impl<'c> TargetSection<'c> {
    fn of(target: &'c Target) -> Self {
        let (url, url_file) = match &target.url {
            TargetUrl::Text(url) => (Some(url.to_string()), None),
            TargetUrl::File(WebFile::Credential(credential)) => {
                (Some(credential.to_string()), None)
            }
            TargetUrl::File(WebFile::Path(path)) => (None, Some(path.as_path())),
        };
        Self {
            url,
            url_file,
            timeout: span_text(target.timeout),
            ca_file: target.ca_file.as_deref(),
            headers: target.headers.keys().map(String::as_str).collect(),
        }
    }
}

impl<'c> UpstreamSection<'c> {
    fn of(upstream: &'c Upstream) -> Self {
        Self {
            name: &upstream.name,
            target: TargetSection::of(&upstream.target),
            interval: span_text(upstream.interval),
            settle: optional_span(upstream.settle),
        }
    }
}

impl<'c> ReceiverSection<'c> {
    fn of(receiver: &'c ReceiverConfig) -> Self {
        let users = receiver.allow.users.iter().map(ToString::to_string);
        let groups = receiver.allow.groups.iter().map(|group| format!("@{group}"));
        Self {
            socket: &receiver.socket,
            owner: receiver.options.user.map(|user| user.to_string()),
            group: receiver.options.group.map(|group| group.to_string()),
            mode: format!("{:o}", receiver.options.mode),
            allow: users.chain(groups).collect(),
            interval: span_text(receiver.interval),
            ipv6_params: receiver.has_ipv6_params,
            upstream: receiver.upstream.as_deref().map(UpstreamSection::of),
            hook: receiver.hooks.iter().map(|hook| HookSection::of(hook)).collect(),
            webhook: receiver.webhooks.iter().map(|webhook| WebhookSection::of(webhook)).collect(),
        }
    }
}

/// The value without the fields that are null, at all depths.
fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.into_iter().filter(|(_, value)| !value.is_null());
            fields.map(|(name, value)| (name, without_nulls(value))).collect()
        }
        Value::Array(values) => values.into_iter().map(without_nulls).collect(),
        plain => plain,
    }
}

fn event_words(events: &[EventKind]) -> Vec<&'static str> {
    events.iter().map(|event| event.as_str()).collect()
}

/// The period as text; `None` for zero.
fn optional_span(span: Duration) -> Option<String> {
    (!span.is_zero()).then(|| span_text(span))
}

/// A period of time with the largest unit that gives a whole number, as the configuration takes it.
fn span_text(span: Duration) -> String {
    let millis = span.as_millis();
    let units = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s")];
    let fits = |(unit, _): &(u128, &str)| millis > 0 && millis.is_multiple_of(*unit);
    match units.into_iter().find(fits) {
        Some((unit, name)) => format!("{}{name}", millis / unit),
        None if millis == 0 => "0s".to_owned(),
        None => format!("{millis}ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::EXAMPLE;

    #[test]
    fn the_settings_in_force_are_a_valid_file_with_the_same_settings() {
        let config = Config::parse(Path::new("example"), EXAMPLE).unwrap();
        let mut settings = Value::Object(config.settings());
        // Header values are secret, so the sections have only the names.
        for webhook in ["/notify/0/webhook/0", "/receiver/webhook/0"] {
            let webhook = settings.pointer_mut(webhook).unwrap().as_object_mut().unwrap();
            assert_eq!(webhook.remove("headers").unwrap(), serde_json::json!(["Authorization"]));
        }
        let agent = settings.pointer_mut("/notify/1/agent").unwrap().as_object_mut().unwrap();
        assert_eq!(agent.remove("allow_any_agent").unwrap(), false);
        let text = toml::to_string(&settings).unwrap();
        let again = Config::parse(Path::new("again"), &text);
        let again = again.unwrap_or_else(|errors| panic!("{errors:#?}\n{text}"));
        let mut expected = Value::Object(config.settings());
        for webhook in ["/notify/0/webhook/0", "/receiver/webhook/0"] {
            expected.pointer_mut(webhook).unwrap().as_object_mut().unwrap().remove("headers");
        }
        assert_eq!(Value::Object(again.settings()), expected);
    }

    #[test]
    fn secrets_are_not_in_the_settings_in_force() {
        let text = "[[notify]]\n[[notify.webhook]]\nurl = \"https://user:word@h/slack?x=abc\"\n\
                    headers = { Authorization = \"Bearer xyz\" }\n";
        let config = Config::parse(Path::new("f"), text).unwrap();
        let shown = Value::Object(config.settings()).to_string();
        for secret in ["word", "slack", "abc", "xyz", "Bearer"] {
            assert!(!shown.contains(secret), "{secret} in {shown}");
        }
        assert!(shown.contains("\"https://h/…\"") && shown.contains("Authorization"), "{shown}");
    }

    #[test]
    fn a_period_is_written_with_the_largest_unit() {
        let text = |millis| span_text(Duration::from_millis(millis));
        let spans = [0, 1500, 2000, 90_000, 120_000, 7_200_000, 86_400_000].map(text);
        assert_eq!(spans, ["0s", "1500ms", "2s", "90s", "2m", "2h", "1d"]);
    }
}
