// SPDX-License-Identifier: Apache-2.0
//! `vipwatch reload`: has the node or the receiver read its configuration again, and prints the result.

use vipwatch_api::ReloadDocument;
use vipwatch_api::client::{Client, ClientError};

use crate::args::ReloadArgs;
use crate::failure::{CommandError, ExitStatus};
use crate::output::{self, Page, Style, push_line};

pub(crate) fn run(options: &ReloadArgs) -> Result<(), CommandError> {
    let answer = if options.receiver {
        let answer = Client::new(&options.status_socket).reload();
        answer.map_err(|error| CommandError::of_receiver(&error))?
    } else {
        reload_node(options)?
    };
    match &answer.reload.error {
        None => {
            output::show(&options.node.output, &answer);
            Ok(())
        }
        Some(error) => {
            if options.node.output.is_for_scripts() {
                output::show(&options.node.output, &answer);
            }
            Err(rejected(&answer, error))
        }
    }
}

/// Reloads the node. The errors of the file are in its answer, so this command does not report them itself.
fn reload_node(options: &ReloadArgs) -> Result<ReloadDocument, CommandError> {
    let node = options.node.source.settings_without_warning()?;
    match Client::new(&node.config.socket).reload() {
        Err(error @ ClientError::NotListening(_)) => {
            node.check_read()?;
            let failure = CommandError::from(error);
            Err(failure.hint(
                "start `vipwatch node`; if node.socket has changed since its start, restart it, or give the earlier path \
                 with --socket",
            ))
        }
        answer => answer.map_err(CommandError::from),
    }
}

/// The error for a configuration that was not applied, or not in full.
fn rejected(answer: &ReloadDocument, error: &str) -> CommandError {
    let ReloadDocument { service, node, .. } = answer;
    let message = format!("the {service} {node} has not applied its configuration:\n{error}");
    CommandError::new(ExitStatus::No, message).hint(
        "the earlier settings stay in force; correct the file until `vipwatch config check` accepts it, and reload again",
    )
}

impl Page for ReloadDocument {
    fn text(&self, _: &Style) -> String {
        let mut page = String::new();
        let file = self.config_file.as_deref().unwrap_or("the defaults, without a file");
        let Self { service, node, pid, reload, .. } = self;
        let result = match &reload.error {
            None => format!("applied {file}"),
            Some(error) => format!("not applied: {error}"),
        };
        push_line(&mut page, &format!("{service} {node}, process {pid}: {result}"));
        for key in &reload.needs_restart {
            push_line(&mut page, &format!("  not in force before a restart: {key}"));
        }
        for part in &reload.pending {
            push_line(&mut page, &format!("  not in force yet: {part}"));
        }
        page
    }

    fn names(&self) -> Vec<String> {
        vec![self.node.clone()]
    }
}

#[cfg(test)]
mod tests {
    use vipwatch_api::{ReloadOutcome, Schema};

    use super::*;
    use crate::samples;

    fn answer(error: Option<&str>) -> ReloadDocument {
        let version = samples::version();
        let (number, at) = (3, version.started_at);
        ReloadDocument {
            schema: Schema::Reload,
            node: version.node,
            service: version.service,
            pid: version.pid,
            config_file: version.config_file,
            reload: ReloadOutcome {
                number,
                at,
                error: error.map(ToOwned::to_owned),
                needs_restart: Vec::new(),
                pending: Vec::new(),
            },
        }
    }

    #[test]
    fn the_process_and_the_applied_file_are_printed() {
        let text = answer(None).text(&Style::of_tests());
        assert_eq!(text, "node node-1, process 4711: applied /etc/vipwatch/vipwatch.toml\n");
    }

    #[test]
    fn settings_that_are_not_in_force_are_named() {
        let mut answer = answer(None);
        answer.reload.needs_restart = vec!["history.keep_days".to_owned()];
        answer.reload.pending = vec!["the receiver starts later".to_owned()];
        let text = answer.text(&Style::of_tests());
        let rest = "\n  not in force before a restart: history.keep_days\n  not in force yet: the receiver starts later\n";
        assert!(text.ends_with(rest), "{text}");
    }

    #[test]
    fn the_errors_of_a_rejected_configuration_are_lines_of_the_message() {
        let error = "/etc/vipwatch/vipwatch.toml:3:1: there is no key sokcet\n/etc/vipwatch/vipwatch.toml:9:5: x";
        let failure = rejected(&answer(Some(error)), error);
        assert_eq!(failure.code, ExitStatus::No);
        assert!(failure.message.ends_with(error), "{}", failure.message);
    }
}
