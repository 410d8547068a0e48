//! `vipwatch config`: checks, shows, migrates or explains the configuration.

mod migrate;

use std::path::Path;

use serde_json::{Value, json};
use vipwatch_node::config::{EXAMPLE, FILE, ReceiverConfig};
use vipwatch_node::discovery::ConfigScanner;
use vipwatch_node::notify::report_notifier::target_names;
use vipwatch_node::{Config, describe};

use super::node_name;
use crate::args::{ConfigCommand, Format, QueryOptions, config_error};
use crate::failure::CommandError;
use crate::output;

pub(crate) fn run(command: &ConfigCommand) -> Result<(), CommandError> {
    match command {
        ConfigCommand::Example => output::print(EXAMPLE),
        ConfigCommand::Check { file } => check(file.as_deref())?,
        ConfigCommand::Migrate { file, check } => migrate::run(file.as_deref(), *check)?,
        ConfigCommand::Show { query } => show(query)?,
    }
    Ok(())
}

fn check(file: Option<&Path>) -> Result<(), CommandError> {
    let config = Config::load_trusted(file).map_err(|error| config_error(&error))?;
    config.check_paths().map_err(|error| config_error(&error))?;
    for warning in config.warnings() {
        crate::failure::warn(&format!("warning: {warning}"));
    }
    let name = file.unwrap_or(Path::new(FILE)).display();
    if file.is_none() && !Path::new(FILE).exists() {
        output::print(&format!("there is no {name}: the defaults are used\n"));
        return Ok(());
    }
    let (instances, rules) = (config.instances.len(), config.rules.len());
    let receiver = match &config.receiver {
        Some(receiver) => format!(", monitors report to {}", receiver.socket.display()),
        None => String::new(),
    };
    let text = format!("{instances} instances of its own, {rules} notify rules{receiver}");
    output::print(&format!("{name} is fine: {text}\n"));
    Ok(())
}

fn show(query: &QueryOptions) -> Result<(), CommandError> {
    let config = query.settings()?;
    let settings: Vec<(&str, String)> = settings(&config);
    let mut scanner = ConfigScanner::new(config.locations.clone(), config.instances.clone());
    let instances = scanner.scan().instances;
    let targets = instances
        .iter()
        .map(|instance| (instance.id.to_string(), describe(instance, &config.rules)));
    match query.output().format() {
        Format::Json | Format::Yaml | Format::Name => {
            let settings: serde_json::Map<String, Value> =
                settings.into_iter().map(|(key, value)| (key.to_owned(), value.into())).collect();
            let targets: serde_json::Map<String, Value> =
                targets.map(|(id, targets)| (id, targets.into())).collect();
            let document = json!({
                "schema": "vipwatch.config/1", "node": node_name(), "settings": settings,
                "targets": targets,
            });
            output::show_value(query.output(), &document, |_| String::new(), Vec::new);
        }
        Format::Table | Format::Wide => {
            let rows: Vec<Vec<String>> =
                settings.into_iter().map(|(key, value)| vec![key.to_owned(), value]).collect();
            output::print(&output::table(&["KEY", "VALUE"], &rows));
            let rows: Vec<Vec<String>> = targets
                .map(|(id, targets)| {
                    let targets = targets.join("; ");
                    let is_none = targets.is_empty();
                    vec![id, if is_none { "no target: only observed".to_owned() } else { targets }]
                })
                .collect();
            output::print(&format!("\n{}", output::table(&["ID", "TARGETS"], &rows)));
        }
    }
    Ok(())
}

/// Every setting in use, with its key.
fn settings(config: &Config) -> Vec<(&'static str, String)> {
    let mut settings = vec![
        ("node.state_dir", config.state_dir.display().to_string()),
        ("node.socket", config.socket.display().to_string()),
        ("node.socket_group", config.group.map(|group| group.to_string()).unwrap_or_default()),
        ("node.listen", config.listen.word().to_owned()),
        ("node.log", format!("{:?}", config.log).to_lowercase()),
        ("node.audit_every", format!("{}s", config.audit_every.as_secs())),
        ("node.hooks_at_once", config.hooks_at_once.to_string()),
        ("find.neutron_state_path", config.locations.neutron.display().to_string()),
        ("find.keepalived_conf", config.locations.keepalived.display().to_string()),
        ("find.config_id", config.locations.config_id()),
        ("history.keep_days", (config.keep.age.as_secs() / 86_400).to_string()),
        ("history.keep_transitions", config.keep.transitions.to_string()),
        ("history.keep_megabytes", (config.keep.bytes >> 20).to_string()),
    ];
    settings.extend(config.receiver.iter().flat_map(receiver_settings));
    settings
}

fn receiver_settings(receiver: &ReceiverConfig) -> [(&'static str, String); 4] {
    [
        ("receiver.socket", receiver.socket.display().to_string()),
        ("receiver.mode", format!("{:o}", receiver.options.mode)),
        ("receiver.interval", format!("{}ms", receiver.interval.as_millis())),
        ("receiver targets", target_names(receiver).join("; ")),
    ]
}
