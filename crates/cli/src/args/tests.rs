//! Tests of the command line: help texts, messages of wrong usage, and options of earlier releases.

use super::*;

#[test]
fn receiver_and_its_alias_agent_are_the_same_command() {
    for name in ["receiver", "agent"] {
        let args = CliArgs::try_parse_from(["vipwatch", name, "--simulate", "threaded"]).unwrap();
        assert!(matches!(args.command, Command::Receiver(_)), "{name}");
    }
}

/// The command with all its subcommands, and their names.
fn commands(command: &clap::Command, path: &str) -> Vec<(String, clap::Command)> {
    let mut all = vec![(path.to_owned(), command.clone())];
    for subcommand in command.get_subcommands().filter(|command| command.get_name() != "help") {
        all.extend(commands(subcommand, &format!("{path} {}", subcommand.get_name())));
    }
    all
}

#[test]
fn help_of_every_command() {
    let mut root = CliArgs::command().term_width(100);
    root.build();
    for (path, mut command) in commands(&root, "vipwatch") {
        let help = command.render_long_help().to_string();
        insta::assert_snapshot!(path.replace(' ', "_"), help);
    }
}

#[test]
fn every_command_has_a_verb_first_summary_of_one_line_and_examples() {
    let root = CliArgs::command();
    for (path, command) in commands(&root, "vipwatch") {
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        assert!(about.len() <= 100 && about.starts_with(char::is_uppercase), "{path}: {about}");
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let examples = help.lines().filter(|line| line.starts_with("  vipwatch ")).count();
        let has_heading = help.starts_with("Examples:\n");
        let is_complete = has_heading && (2..=3).contains(&examples);
        assert!(path == "vipwatch" || is_complete, "{path} has {examples} examples");
    }
}

#[test]
fn options_of_earlier_releases_still_work() {
    for line in [
        "status --format json",
        "history --id VI_1 --limit 5",
        "watch --transitions 1",
        "watch --changes 1",
    ] {
        let args = ["vipwatch"].into_iter().chain(line.split(' '));
        assert!(CliArgs::try_parse_from(args).is_ok(), "{line}");
    }
}

#[test]
fn a_silence_needs_an_instance_or_all_and_a_time_and_a_reason() {
    let parse = |args: &[&str]| {
        CliArgs::try_parse_from(["vipwatch", "silence"].iter().chain(args)).map(|args| args.command)
    };
    let valid: [&[&str]; 5] = [
        &["VI_1", "--for", "2h", "--reason", "x"],
        &["--all", "--for", "2h", "--reason", "x"],
        &["add", "list", "--for", "2h", "--reason", "x"],
        &["list"],
        &["remove", "3"],
    ];
    for args in valid {
        assert!(parse(args).is_ok(), "{args:?}: {}", parse(args).unwrap_err());
    }
    let Ok(Command::Silence(SilenceArgs { command: None, add })) = parse(valid[0]) else {
        panic!("not the short form")
    };
    assert_eq!((add.id.as_deref(), add.span), (Some("VI_1"), Some(Duration::from_hours(2))));
    let invalid: [&[&str]; 6] = [
        &[],
        &["VI_1"],
        &["VI_1", "--for", "2h"],
        &["--for", "2h", "--reason", "x"],
        &["VI_1", "--all", "--for", "2h", "--reason", "x"],
        &["remove"],
    ];
    for args in invalid {
        let error = parse(args).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{args:?}");
    }
}

#[test]
fn messages_of_wrong_usage() {
    let lines = [
        "stats",
        "status --role boss",
        "status -o xml",
        "history --since tomorrow",
        "watch -n 0",
        "watch --after x",
        "silence VI_1 --for 2",
        "silence",
        "silence --for 2h --reason x",
    ];
    let mut text = String::new();
    for line in lines {
        let args = ["vipwatch"].into_iter().chain(line.split(' '));
        let error = CliArgs::try_parse_from(args).unwrap_err();
        text.extend(["$ vipwatch ", line, "\n", &error.to_string(), "\n"]);
    }
    insta::assert_snapshot!(text);
}

#[test]
fn the_command_line_is_consistent() {
    CliArgs::command().debug_assert();
}
