// SPDX-License-Identifier: Apache-2.0
//! `vipwatch config check`: reads the file as a node does at its start and at a reload, and prints every error.

use std::path::Path;

use vipwatch_api::{ConfigCheckDocument, ConfigErrorItem, Schema};
use vipwatch_core::ErrorChain;
use vipwatch_linux::account::{AccountKind, UserAccount, id};
use vipwatch_linux::privilege::Identity;
use vipwatch_node::Config;
use vipwatch_node::config::{
    ClusterFileError, ConfigError, FILE, ProgramCheck, ServiceCredential, SettingError,
};
use vipwatch_node::discovery::ConfigScanner;
use vipwatch_node::hook_runner::{NODE_USER, SOCKET};
use vipwatch_web::{WebFileError, check_web_files};

use crate::args::{Format, OutputOptions, config_error};
use crate::failure::{CommandError, ExitStatus, note};
use crate::output::{self, count};

/// Why a node could not start with the file.
#[derive(Debug, thiserror::Error)]
enum CheckError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    WebFile(#[from] WebFileError),
    #[error(transparent)]
    ClusterFile(#[from] ClusterFileError),
}

/// A configuration with which a node could start.
struct CheckedConfig {
    config: Config,
    warnings: Vec<String>,
}

pub(super) fn run(file: Option<&Path>, options: &OutputOptions) -> Result<(), CommandError> {
    let path = file.unwrap_or(Path::new(FILE));
    let checked = check(file);
    let warnings = checked.as_ref().map(|checked| checked.warnings.clone()).unwrap_or_default();
    let document = document(path, checked.as_ref().err(), &warnings);
    let summary = checked.as_ref().map(|checked| summary(file, path, &checked.config));
    let summary = summary.unwrap_or_default();
    if matches!(options.format(), Format::Table | Format::Wide) {
        for warning in &warnings {
            note(options, &format!("warning: {warning}"));
        }
    }
    output::show_value(options, &document, |_| summary, || vec![document.file.clone()]);
    checked.map_err(|error| check_error(&error))?;
    Ok(())
}

fn check(file: Option<&Path>) -> Result<CheckedConfig, CheckError> {
    let config = Config::load_trusted(file, ProgramCheck::Now(node_identity()))?;
    config.check_paths()?;
    let of_web =
        if config.web.listen.is_empty() { Vec::new() } else { check_web_files(&config.web)? };
    let of_cluster = config.cluster.check_files()?;
    // The warnings about the instances that are configured now.
    let (locations, own) = (config.locations.clone(), config.instances.clone());
    let mut scanner = ConfigScanner::with_processes(locations, own);
    let mut warnings = config.warnings(&scanner.scan().instances);
    warnings.extend(of_web);
    warnings.extend(check_target_secrets(&config)?);
    warnings.extend(of_cluster);
    Ok(CheckedConfig { config, warnings })
}

/// Reads the URLs and headers outside the configuration as a node does. Returns a warning if only the service has some.
fn check_target_secrets(config: &Config) -> Result<Option<String>, ConfigError> {
    if ServiceCredential::are_passed() {
        return config.check_target_secrets().map(|()| None);
    }
    let names = config.check_target_files()?.join(", ");
    let warning = || format!("URLs and headers are not checked: only the service has {names}");
    Ok((!names.is_empty()).then(warning))
}

/// The user and the group of the node: those of its unit, if the socket of the hook runner's unit is there, else those of
/// this process.
fn node_identity() -> Identity {
    let account = || UserAccount::find(id(NODE_USER, AccountKind::User)?);
    // Only root can see the socket in its directory.
    let has_socket = match Path::new(SOCKET).symlink_metadata() {
        Ok(_) => true,
        Err(error) => error.kind() == std::io::ErrorKind::PermissionDenied,
    };
    let account = has_socket.then(account).flatten();
    account.map_or_else(Identity::current, |account| Identity {
        user: account.user,
        group: account.group,
    })
}

/// The error of the command: each error of the file with its line.
fn check_error(error: &CheckError) -> CommandError {
    let error = match error {
        CheckError::Config(error) => error,
        CheckError::ClusterFile(error) => {
            return CommandError::new(ExitStatus::NotFound, ErrorChain(error)).hint(error.hint());
        }
        CheckError::WebFile(error) => {
            return CommandError::new(ExitStatus::NotFound, ErrorChain(error)).hint(error.hint());
        }
    };
    let mut failure = config_error(error);
    if let ConfigError::Invalid(errors) = error {
        let each = errors.iter().map(SettingError::with_source_line);
        failure.message = each.collect::<Vec<_>>().join("\n");
    }
    failure
}

fn document(path: &Path, error: Option<&CheckError>, warnings: &[String]) -> ConfigCheckDocument {
    let errors = match error {
        None => Vec::new(),
        Some(CheckError::Config(ConfigError::Invalid(errors))) => errors.iter().map(item).collect(),
        Some(other) => {
            vec![ConfigErrorItem { line: None, column: None, text: ErrorChain(other).to_string() }]
        }
    };
    ConfigCheckDocument {
        schema: Schema::ConfigCheck,
        file: path.display().to_string(),
        is_valid: errors.is_empty(),
        errors,
        warnings: warnings.to_vec(),
    }
}

fn item(error: &SettingError) -> ConfigErrorItem {
    ConfigErrorItem { line: Some(error.line), column: Some(error.column), text: error.text.clone() }
}

fn summary(file: Option<&Path>, path: &Path, config: &Config) -> String {
    let name = path.display();
    if file.is_none() && !path.exists() {
        return format!("there is no {name}: the defaults are used\n");
    }
    let instances = count(config.instances.len(), "instance");
    let rules = count(config.rules.len(), "notify rule");
    let receiver = match &config.receiver {
        Some(receiver) => format!(", monitors report to {}", receiver.socket.display()),
        None => String::new(),
    };
    format!("{name} is fine: {instances} of its own, {rules}{receiver}\n")
}
