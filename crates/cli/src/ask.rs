//! Asks the node; or, where none runs, the files and the kernel. The answers are the same.

use serde_json::Value;
use vipwatch_core::Chain;
use vipwatch_node::client::{self, AskError};
use vipwatch_node::desk::answer_once;
use vipwatch_node::{Config, direct};

use crate::args::Where;
use crate::failure::{Code, Failure};

/// Asks `question`.
pub(crate) fn ask(place: &Where, question: &Value) -> Result<Value, Failure> {
    if place.is_direct() {
        return ask_directly(&place.settings()?, question);
    }
    let asking = place.settings_for_asking()?;
    match client::ask(&asking.config.socket, question) {
        Ok(answer) => Ok(answer),
        Err(AskError::Nobody(_)) => match asking.unread() {
            Some(failure) => Err(failure),
            None => ask_directly(&asking.config, question),
        },
        Err(error) => Err(failure(&error)),
    }
}

/// Looks for himself.
pub(crate) fn ask_directly(config: &Config, question: &Value) -> Result<Value, Failure> {
    let office = match question["ask"].as_str() {
        Some("history") => direct::archive(config),
        _ => direct::office(config),
    };
    let answer = answer_once(question, &office);
    match answer["error"].as_str() {
        Some(why) if answer["schema"] == "vipwatch.error/1" => {
            Err(refused(why, answer["code"].as_u64()))
        }
        _ => Ok(answer),
    }
}

pub(crate) fn failure(error: &AskError) -> Failure {
    match error {
        AskError::NotPermitted(_) => Failure::new(Code::NotPermitted, Chain(error))
            .hint("be root, or a member of the group that owns the socket"),
        AskError::Nobody(_) | AskError::Talk { .. } => Failure::new(Code::Missing, Chain(error))
            .hint("`systemctl status vipwatch-node`; --direct asks the kernel instead"),
        AskError::Refused(why, code) => refused(why, *code),
    }
}

fn refused(why: &str, code: Option<u64>) -> Failure {
    let code = match code {
        Some(3) => Code::NotPermitted,
        Some(4) => Code::Missing,
        _ => Code::No,
    };
    let failure = Failure::new(code, why);
    match code {
        Code::Missing if why.starts_with("there is no instance") => {
            failure.hint("`vipwatch discover` lists those there are")
        }
        Code::Missing if why.starts_with("there is no history") => {
            failure.hint("`vipwatch node` records one; --state-dir says where")
        }
        Code::Missing if why.contains("out of date") => {
            failure.hint("`vipwatch node` brings it up when it starts")
        }
        _ => failure,
    }
}
