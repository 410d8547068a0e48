// SPDX-License-Identifier: Apache-2.0
//! Reports words that CONTRIBUTING.md asks to avoid, in comments, messages and documents. git searches for them.

use std::process::Command;

use crate::{TaskError, TaskResult, build};

/// Maximum number of warnings that `cargo xtask check` prints.
pub const MAX_LINES: usize = 20;

/// Words for persons, phrases that hide the subject, and names of earlier versions that do not say what they mean.
const EXCLUDED: &str = "whoever|whomever|whom|nobody|somebody|anybody|everybody|someone|anyone|he|him|his|she|\
     what (was|is) owed|ha(s|ve) to say|last word|(is|are|was|were|be) told|hears|ears|\
     spine|fleet|roster|scout|looker|asker|surveyor|desk|clerk|books|docket|crier|tray|ledger|duty|duties|lanes?|house|\
     reception|watchman|scribe|messenger|poster|farewell|patience|confess|redress";

/// Files with comments. A message is a string literal with a space before the word.
const SOURCES: [&str; 5] = ["*.rs", "*.c", "*.toml", "*.py", "*.service"];

/// Files in which such a word is meant literally, or is explained.
const ALLOWED: [&str; 6] = [
    ":!CONTRIBUTING.md",
    ":!CHANGELOG.md",
    ":!docs/concepts/glossary.md",
    ":!xtask/src/words.rs",
    // The title of a section of RFC 826.
    ":!crates/linux/src/announce/arp.rs",
    // The name of a user.
    ":!crates/cli/tests/netns/hook_runner.rs",
];

/// Prints up to `max_lines` warnings and their number. It never fails because of a word.
pub fn report(max_lines: usize) -> TaskResult {
    let word = format!("\\<({EXCLUDED})\\>");
    // In documents and messages, "who" is usually about users.
    let in_source = format!("(//.*|# .*|; .*|\"[^\"]* ){word}|//.*\\<(who|whose)\\>");
    let mut found = search(&word, &["*.md"])?;
    found.extend(search(&in_source, &SOURCES)?);
    for line in found.iter().take(max_lines) {
        println!("warning: excluded word: {line}");
    }
    let left = found.len().saturating_sub(max_lines);
    if left > 0 {
        println!("… and {left} more: `cargo xtask check --words` prints all");
    }
    println!("{} lines with excluded words; CONTRIBUTING.md explains what to write", found.len());
    Ok(())
}

/// The lines that match, with path and number.
fn search(pattern: &str, files: &[&str]) -> Result<Vec<String>, TaskError> {
    let output = Command::new("git")
        .args(["grep", "--untracked", "--line-number", "--ignore-case"])
        .args(["--extended-regexp", pattern, "--"])
        .args(files)
        .args(ALLOWED)
        .current_dir(build::root())
        .output()?;
    // git-grep(1): 1 is the code of a search without a match.
    if output.status.code().is_none_or(|code| code > 1) {
        let reason = String::from_utf8_lossy(&output.stderr);
        return Err(TaskError(format!("git grep failed: {}", reason.trim())));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().map(str::to_owned).collect())
}
