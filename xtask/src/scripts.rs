// SPDX-License-Identifier: Apache-2.0
//! shellcheck on all shell scripts: those of the packages, those in the spec files of the RPMs, and those that a guide prints.

use std::process::Command;

use crate::source::{SourceFile, tracked_files};
use crate::{TaskError, TaskResult, build, process, provision};

/// Fails if shellcheck finds something in a script. The scripts have the paths of their files below a directory of their own.
pub fn check() -> TaskResult {
    provision::programs(&[provision::SHELLCHECK])?;
    let directory = build::target_directory().join("scripts");
    let _ = std::fs::remove_dir_all(&directory);
    let mut names = Vec::new();
    for file in tracked_files()? {
        for (script, number) in scripts(&file).iter().zip(1..) {
            let name = format!("{}.{number}.sh", file.path);
            let path = directory.join(&name);
            std::fs::create_dir_all(path.parent().unwrap_or(&directory))?;
            build::write(&path, script.as_bytes())?;
            names.push(name);
        }
    }
    let mut shellcheck = Command::new("shellcheck");
    shellcheck.args(["--format", "gcc"]).args(names).current_dir(directory);
    let checked = process::output(&mut shellcheck);
    checked.map(drop).map_err(|TaskError(found)| {
        TaskError(format!(
            "{found}\n  hint: correct the script, or explain the line: # shellcheck disable=CODE # reason"
        ))
    })
}

/// The scripts of a file. Each has the line numbers of the file.
fn scripts(file: &SourceFile) -> Vec<String> {
    if file.has_extension("spec") {
        return scriptlets(&file.text);
    }
    if file.has_extension("md") {
        return blocks(&file.text);
    }
    let first = file.text.lines().next().unwrap_or_default();
    let is_script = first.starts_with("#!") && (first.ends_with("/sh") || first.ends_with("bash"));
    // A file without `#!`, such as a completion, names its shell in a comment.
    let is_named = || file.text.lines().take(5).any(|line| line.starts_with("# shellcheck shell="));
    if is_script || is_named() { vec![file.text.clone()] } else { Vec::new() }
}

/// The scripts in a document: blocks for `sh` that begin with the name of a file.
fn blocks(document: &str) -> Vec<String> {
    let blocks = document.split("\n```sh\n# ").skip(1);
    let scripts = blocks.filter_map(|block| Some(block.split_once("\n```")?.0));
    let is_named = |script: &&str| script.lines().next().is_some_and(|line| line.contains(": "));
    scripts.filter(is_named).map(|script| format!("# shellcheck shell=sh\n# {script}\n")).collect()
}

/// The sections of a spec file that rpm executes on the machine of the user.
const SCRIPTLETS: [&str; 9] = [
    "%pretrans",
    "%posttrans",
    "%preun",
    "%postun",
    "%pre",
    "%post",
    "%triggerin",
    "%triggerun",
    "%triggerpostun",
];

/// The scripts of a spec file, each with empty lines in place of all others.
fn scriptlets(spec: &str) -> Vec<String> {
    let mut scripts = Vec::new();
    let mut is_in_script = false;
    for (index, line) in spec.lines().enumerate() {
        let section = line.split_whitespace().next().filter(|word| word.starts_with('%'));
        if let Some(section) = section {
            is_in_script = SCRIPTLETS.contains(&section);
            if is_in_script {
                scripts.push(format!("# shellcheck shell=sh{}", "\n".repeat(index + 1)));
            }
        } else if is_in_script && let Some(script) = scripts.last_mut() {
            script.extend([line, "\n"]);
        }
    }
    scripts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scripts_of_a_spec_file_keep_their_line_numbers() {
        let spec = "Name: a\n%install\nmkdir $1\n%post\nif x; then\n    y\nfi\n\n# comment\n%triggerin -- b, c\nz\n%files\n";
        let scripts = scriptlets(spec);
        assert_eq!(scripts.len(), 2);
        let lines: Vec<Vec<&str>> = scripts.iter().map(|script| script.lines().collect()).collect();
        assert_eq!(lines[0][1..], ["", "", "", "if x; then", "    y", "fi", "", "# comment"]);
        assert_eq!((lines[1].len(), lines[1][10]), (11, "z"));
    }

    #[test]
    fn a_block_of_a_guide_with_a_name_is_a_script() {
        let document = "Text\n\n```sh\n# drain NODE: stops it.\nset -eu\n```\n\n```sh\nls\n```\n";
        assert_eq!(blocks(document), ["# shellcheck shell=sh\n# drain NODE: stops it.\nset -eu\n"]);
    }

    #[test]
    fn files_of_a_shell_are_scripts_and_others_are_not() {
        let is_script = |text: &str| {
            let file = SourceFile { path: "a".to_owned(), text: text.to_owned() };
            !scripts(&file).is_empty()
        };
        assert!(is_script("#!/bin/sh\n") && is_script("#!/usr/bin/env bash\n"));
        assert!(is_script("# SPDX\n# shellcheck shell=bash\n"));
        assert!(!is_script("#!/usr/bin/python3\n") && !is_script("text\n") && !is_script(""));
    }
}
