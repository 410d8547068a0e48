// SPDX-License-Identifier: Apache-2.0
//! Tests that the documents agree with the command line: the reference has every command and option, and every command in a
//! document can be parsed.

mod findings;

use std::path::{Path, PathBuf};

use clap::{CommandFactory, Parser};

use crate::args::CliArgs;

/// The pages that together are the reference of the commands.
const REFERENCE: &[&str] =
    &["docs/reference/cli.md", "docs/reference/node.md", "docs/reference/receiver.md"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// All files with this extension below a directory.
fn files_below(directory: &Path, extension: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).expect("the directory can be read") {
        let path = entry.expect("the entry can be read").path();
        if path.is_dir() {
            files.extend(files_below(&path, extension));
        } else if path.extension().is_some_and(|found| found == extension) {
            files.push(path);
        }
    }
    files
}

/// Each command with its words, and its visible long options.
fn commands(command: &clap::Command, words: &str, found: &mut Vec<(String, Vec<String>)>) {
    let is_shown = |arg: &&clap::Arg| !arg.is_hide_set();
    let options = command.get_arguments().filter(is_shown).filter_map(clap::Arg::get_long);
    let options = options.filter(|option| !matches!(*option, "help" | "version"));
    found.push((words.to_owned(), options.map(str::to_owned).collect()));
    for child in command.get_subcommands() {
        if !child.is_hide_set() && child.get_name() != "help" {
            commands(child, &format!("{words} {}", child.get_name()), found);
        }
    }
}

#[test]
fn the_reference_has_every_exit_code() {
    let reference = read("docs/reference/cli.md");
    for (code, meaning) in crate::failure::EXIT_CODES {
        assert!(reference.contains(&format!("| {code} | {meaning} |\n")), "{code}: {meaning}");
    }
}

#[test]
fn the_reference_has_every_command_and_every_option() {
    let reference: String = REFERENCE.iter().map(|path| read(path)).collect();
    let mut found = Vec::new();
    commands(&CliArgs::command(), "vipwatch", &mut found);
    assert!(found.len() > 20, "only {} commands", found.len());
    let mut missing = Vec::new();
    for (words, options) in found {
        if !reference.contains(&format!("`{words}")) {
            missing.push(words.clone());
        }
        let is_missing = |option: &&String| !reference.contains(&format!("--{option}"));
        missing
            .extend(options.iter().filter(is_missing).map(|option| format!("{words} --{option}")));
    }
    assert!(missing.is_empty(), "not in {REFERENCE:?}: {missing:#?}");
}

/// The shell commands in the blocks of a document, with their line numbers. A command begins with a prompt (`$ ` or `# `) and
/// may continue after a backslash.
fn shell_commands(text: &str) -> Vec<(usize, String)> {
    let mut commands: Vec<(usize, String)> = Vec::new();
    let mut is_in_block = false;
    let mut is_continued = false;
    for (number, line) in text.lines().enumerate() {
        let line = line.trim_start();
        if line.starts_with("```") {
            is_in_block = !is_in_block;
            is_continued = false;
            continue;
        }
        let body = line.strip_prefix("$ ").or_else(|| line.strip_prefix("# "));
        let part = if is_continued { Some(line) } else { body.filter(|_| is_in_block) };
        let Some(part) = part else { continue };
        let text = part.strip_suffix('\\');
        match commands.last_mut() {
            Some((_, command)) if is_continued => command.push_str(text.unwrap_or(part)),
            _ => commands.push((number + 1, text.unwrap_or(part).to_owned())),
        }
        is_continued = text.is_some();
    }
    commands
}

/// The words of a shell command up to a pipe, a redirection, a separator or a comment. Quotes are removed.
fn words(command: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quote = None;
    for character in command.chars() {
        match (quote, character) {
            (Some(open), close) if open == close => quote = None,
            (None, '\'' | '"') => quote = Some(character),
            (None, ' ') => words.push(String::new()),
            (_, other) => words.last_mut().expect("there is a word").push(other),
        }
    }
    let is_end = |word: &String| matches!(&**word, "|" | ">" | "&&" | ";" | "#" | "&");
    words.into_iter().filter(|word| !word.is_empty()).take_while(|word| !is_end(word)).collect()
}

/// The part of the words that is a command line of `vipwatch`, also on another host or in a container.
fn own_words(words: &[String]) -> Option<&[String]> {
    let is_own = |word: &String| word == "vipwatch" || word.ends_with("/usr/bin/vipwatch");
    let begin = match words.first().map(String::as_str)? {
        "ssh" | "sudo" | "kubectl" => words.iter().position(is_own)?,
        _ => 0,
    };
    words.get(begin..).filter(|words| words.first().is_some_and(is_own))
}

#[test]
fn every_command_in_a_document_can_be_parsed() {
    let mut files = files_below(&root().join("docs"), "md");
    files.push(root().join("README.md"));
    let mut count = 0;
    let mut wrong = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).expect("the document can be read");
        for (line, command) in shell_commands(&text) {
            let words = words(&command);
            let Some(words) = own_words(&words) else { continue };
            count += 1;
            if let Err(error) = CliArgs::try_parse_from(words) {
                wrong.push(format!("{}:{line}: {command}\n{error}", file.display()));
            }
        }
    }
    assert!(count > 40, "only {count} commands were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_command_in_an_example_for_ansible_can_be_parsed() {
    let mut count = 0;
    for file in files_below(&root().join("examples"), "yml") {
        let text = std::fs::read_to_string(&file).expect("the example can be read");
        for line in text.lines() {
            let Some(command) = line.trim().strip_prefix("ansible.builtin.command: ") else {
                continue;
            };
            let command = command.replace("{{ vipwatch_fail_on }}", "critical");
            let words = words(&command);
            let Some(words) = own_words(&words) else { continue };
            count += 1;
            if let Err(error) = CliArgs::try_parse_from(words) {
                panic!("{}: {command}\n{error}", file.display());
            }
        }
    }
    assert!(count > 1, "only {count} commands were found");
}

#[test]
fn commands_are_read_from_blocks_with_prompts_continuations_and_quotes() {
    let text = "# vipwatch no block\n```console\n# vipwatch status --role \\\n    primary | head\nvipwatch output\n$ ls\n```\n";
    let commands = shell_commands(text);
    assert_eq!(commands.len(), 2, "{commands:?}");
    assert_eq!(words(&commands[0].1), ["vipwatch", "status", "--role", "primary"]);
    assert_eq!(words("a 'b c' \"d\" > e"), ["a", "b c", "d"]);
    assert!(own_words(&words("apt remove vipwatch")).is_none());
    let remote = words("ssh node-1 vipwatch doctor");
    assert_eq!(own_words(&remote).map(<[String]>::len), Some(2));
}
