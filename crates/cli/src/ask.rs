//! Queries the node, or, if no node runs, the files and the kernel. Both give the same answers.

use serde_json::Value;
use vipwatch_core::ErrorChain;
use vipwatch_node::query_client::{self, QueryError};
use vipwatch_node::query_server::answer_once;
use vipwatch_node::{Config, direct};

use crate::args::QueryOptions;
use crate::failure::{CommandError, ExitStatus};

/// Sends `question` to the node and returns the answer.
pub(crate) fn ask(options: &QueryOptions, question: &Value) -> Result<Value, CommandError> {
    if options.is_direct() {
        return ask_directly(&options.settings()?, question);
    }
    let node = options.node_settings()?;
    match query_client::ask(&node.config.socket, question) {
        Ok(answer) => Ok(answer),
        Err(QueryError::NotListening(_)) => match node.unread() {
            Some(failure) => Err(failure),
            None => ask_directly(&node.config, question),
        },
        Err(error) => Err(failure(&error)),
    }
}

/// Answers `question` from the files and the kernel.
pub(crate) fn ask_directly(config: &Config, question: &Value) -> Result<Value, CommandError> {
    let context = match question["ask"].as_str() {
        Some("history") => direct::history_context(config),
        _ => direct::context(config),
    };
    let answer = answer_once(question, &context);
    match answer["error"].as_str() {
        Some(why) if answer["schema"] == "vipwatch.error/1" => {
            Err(refused(why, answer["code"].as_u64()))
        }
        _ => Ok(answer),
    }
}

pub(crate) fn failure(error: &QueryError) -> CommandError {
    match error {
        QueryError::NotPermitted(_) => {
            CommandError::new(ExitStatus::NotPermitted, ErrorChain(error))
                .hint("run it as root, or as a member of the group of the socket")
        }
        QueryError::NotListening(_) | QueryError::Io { .. } => {
            CommandError::new(ExitStatus::Missing, ErrorChain(error))
                .hint("see `systemctl status vipwatch-node`; --direct queries the kernel instead")
        }
        QueryError::Refused(why, code) => refused(why, *code),
    }
}

fn refused(why: &str, code: Option<u64>) -> CommandError {
    let code = match code {
        Some(3) => ExitStatus::NotPermitted,
        Some(4) => ExitStatus::Missing,
        _ => ExitStatus::No,
    };
    let failure = CommandError::new(code, why);
    match code {
        ExitStatus::Missing if why.starts_with("there is no instance") => {
            failure.hint("`vipwatch discover` lists the instances of this node")
        }
        ExitStatus::Missing if why.starts_with("there is no history") => {
            failure.hint("`vipwatch node` records the history; --state-dir sets its directory")
        }
        ExitStatus::Missing if why.contains("out of date") => {
            failure.hint("start `vipwatch node`, which migrates the file")
        }
        _ => failure,
    }
}
