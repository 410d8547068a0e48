//! One file for each command.

pub(crate) mod announce;
pub(crate) mod discover;
pub(crate) mod history;
pub(crate) mod node;
pub(crate) mod status;
pub(crate) mod watch;

use clap::CommandFactory;
use serde_json::{Value, json};
use vipwatch_engine::discovery::Trouble;

use crate::args::Args;

/// A completion script for `shell`.
pub(crate) fn completions(shell: clap_complete::Shell) {
    clap_complete::generate(shell, &mut Args::command(), "vipwatch", &mut std::io::stdout());
}

/// The node's name, which is the first thing one asks of an answer from many nodes.
fn node_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// What was wrong with the files, one line each.
fn troubles_text(troubles: &[Trouble]) -> String {
    let each = troubles.iter().map(|trouble| {
        let line = trouble.line.map(|line| format!(":{line}")).unwrap_or_default();
        format!("problem: {}{line}: {}\n", trouble.file.display(), trouble.text.escape_debug())
    });
    each.collect()
}

fn troubles_json(troubles: &[Trouble]) -> Value {
    let each = troubles.iter().map(|trouble| {
        json!({
            "file": trouble.file.display().to_string(), "line": trouble.line, "text": trouble.text,
        })
    });
    each.collect()
}
