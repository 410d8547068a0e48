// SPDX-License-Identifier: Apache-2.0
//! Has the hook runner run a program for each notification, which the program gets as JSON on its standard input and in
//! its environment.
//!
//! The beginning of its output is logged.

use rustix::process::Signal;
use serde_json::Value;
use vipwatch_api::{NotificationBody, NotificationDocument};
use vipwatch_core::notification::AttemptResult;
use vipwatch_core::{ErrorChain, escape_for_shell, escape_untrusted};
use vipwatch_history::DeliverySource;

use super::attempt::Attempt;
use super::notification::Notification;
use crate::config::Hook;
use crate::hook_runner::client::{HookRunner, HookRunnerError};
use crate::hook_runner::protocol::{
    RefusalReason, RunAnswer, RunRequest, RunResult, VARIABLES, VERSION,
};

/// Maximum number of lines of a program's output that are logged. The runner limits the number of bytes.
const MAX_OUTPUT_LINES: usize = 20;

/// Maximum length of the list of addresses in the environment, in bytes.
const MAX_ADDRESSES_BYTES: usize = 64 << 10;

/// Why a run of a program failed.
#[derive(Debug, thiserror::Error)]
enum HookError {
    #[error(transparent)]
    Runner(#[from] HookRunnerError),
    #[error("{text}")]
    Refused { reason: RefusalReason, text: String },
    #[error("the hook runner was stopped during the run")]
    Stopped,
    #[error("the program took longer than {0} ms and was killed")]
    Late(u128),
    #[error("the program ended with code {0}")]
    Code(u8),
    #[error("the program was killed by signal {0}")]
    Killed(u8),
}

/// Runs the program once and logs its output.
pub(super) fn deliver(
    runner: &HookRunner,
    hook: &Hook,
    notification: &dyn Notification,
    document: &NotificationDocument,
) -> Attempt {
    let value = serde_json::to_value(document).unwrap_or_default();
    let request = RunRequest {
        version: VERSION,
        source: source(document).as_str().to_owned(),
        hook: hook.name.clone(),
        file: runner.file().map(str::to_owned),
        definition: hook.into(),
        input: format!("{value}\n"),
        environment: environment(document, &value),
    };
    let outcome = runner.run(&request).map_err(HookError::from).and_then(|answer| {
        log_output(hook, notification, &answer);
        outcome(hook, answer.result)
    });
    match outcome {
        Ok(()) => Attempt::DELIVERED,
        Err(error) => {
            Attempt { result: error.result(), error: Some(ErrorChain(&error).to_string()) }
        }
    }
}

/// The part of the configuration that has the hook.
fn source(document: &NotificationDocument) -> DeliverySource {
    match document.body {
        NotificationBody::Report(_) => DeliverySource::Receiver,
        NotificationBody::Transition(_)
        | NotificationBody::Removed(_)
        | NotificationBody::Finding(_) => DeliverySource::Node,
    }
}

fn log_output(hook: &Hook, notification: &dyn Notification, answer: &RunAnswer) {
    let (subject, seq) = (notification.subject(), notification.seq());
    let program = hook.program[0].as_str();
    let lines = answer.output.lines().map(escape_untrusted).filter(|line| !line.is_empty());
    let lines: Vec<String> = lines.collect();
    for line in lines.iter().take(MAX_OUTPUT_LINES) {
        tracing::info!(instance = %subject, program, seq, "hook output: {line}");
    }
    if answer.discarded > 0 || lines.len() > MAX_OUTPUT_LINES {
        let bytes = answer.discarded + answer.output.len();
        tracing::warn!(instance = %subject, program, bytes, "hook output too long: the rest is not logged");
    }
}

fn outcome(hook: &Hook, result: RunResult) -> Result<(), HookError> {
    match result {
        RunResult::Ended(0) => Ok(()),
        RunResult::Ended(code) => Err(HookError::Code(code)),
        RunResult::Killed(signal) => Err(HookError::Killed(signal)),
        RunResult::Late => Err(HookError::Late(hook.timeout.as_millis())),
        RunResult::Stopped => Err(HookError::Stopped),
        RunResult::Refused { reason, text } => Err(HookError::Refused { reason, text }),
    }
}

impl HookError {
    fn result(&self) -> AttemptResult {
        match self {
            Self::Stopped | Self::Runner(HookRunnerError::Ended) => AttemptResult::Interrupted,
            // Another process has ended the program: for example the service manager, when it stops the node.
            Self::Killed(signal) if is_stop_signal(*signal) => AttemptResult::Interrupted,
            // Another attempt would have the same length.
            Self::Runner(HookRunnerError::TooLong(_))
            | Self::Refused { reason: RefusalReason::Program, .. }
            | Self::Late(_)
            | Self::Code(_)
            | Self::Killed(_) => AttemptResult::Failed,
            Self::Runner(_) | Self::Refused { reason: RefusalReason::Disagreement, .. } => {
                AttemptResult::Unavailable
            }
        }
    }
}

fn is_stop_signal(signal: u8) -> bool {
    [Signal::TERM, Signal::INT, Signal::HUP].iter().any(|stop| stop.as_raw() == i32::from(signal))
}

/// The environment variables of the program: the simple values of the JSON object, and the addresses. Names of links,
/// namespaces and processes in them are of others; the JSON has them unescaped.
fn environment(document: &NotificationDocument, value: &Value) -> Vec<(String, String)> {
    let mut variables = Vec::new();
    for (key, value) in value.as_object().into_iter().flatten() {
        let text = match value {
            Value::String(text) => escape_for_shell(text),
            Value::Null => String::new(),
            Value::Array(_) | Value::Object(_) => continue,
            other => other.to_string(),
        };
        let name = key.to_uppercase();
        if VARIABLES.contains(&name.as_str()) {
            variables.push((format!("VIPWATCH_{name}"), text));
        }
    }
    if let NotificationBody::Transition(event) = &document.body {
        let addresses: Vec<&str> =
            event.addresses.iter().map(|address| address.cidr.as_str()).collect();
        let addresses = addresses.join(" ");
        // LIMIT: the kernel accepts at most 128 KiB for one environment variable. The JSON has all addresses.
        if addresses.len() <= MAX_ADDRESSES_BYTES {
            variables.push(("VIPWATCH_ADDRESSES".to_owned(), addresses));
        }
    }
    variables
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use serde_json::json;

    use super::*;

    /// An event with these fields, besides those that all events have.
    fn event<T: DeserializeOwned>(fields: Value) -> T {
        let mut value = json!({
            "node": "n", "epoch": "e", "source": "node", "seq": 1, "at": "2026-01-01T00:00:00Z",
            "id": "a", "netns": null, "from": null,
        });
        let Value::Object(fields) = fields else { panic!("not an object") };
        value.as_object_mut().unwrap().extend(fields);
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn every_simple_field_of_a_notification_is_a_variable_that_the_runner_accepts() {
        let finding = json!({
            "id": null, "name": "node-hook-runner", "severity": "critical", "text": "t", "hint": "h",
            "since": null, "silenced_until": null,
        });
        let bodies = [
            NotificationBody::Transition(event(json!({
                "schema": "vipwatch.transition/2", "origin": "vipwatch", "to": "backup",
                "trigger": "start", "reason": null, "addresses": [], "latencies": {},
            }))),
            NotificationBody::Removed(event(json!({ "schema": "vipwatch.removed/1" }))),
            NotificationBody::Report(event(json!({
                "schema": "vipwatch.report/2", "to": "primary", "state": "active",
            }))),
            NotificationBody::Finding(event(json!({
                "schema": "vipwatch.finding/1", "state": "open", "finding": finding, "scope": "local",
            }))),
        ];
        for body in bodies {
            let document = NotificationDocument { body, missed: 2 };
            let value = serde_json::to_value(&document).unwrap();
            let variables = environment(&document, &value);
            let fields = value.as_object().unwrap().iter();
            // The evidence is an object, or null if there is none.
            let is_simple = |key: &str, value: &Value| {
                !value.is_array() && !value.is_object() && key != "evidence"
            };
            for (key, _) in fields.filter(|(key, value)| is_simple(key, value)) {
                let name = format!("VIPWATCH_{}", key.to_uppercase());
                assert!(variables.iter().any(|variable| variable.0 == name), "{name}");
            }
            assert!(!variables.iter().any(|variable| variable.0 == "VIPWATCH_EVIDENCE"));
        }
    }
}
