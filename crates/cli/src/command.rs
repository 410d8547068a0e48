//! One file for each command.

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
use crate::show::escape_untrusted;

/// A completion script for `shell`: it calls this program, which knows the ids there are.
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
    crate::show::print(&String::from_utf8_lossy(&script));
    Ok(())
}

/// The node's name, which is the first thing one asks of an answer from many nodes.
fn node_name() -> String {
    vipwatch_node::name().to_string()
}

/// The parts of a list.
fn each(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// A value, for people: nothing is empty.
fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// What was wrong with the files, one line each, by what was answered.
fn problems_text(problems: &Value) -> String {
    let each = each(problems).map(|problem| {
        let line = problem["line"].as_u64().map(|line| format!(":{line}")).unwrap_or_default();
        let text = format!("{}{line}: {}", text(&problem["file"]), text(&problem["text"]));
        format!("problem: {}\n", escape_untrusted(&text))
    });
    each.collect()
}

/// What was wrong with the files, one line each.
fn troubles_text(problems: &[ConfigProblem]) -> String {
    let each = problems.iter().map(|problem| {
        let line = problem.line.map(|line| format!(":{line}")).unwrap_or_default();
        let text = format!("{}{line}: {}", problem.file.display(), problem.text);
        format!("problem: {}\n", escape_untrusted(&text))
    });
    each.collect()
}
