// SPDX-License-Identifier: Apache-2.0
//! `vipwatch config`: checks, shows or explains the configuration.

mod check;

use serde::Serialize;
use serde_json::Value;
use vipwatch_api::client::{Client, ClientError};
use vipwatch_api::{ConfigDocument, Schema, Timestamp};
use vipwatch_node::Config;
use vipwatch_node::config::EXAMPLE;

use super::node_name;
use crate::args::{ConfigCommand, QueryOptions};
use crate::failure::{CommandError, note};
use crate::output::{self, Page, Style};

pub(crate) fn run(command: &ConfigCommand) -> Result<(), CommandError> {
    match command {
        ConfigCommand::Example => output::print(EXAMPLE),
        ConfigCommand::Check { file, output } => check::run(file.as_deref(), output)?,
        ConfigCommand::Show { query } => show(query)?,
    }
    Ok(())
}

/// Shows the settings of the running node; of the file, if no node is listening.
fn show(query: &QueryOptions) -> Result<(), CommandError> {
    let document =
        if query.is_direct() { document(&query.settings()?) } else { query_node(query)? };
    output::show(query.output(), &SettingsPage(document));
    Ok(())
}

fn query_node(query: &QueryOptions) -> Result<ConfigDocument, CommandError> {
    let node = query.node.settings()?;
    match Client::new(&node.config.socket).config() {
        Err(error @ ClientError::NotListening(_)) => {
            node.check_read()?;
            note(query.output(), &format!("{error}; these are the settings of the file"));
            Ok(document(&node.config))
        }
        answer => answer.map_err(CommandError::from),
    }
}

/// The settings of the file.
fn document(config: &Config) -> ConfigDocument {
    ConfigDocument {
        schema: Schema::Config,
        node: node_name(),
        file: config.file.as_ref().map(|file| file.display().to_string()),
        loaded_at: Timestamp::now(),
        settings: config.settings(),
    }
}

/// The settings in force.
#[derive(Debug, Serialize)]
#[serde(transparent)]
struct SettingsPage(ConfigDocument);

impl Page for SettingsPage {
    fn text(&self, _style: &Style) -> String {
        let mut rows = Vec::new();
        for (name, value) in &self.0.settings {
            flatten(name, value, &mut rows);
        }
        let file = self.0.file.as_deref().unwrap_or("defaults, without a file");
        let file = output::escape_untrusted(file);
        format!("{}\n{file}\n", output::table(&["KEY", "VALUE"], &rows))
    }

    fn names(&self) -> Vec<String> {
        self.0.settings.keys().cloned().collect()
    }
}

/// One row for each value: `notify.1.webhook.1.url` is the URL of the first webhook of the first rule.
fn flatten(name: &str, value: &Value, rows: &mut Vec<Vec<String>>) {
    let key = |part: &str| if name.is_empty() { part.to_owned() } else { format!("{name}.{part}") };
    match value {
        Value::Object(table) => {
            table.iter().for_each(|(part, value)| flatten(&key(part), value, rows));
        }
        Value::Array(list) if list.iter().any(Value::is_object) => {
            for (number, value) in (1..).zip(list) {
                flatten(&key(&number.to_string()), value, rows);
            }
        }
        Value::Array(list) => {
            let each: Vec<String> = list.iter().map(text).collect();
            rows.push(vec![name.to_owned(), each.join(" ")]);
        }
        value => rows.push(vec![name.to_owned(), text(value)]),
    }
}

/// A JSON value as text; null is an empty text.
fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
