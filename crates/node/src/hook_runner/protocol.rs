// SPDX-License-Identifier: Apache-2.0
//! The messages between the node and the hook runner: one request and one answer on each connection. A message is its
//! length in bytes (32 bits, big endian) and JSON.

use std::io::{self, Read, Write};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::config::{Hook, HookAccount};

/// The version of the messages. The runner refuses requests of another version.
pub(crate) const VERSION: u32 = 1;

/// Maximum size of a message in bytes.
const MAX_MESSAGE_BYTES: usize = 1 << 20;

/// The part after `VIPWATCH_` of the names of the variables that a request may set. The runner refuses all others: variables
/// such as `PATH` change what a program does, and `VIPWATCH_PROGRAM` and `VIPWATCH_CONFIG` are those of the runner.
pub(crate) const VARIABLES: [&str; 19] = [
    "ADDRESSES",
    "AT",
    "CAUSE",
    "CAUSE_TEXT",
    "EPOCH",
    "FROM",
    "ID",
    "MISSED",
    "NETNS",
    "NODE",
    "ORIGIN",
    "REASON",
    "SCHEMA",
    "SCOPE",
    "SEQ",
    "SOURCE",
    "STATE",
    "TO",
    "TRIGGER",
];

/// Asks the runner to run a hook once.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RunRequest {
    /// [`VERSION`]
    pub(crate) version: u32,
    /// The part of the configuration that has the hook: `node` or `receiver`.
    pub(crate) source: String,
    /// The name of the hook.
    pub(crate) hook: String,
    /// The absolute path of the file that the node has read, for messages; `None` if the node does not tell it.
    #[serde(default)]
    pub(crate) file: Option<String>,
    /// The hook as the node has read it.
    pub(crate) definition: HookDefinition,
    /// The text on the standard input of the program.
    pub(crate) input: String,
    /// Further variables of the program's environment, with names of [`VARIABLES`].
    pub(crate) environment: Vec<(String, String)>,
}

/// The parts of a hook that the runner needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HookDefinition {
    /// The program and its arguments.
    pub(crate) program: Vec<String>,
    /// The user and the group of the program.
    #[serde(flatten)]
    pub(crate) account: HookAccount,
    /// The time limit of a run.
    pub(crate) timeout: Duration,
}

impl From<&Hook> for HookDefinition {
    fn from(hook: &Hook) -> Self {
        let (program, account) = (hook.program.clone(), hook.account.clone());
        Self { program, account, timeout: hook.timeout }
    }
}

/// The answer to a request.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RunAnswer {
    /// How the run ended.
    pub(crate) result: RunResult,
    /// The beginning of the program's output.
    pub(crate) output: String,
    /// The number of bytes of output after that.
    pub(crate) discarded: usize,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum RunResult {
    /// The program has ended with this code.
    Ended(u8),
    /// This signal has ended the program.
    Killed(u8),
    /// The program took longer than the time limit.
    Late,
    /// The runner was stopped during the run.
    Stopped,
    /// The program was not started.
    Refused {
        /// The reason.
        reason: RefusalReason,
        /// The error.
        text: String,
    },
}

/// Why a program was not started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum RefusalReason {
    /// The node and the runner do not agree: on the version, the configuration or the user of the node. Another attempt
    /// may succeed after a reload or a restart.
    Disagreement,
    /// The program or its user.
    Program,
}

impl RunAnswer {
    pub(crate) fn refused(reason: RefusalReason, text: impl Into<String>) -> Self {
        let result = RunResult::Refused { reason, text: text.into() };
        Self { result, output: String::new(), discarded: 0 }
    }
}

/// Sends one message.
pub(crate) fn send(mut stream: impl Write, message: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_vec(message).map_err(io::Error::other)?;
    let length = u32::try_from(text.len()).ok().filter(|_| text.len() <= MAX_MESSAGE_BYTES);
    let length = length.ok_or_else(too_long)?;
    stream.write_all(&[&length.to_be_bytes()[..], &text].concat())
}

/// Receives one message. The end of the stream before a whole message is [`io::ErrorKind::UnexpectedEof`].
pub(crate) fn receive<T: DeserializeOwned>(mut stream: impl Read) -> io::Result<T> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
    if length > MAX_MESSAGE_BYTES {
        return Err(too_long());
    }
    // The buffer grows with the bytes that arrive, and not with the number that the other process has sent.
    let mut text = Vec::new();
    stream.take(length as u64).read_to_end(&mut text)?;
    if text.len() < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    serde_json::from_slice(&text).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

fn too_long() -> io::Error {
    let text = format!("the message has more than {MAX_MESSAGE_BYTES} bytes");
    io::Error::new(io::ErrorKind::InvalidData, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_is_cut_off_or_too_long_is_an_error() {
        let answer = RunAnswer::refused(RefusalReason::Program, "text");
        let mut sent = Vec::new();
        send(&mut sent, &answer).unwrap();
        let received: RunAnswer = receive(&sent[..]).unwrap();
        assert_eq!(received.result, answer.result);
        for length in 0..sent.len() {
            let error = receive::<RunAnswer>(&sent[..length]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{length}");
        }
        let error = receive::<RunAnswer>(&[0xff; 64][..]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
