// SPDX-License-Identifier: Apache-2.0
//! The commands, one file for each, and functions that several of them use.

pub(crate) mod announce;
pub(crate) mod cluster;
pub(crate) mod config;
pub(crate) mod discover;
pub(crate) mod doctor;
pub(crate) mod drain_check;
pub(crate) mod history;
pub(crate) mod hook_runner;
pub(crate) mod node;
pub(crate) mod receiver;
pub(crate) mod reload;
pub(crate) mod show;
pub(crate) mod silence;
pub(crate) mod simulate;
pub(crate) mod status;
pub(crate) mod targets;
pub(crate) mod top;
pub(crate) mod version;
pub(crate) mod watch;

use clap_complete::env::Shells;

use crate::failure::{CommandError, ExitStatus};

/// Prints a completion script for `shell`. The script calls this program for the ids of instances.
pub(crate) fn completions(shell: clap_complete::Shell) -> Result<(), CommandError> {
    let name = shell.to_string();
    let shells = Shells::builtins();
    let Some(completer) = shells.completer(&name) else {
        return Err(CommandError::new(
            ExitStatus::NotFound,
            format!("there is no completion for {name}"),
        ));
    };
    let program = "vipwatch";
    let mut script = Vec::new();
    let written = completer.write_registration("COMPLETE", program, program, program, &mut script);
    written.map_err(|error| CommandError::new(ExitStatus::No, error))?;
    let script = String::from_utf8_lossy(&script);
    crate::output::print(&match shell {
        clap_complete::Shell::Zsh => complete_at_first_use(&script),
        _ => script.into_owned(),
    });
    Ok(())
}

/// zsh runs the file of a completion as a function when the tab key is pressed for the first time. The script only defines
/// another function then, and nothing would be offered before the second time.
fn complete_at_first_use(script: &str) -> String {
    const REGISTRATION: &str = "compdef _clap_dynamic_completer_vipwatch vipwatch";
    let at_first_use = format!(
        "if [[ $funcstack[1] == _vipwatch ]]; then\n    _clap_dynamic_completer_vipwatch \"$@\"\nelse\n    {REGISTRATION}\nfi"
    );
    script.replace(REGISTRATION, &at_first_use)
}

/// The name of this node.
fn node_name() -> String {
    vipwatch_node::name().to_string()
}
