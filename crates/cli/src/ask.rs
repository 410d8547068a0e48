//! Asks the node; or, where none runs, the files and the kernel. The answers are the same.

use serde_json::Value;
use vipwatch_core::ErrorChain;
use vipwatch_node::query_client::{self, QueryError};
use vipwatch_node::query_server::answer_once;
use vipwatch_node::{Config, direct};

use crate::args::QueryTarget;
use crate::failure::{CommandError, ExitStatus};

/// Asks `question`.
pub(crate) fn ask(place: &QueryTarget, question: &Value) -> Result<Value, CommandError> {
    if place.is_direct() {
        return ask_directly(&place.settings()?, question);
    }
    let asking = place.settings_for_asking()?;
    match query_client::ask(&asking.config.socket, question) {
        Ok(answer) => Ok(answer),
        Err(QueryError::Nobody(_)) => match asking.unread() {
            Some(failure) => Err(failure),
            None => ask_directly(&asking.config, question),
        },
        Err(error) => Err(failure(&error)),
    }
}

/// Looks for himself.
pub(crate) fn ask_directly(config: &Config, question: &Value) -> Result<Value, CommandError> {
    let context = match question["ask"].as_str() {
        Some("history") => direct::archive(config),
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
                .hint("be root, or a member of the group that owns the socket")
        }
        QueryError::Nobody(_) | QueryError::Talk { .. } => {
            CommandError::new(ExitStatus::Missing, ErrorChain(error))
                .hint("`systemctl status vipwatch-node`; --direct asks the kernel instead")
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
            failure.hint("`vipwatch discover` lists those there are")
        }
        ExitStatus::Missing if why.starts_with("there is no history") => {
            failure.hint("`vipwatch node` records one; --state-dir says where")
        }
        ExitStatus::Missing if why.contains("out of date") => {
            failure.hint("`vipwatch node` brings it up when it starts")
        }
        _ => failure,
    }
}
