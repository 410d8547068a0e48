//! `vipwatch config`: check it, show what is in force, or explain it.

use std::path::Path;

use serde_json::{Value, json};
use vipwatch_node::config::{EXAMPLE, FILE};
use vipwatch_node::discovery::ConfigScanner;
use vipwatch_node::notify::report_notifier::parties;
use vipwatch_node::{Config, describe};

use super::node_name;
use crate::args::{ConfigCommand, Format, QueryTarget, wrong};
use crate::failure::CommandError;
use crate::show;

pub(crate) fn run(command: &ConfigCommand) -> Result<(), CommandError> {
    match command {
        ConfigCommand::Example => show::print(EXAMPLE),
        ConfigCommand::Check { file } => check(file.as_deref())?,
        ConfigCommand::Show { place } => effective(place)?,
    }
    Ok(())
}

fn check(file: Option<&Path>) -> Result<(), CommandError> {
    let config = Config::load_trusted(file).map_err(|error| wrong(&error))?;
    config.check_places().map_err(|error| wrong(&error))?;
    for warning in config.warnings() {
        crate::failure::warn(&format!("warning: {warning}"));
    }
    let name = file.unwrap_or(Path::new(FILE)).display();
    if file.is_none() && !Path::new(FILE).exists() {
        show::print(&format!("there is no {name}: everything is as it is by default\n"));
        return Ok(());
    }
    let (instances, outlets) = (config.instances.len(), config.rules.len());
    let agent = match &config.agent {
        Some(agent) => format!(", monitors report to {}", agent.socket.display()),
        None => String::new(),
    };
    let text = format!("{instances} instances of its own, {outlets} outlets{agent}");
    show::print(&format!("{name} is fine: {text}\n"));
    Ok(())
}

fn effective(place: &QueryTarget) -> Result<(), CommandError> {
    let config = place.settings()?;
    let settings = [
        ("node.state_dir", config.state_dir.display().to_string()),
        ("node.socket", config.socket.display().to_string()),
        ("node.socket_group", config.group.map(|group| group.to_string()).unwrap_or_default()),
        ("node.listen", format!("{:?}", config.listen).to_lowercase()),
        ("node.log", format!("{:?}", config.log).to_lowercase()),
        ("node.audit_every", format!("{}s", config.audit_every.as_secs())),
        ("node.hooks_at_once", config.hooks_at_once.to_string()),
        ("find.neutron_state_path", config.places.neutron.display().to_string()),
        ("find.keepalived_conf", config.places.keepalived.display().to_string()),
        ("find.config_id", config.places.config_id()),
        ("history.keep_days", (config.keep.age.as_secs() / 86_400).to_string()),
        ("history.keep_changes", config.keep.changes.to_string()),
        ("history.keep_megabytes", (config.keep.bytes >> 20).to_string()),
    ];
    let agent = config.agent.as_ref();
    let agent = [
        ("agent.socket", agent.map(|agent| agent.socket.display().to_string())),
        ("agent.mode", agent.map(|agent| format!("{:o}", agent.options.mode))),
        ("agent.interval", agent.map(|agent| format!("{}ms", agent.interval.as_millis()))),
        ("agent tells", agent.map(|agent| parties(agent).join("; "))),
    ];
    let agent = agent.into_iter().filter_map(|(key, value)| Some((key, value?)));
    let settings: Vec<(&str, String)> = settings.into_iter().chain(agent).collect();
    let found =
        ConfigScanner::new(config.places.clone(), config.instances.clone()).look().instances;
    let told = found.iter().map(|found| (found.id.to_string(), describe(found, &config.rules)));
    match place.format {
        Format::Json => {
            let settings: serde_json::Map<String, Value> =
                settings.into_iter().map(|(key, value)| (key.to_owned(), value.into())).collect();
            let told: serde_json::Map<String, Value> =
                told.map(|(id, told)| (id, told.into())).collect();
            show::json(&json!({
                "schema": "vipwatch.config/1", "node": node_name(), "settings": settings,
                "told": told,
            }));
        }
        Format::Table => {
            let rows: Vec<Vec<String>> =
                settings.into_iter().map(|(key, value)| vec![key.to_owned(), value]).collect();
            show::print(&show::table(&["KEY", "VALUE"], &rows));
            let rows: Vec<Vec<String>> = told
                .map(|(id, told)| {
                    let told = told.join("; ");
                    vec![id, if told.is_empty() { "nobody: observed".to_owned() } else { told }]
                })
                .collect();
            show::print(&format!("\n{}", show::table(&["ID", "WHO IS TOLD"], &rows)));
        }
    }
    Ok(())
}
