// SPDX-License-Identifier: Apache-2.0
//! The manual page of one command.

use clap::{Arg, Command};
use clap_mangen::roff::{Inline, Roff, bold, italic, roman};

/// The commands of section 8, for the administration of the system.
const SERVICES: [&str; 3] = ["vipwatch-node", "vipwatch-receiver", "vipwatch-hook-runner"];

const FILES: [(&str, &str); 4] = [
    ("/etc/vipwatch/vipwatch.toml", "The configuration: vipwatch.toml(5)."),
    ("/run/vipwatch/node.sock", "The socket of the node, for the other commands and for programs."),
    ("/run/vipwatch/receiver.sock", "The socket of a receiver process."),
    ("/var/lib/vipwatch/", "The history of the node and the journal of the receiver."),
];

/// The name of the page: `vipwatch`, `vipwatch-status`, `vipwatch-config-check`.
pub(super) fn page_name(command: &Command) -> String {
    command.get_bin_name().unwrap_or(command.get_name()).replace(' ', "-")
}

/// The section of a page.
pub(super) fn section(name: &str) -> u8 {
    if SERVICES.contains(&name) { 8 } else { 1 }
}

pub(super) fn page(command: &Command) -> Roff {
    let name = page_name(command);
    let mut page = Roff::new();
    page.control("SH", ["NAME"]);
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    page.text([roman(format!("{name} - {}", about.to_lowercase_first()))]);
    page.control("SH", ["SYNOPSIS"]);
    synopsis(&mut page, command);
    page.control("SH", ["DESCRIPTION"]);
    let long = command.get_long_about().or(command.get_about());
    paragraphs(&mut page, &long.map(ToString::to_string).unwrap_or_default());
    options(&mut page, command);
    subcommands(&mut page, command);
    examples(&mut page, command);
    if name == "vipwatch-node" || name == "vipwatch-receiver" {
        signals(&mut page);
    }
    list(&mut page, "EXIT STATUS", &crate::failure::EXIT_CODES);
    environment(&mut page, command);
    list(&mut page, "FILES", &FILES);
    see_also(&mut page, command, &name);
    page
}

trait LowercaseFirst {
    fn to_lowercase_first(&self) -> String;
}

impl LowercaseFirst for str {
    fn to_lowercase_first(&self) -> String {
        let mut letters = self.chars();
        let first = letters.next().map(|letter| letter.to_lowercase().to_string());
        format!("{}{}", first.unwrap_or_default(), letters.as_str())
    }
}

/// `vipwatch status [OPTIONS] [ID|ADDRESS]...`, from clap.
fn synopsis(page: &mut Roff, command: &Command) {
    let usage = command.clone().render_usage().to_string();
    for (number, line) in usage.trim_start_matches("Usage:").lines().enumerate() {
        if number > 0 {
            page.control("br", []);
        }
        let line = line.trim();
        let name = command.get_bin_name().unwrap_or(command.get_name());
        match line.strip_prefix(name) {
            Some(rest) => page.text([bold(name), roman(rest)]),
            None => page.text([roman(line)]),
        };
    }
}

/// Paragraphs are separated by empty lines; indented lines stay as they are.
fn paragraphs(page: &mut Roff, text: &str) {
    for (number, paragraph) in text.split("\n\n").enumerate() {
        if number > 0 {
            page.control("PP", []);
        }
        if paragraph.lines().any(|line| line.starts_with("  ")) {
            verbatim(page, paragraph);
        } else {
            page.text([roman(paragraph.replace('\n', " "))]);
        }
    }
}

/// Lines that are not filled.
fn verbatim(page: &mut Roff, text: &str) {
    page.control("nf", []);
    for line in text.lines() {
        page.text([roman(line)]);
    }
    page.control("fi", []);
}

fn options(page: &mut Roff, command: &Command) {
    let mut arguments: Vec<&Arg> =
        command.get_arguments().filter(|argument| !argument.is_hide_set()).collect();
    arguments.sort_by_key(|argument| !argument.is_positional());
    if arguments.is_empty() {
        return;
    }
    page.control("SH", ["OPTIONS"]);
    for argument in arguments {
        page.control("TP", []);
        page.text(argument_head(argument));
        let help = argument.get_long_help().or(argument.get_help());
        let mut text = help.map(ToString::to_string).unwrap_or_default();
        let values: Vec<String> = argument
            .get_possible_values()
            .iter()
            .map(|value| value.get_name().to_owned())
            .collect();
        if !values.is_empty() && argument.get_action().takes_values() {
            text = format!("{text}. One of: {}", values.join(", "));
        }
        if let Some(variable) = argument.get_env() {
            text = format!("{text}. Environment: {}", variable.to_string_lossy());
        }
        page.text([roman(text.replace('\n', " "))]);
    }
}

