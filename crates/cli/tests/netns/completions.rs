// SPDX-License-Identifier: Apache-2.0
//! The completion scripts, in each real shell on a terminal.

use std::path::Path;
use std::process::Command;

use vipwatch_testkit::PtyProcess;

use crate::support::PROGRAM;

/// Loads the script in an interactive shell, and presses the tab key after the beginning of a command.
fn complete(shell: &[&str], load: &str) {
    let directory = Path::new(PROGRAM).parent().unwrap().display().to_string();
    let path = format!("{directory}:{}", std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new(shell[0]);
    command.args(&shell[1..]).env("PATH", path).env("PS1", "> ").env("HOME", "/nonexistent");
    let mut terminal = PtyProcess::start(&command, 120, 24);
    // The text in the answer differs from the text that was typed, so that an echo does not count.
    terminal.press(&format!("{load}; echo load''ed\r"));
    terminal.wait_for("loaded");
    terminal.press("vipwatch relo\t");
    terminal.wait_for("vipwatch reload");
    terminal.press("--rec\t");
    terminal.wait_for("vipwatch reload --receiver");
}

#[test]
fn the_completion_of_bash_offers_commands_and_options() {
    complete(&["bash", "--norc", "--noprofile", "-i"], "source <(vipwatch completions bash)");
}

#[test]
fn the_completion_of_zsh_offers_commands_and_options() {
    complete(
        &["zsh", "-f", "-i"],
        "autoload -U compinit && compinit -u -D && source <(vipwatch completions zsh)",
    );
}

#[test]
fn the_installed_completion_of_zsh_offers_commands_when_tab_is_pressed_for_the_first_time() {
    let directory = tempfile::tempdir().unwrap();
    let output = Command::new(PROGRAM).args(["completions", "zsh"]).output().unwrap();
    let script = String::from_utf8(output.stdout).unwrap();
    crate::support::write(&directory.path().join("_vipwatch"), &script);
    let path = directory.path().display();
    let load = format!("fpath=({path} $fpath); autoload -U compinit && compinit -u -D");
    complete(&["zsh", "-f", "-i"], &load);
}

#[test]
fn the_completion_of_fish_offers_commands_and_options() {
    complete(&["fish", "--no-config"], "vipwatch completions fish | source");
}
