//! The commands, one file for each, and functions that several of them use.

pub(crate) mod announce;
pub(crate) mod config;
pub(crate) mod discover;
pub(crate) mod doctor;
pub(crate) mod history;
pub(crate) mod node;
pub(crate) mod receiver;
pub(crate) mod show;
pub(crate) mod status;
pub(crate) mod watch;

use clap_complete::env::Shells;
use serde_json::Value;
use vipwatch_node::discovery::ConfigProblem;

use crate::failure::{CommandError, ExitStatus};
use crate::output::escape_untrusted;

/// Prints a completion script for `shell`. The script calls this program for the ids of instances.
pub(crate) fn completions(shell: clap_complete::Shell) -> Result<(), CommandError> {
    let name = shell.to_string();
    let shells = Shells::builtins();
    let Some(completer) = shells.completer(&name) else {
        return Err(CommandError::new(
            ExitStatus::Missing,
            format!("there is no completion for {name}"),
        ));
    };
    let program = "vipwatch";
    let mut script = Vec::new();
    let written = completer.write_registration("COMPLETE", program, program, program, &mut script);
    written.map_err(|error| CommandError::new(ExitStatus::Missing, error))?;
    crate::output::print(&String::from_utf8_lossy(&script));
    Ok(())
}

/// The name of this node.
fn node_name() -> String {
    vipwatch_node::name().to_string()
}

/// The elements of a JSON array; none if the value is not an array.
fn each(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// A JSON value as text; null is an empty text.
fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The problems of an answer, one line for each.
fn answered_problems_text(problems: &Value) -> String {
    let each = each(problems).map(|problem| {
        let line = problem["line"].as_u64().map(|line| format!(":{line}")).unwrap_or_default();
        let text = format!("{}{line}: {}", text(&problem["file"]), text(&problem["text"]));
        format!("problem: {}\n", escape_untrusted(&text))
    });
    each.collect()
}

/// The problems of configuration files, one line for each.
fn problems_text(problems: &[ConfigProblem]) -> String {
    let each = problems.iter().map(|problem| {
        let line = problem.line.map(|line| format!(":{line}")).unwrap_or_default();
        let text = format!("{}{line}: {}", problem.file.display(), problem.text);
        format!("problem: {}\n", escape_untrusted(&text))
    });
    each.collect()
}