/// `-o, --output FORMAT`
fn argument_head(argument: &Arg) -> Vec<Inline> {
    let mut head = Vec::new();
    if let Some(short) = argument.get_short() {
        head.push(bold(format!("-{short}")));
    }
    if let Some(long) = argument.get_long() {
        if !head.is_empty() {
            head.push(roman(", "));
        }
        head.push(bold(format!("--{long}")));
    }
    let takes_value = argument.is_positional() || argument.get_action().takes_values();
    if takes_value {
        if !head.is_empty() {
            head.push(roman(" "));
        }
        let names = argument.get_value_names().unwrap_or_default();
        let names: Vec<&str> = names.iter().map(clap::builder::Str::as_str).collect();
        head.push(italic(names.join(" ")));
    }
    head
}

fn subcommands(page: &mut Roff, command: &Command) {
    let visible = command
        .get_subcommands()
        .filter(|command| !command.is_hide_set() && command.get_name() != "help");
    for (number, subcommand) in visible.enumerate() {
        if number == 0 {
            page.control("SH", ["COMMANDS"]);
        }
        let name = page_name(subcommand);
        page.control("TP", []);
        page.text([bold(&name), roman(format!("({})", section(&name)))]);
        page.text([roman(subcommand.get_about().map(ToString::to_string).unwrap_or_default())]);
    }
}

/// The examples are the part of the help after the options, below `Examples:`.
fn examples(page: &mut Roff, command: &Command) {
    let Some(text) = command.get_after_help().map(ToString::to_string) else { return };
    let Some(examples) = text.strip_prefix("Examples:\n") else { return };
    page.control("SH", ["EXAMPLES"]);
    verbatim(page, examples);
}

fn signals(page: &mut Roff) {
    const SIGNALS: [(&str, &str); 4] = [
        ("SIGTERM, SIGINT", "Stop. The history is on the disk when the process ends."),
        ("SIGHUP", "Read the configuration again. vipwatch-reload(1) also returns the result."),
        (
            "SIGUSR1",
            "Write the state to the log: one line for each instance, target and thread, and the queues.",
        ),
        ("SIGUSR2", "Begin to log debug messages, or end it."),
    ];
    list(page, "SIGNALS", &SIGNALS);
}

fn environment(page: &mut Roff, command: &Command) {
    let has = |name: &str| {
        command.get_arguments().any(|argument| argument.get_env().is_some_and(|env| env == name))
    };
    let all = [
        ("VIPWATCH_CONFIG", "The configuration file, as --config."),
        ("VIPWATCH_SOCKET", "The socket of the node, as --socket."),
    ];
    let is_root = command.get_bin_name() == Some("vipwatch");
    let used: Vec<_> = all.into_iter().filter(|(name, _)| is_root || has(name)).collect();
    list(page, "ENVIRONMENT", &used);
}

fn list(page: &mut Roff, title: &str, items: &[(&str, &str)]) {
    if items.is_empty() {
        return;
    }
    page.control("SH", [title]);
    for (name, text) in items {
        page.control("TP", []);
        page.text([bold(*name)]);
        page.text([roman(*text)]);
    }
}

fn see_also(page: &mut Roff, command: &Command, name: &str) {
    let mut pages =
        vec!["vipwatch(1)", "vipwatch-node(8)", "vipwatch-receiver(8)", "vipwatch.toml(5)"];
    pages.retain(|page| *page != format!("{name}({})", section(name)));
    let children: Vec<String> = command
        .get_subcommands()
        .filter(|_| name != "vipwatch")
        .map(page_name)
        .filter(|child| !child.ends_with("-help"))
        .map(|child| format!("{child}({})", section(&child)))
        .collect();
    let all: Vec<&str> = children.iter().map(String::as_str).chain(pages).collect();
    page.control("SH", ["SEE ALSO"]);
    page.text([roman(all.join(", "))]);
}
