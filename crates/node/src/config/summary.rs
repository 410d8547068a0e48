//! The settings in force as JSON, in the structure of the file, without secrets.

use std::path::Path;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::{Config, Hook, LogFormat, ReceiverConfig, Rule, Target, Webhook};

impl Config {
    /// The settings in force, with defaults. Headers, parts of URLs that may be secret, and arguments of programs are
    /// left out.
    pub fn settings(&self) -> Map<String, Value> {
        let mut settings = Map::new();
        settings.insert(
            "node".to_owned(),
            json!({
                "state_dir": path(&self.state_dir), "socket": path(&self.socket),
                "socket_group": self.group, "listen": self.listen.word(),
                "log": log_word(self.log), "audit_every": span(self.audit_every),
                "hooks_at_once": self.hooks_at_once,
            }),
        );
        settings.insert(
            "find".to_owned(),
            json!({
                "neutron_state_path": path(&self.locations.neutron),
                "keepalived_conf": path(&self.locations.keepalived),
                "config_id": self.locations.config_id(),
            }),
        );
        settings.insert(
            "history".to_owned(),
            json!({
                "keep_days": self.keep.age.as_secs() / 86_400,
                "keep_transitions": self.keep.transitions,
                "keep_megabytes": self.keep.bytes >> 20,
            }),
        );
        let instances: Value =
            self.instances.iter().map(|instance| json!({ "id": instance.id.as_str() })).collect();
        settings.insert("instance".to_owned(), instances);
        settings.insert("notify".to_owned(), self.rules.iter().map(rule).collect());
        if let Some(config) = &self.receiver {
            settings.insert("receiver".to_owned(), receiver(config));
        }
        settings
    }
}

fn rule(rule: &Rule) -> Value {
    json!({
        "state_file": rule.state_file.is_some(), "announce": rule.announce.is_some(),
        "agent": rule.agent.as_ref().map(|agent| path(&agent.socket)),
        "hook": hooks(&rule.hooks), "webhook": webhooks(&rule.webhooks),
    })
}

fn receiver(config: &ReceiverConfig) -> Value {
    json!({
        "socket": path(&config.socket), "mode": format!("{:o}", config.options.mode),
        "interval": span(config.interval), "ipv6": config.has_ipv6_params,
        "upstream": config.upstream.as_ref().map(|upstream| shown_url(&upstream.target)),
        "hook": hooks(&config.hooks), "webhook": webhooks(&config.webhooks),
    })
}

fn hooks(hooks: &[std::sync::Arc<Hook>]) -> Value {
    hooks.iter().map(|hook| json!({ "program": hook.program.first(), "on": hook.on })).collect()
}

fn webhooks(webhooks: &[std::sync::Arc<Webhook>]) -> Value {
    let shown =
        |one: &std::sync::Arc<Webhook>| json!({ "url": shown_url(&one.target), "on": one.on });
    webhooks.iter().map(shown).collect()
}

/// The URL without user, password and query, which may be secret.
fn shown_url(target: &Target) -> String {
    let url = target.url.split(['?', '#']).next().unwrap_or_default();
    match url.split_once("://") {
        Some((scheme, rest)) => {
            let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
            let host = authority.rsplit('@').next().unwrap_or_default();
            format!("{scheme}://{host}/{path}")
        }
        None => url.to_owned(),
    }
}

fn log_word(log: LogFormat) -> &'static str {
    match log {
        LogFormat::Auto => "auto",
        LogFormat::Text => "text",
        LogFormat::Json => "json",
        LogFormat::Journald => "journald",
    }
}

fn path(path: &Path) -> String {
    path.display().to_string()
}

fn span(span: Duration) -> String {
    if span.subsec_millis() == 0 {
        format!("{}s", span.as_secs())
    } else {
        format!("{}ms", span.as_millis())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_settings_contain_no_secret() {
        let text = "[[notify]]\nwebhook = [{ url = \"https://user:s3cr3t@h.example/p?token=t0k\", \
                    headers = { Authorization = \"Bearer b34r\" } }]\n";
        let config = Config::parse(Path::new("f"), text).unwrap();
        let shown = serde_json::to_string(&config.settings()).unwrap();
        assert!(shown.contains("https://h.example/p"), "{shown}");
        for secret in ["s3cr3t", "t0k", "b34r"] {
            assert!(!shown.contains(secret), "{secret} in {shown}");
        }
    }
}
