// SPDX-License-Identifier: Apache-2.0
//! Tests of the command line: help texts and messages of wrong usage.

use super::*;

#[test]
fn doctor_and_findings_take_ids_of_instances() {
    for name in ["doctor", "findings"] {
        let args = CliArgs::try_parse_from(["vipwatch", name, "web", "192.0.2.1"]).unwrap();
        let selection = match args.command {
            Command::Doctor(options) => options.selection,
            Command::Findings(options) => options.selection,
            other => panic!("{other:?}"),
        };
        assert_eq!(selection.filter().unwrap().ids, ["web", "192.0.2.1"]);
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
fn the_address_of_etcd_is_accepted_at_every_place() {
    for line in [
        "--etcd http://a:1,http://b:2 --domain prod cluster status",
        "cluster --etcd http://a:1,http://b:2 --domain prod nodes",
        "cluster watch --etcd http://a:1 --etcd http://b:2 --domain prod",
        "--domain prod cluster findings --etcd http://a:1,http://b:2",
    ] {
        let args = ["vipwatch"].into_iter().chain(line.split(' '));
        let args = CliArgs::try_parse_from(args).unwrap_or_else(|error| panic!("{line}: {error}"));
        let Command::Cluster(cluster) = &args.command else { panic!("not cluster: {line}") };
        let etcd = cluster.command.etcd().clone().or(&cluster.etcd).or(&args.etcd);
        assert_eq!(etcd.etcd, ["http://a:1", "http://b:2"], "{line}");
        assert_eq!(etcd.domain.as_deref(), Some("prod"), "{line}");
    }
}

#[test]
fn only_cluster_accepts_the_address_of_etcd() {
    let args = CliArgs::try_parse_from(["vipwatch", "--etcd", "http://a:1", "status"]).unwrap();
    let error = args.etcd.check_unused().unwrap_err();
    assert!(error.message.contains("only `vipwatch cluster`"), "{}", error.message);
}

#[test]
fn the_command_line_is_consistent() {
    CliArgs::command().debug_assert();
}

/// The words of a command line of a shell; quotes are single ones.
fn shell_words(line: &str) -> Vec<String> {
    let parts = line.split('\'').enumerate();
    // Every second part is quoted.
    let words = parts.flat_map(|(number, part)| match number % 2 {
        0 => part.split_whitespace().map(str::to_owned).collect(),
        _ => vec![part.to_owned()],
    });
    words.collect()
}

/// The command lines of `vipwatch` in a document: after a prompt, in a task of Ansible, or in a unit of systemd.
fn command_lines(text: &str) -> Vec<Vec<String>> {
    let starts = ["# ", "$ ", "ansible.builtin.command: ", "ExecStart=", "ExecStop=-/usr/bin/"];
    let of_line = |line: &str| {
        let line = line.trim_start();
        let command = starts.iter().find_map(|start| line.strip_prefix(start))?;
        let command = command.split(['|', '>']).next()?;
        command.starts_with("vipwatch ").then(|| shell_words(command))
    };
    text.lines().filter_map(of_line).collect()
}

#[test]
fn the_command_lines_of_the_guides_are_valid() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../");
    let files = [
        ("docs/guides/maintenance.md", 8),
        ("docs/guides/web-access.md", 1),
        ("docs/guides/with-keepalived.md", 5),
        ("docs/guides/terminal.md", 2),
        ("packaging/systemd/vipwatch-drain.service", 1),
    ];
    for (file, minimum) in files {
        let text = std::fs::read_to_string(format!("{root}{file}")).unwrap();
        let lines = command_lines(&text);
        assert!(lines.len() >= minimum, "{file} has {} command lines", lines.len());
        for line in lines {
            let parsed = CliArgs::try_parse_from(&line);
            assert!(parsed.is_ok(), "{file}: {line:?}: {}", parsed.unwrap_err());
        }
    }
}

#[test]
fn systemd_waits_longer_than_the_drain_check_at_shutdown() {
    let unit = include_str!("../../../../packaging/systemd/vipwatch-drain.service");
    let lines = command_lines(unit);
    let Command::DrainCheck(options) = CliArgs::try_parse_from(&lines[0]).unwrap().command else {
        panic!("not drain-check")
    };
    let stop = unit.lines().find_map(|line| line.strip_prefix("TimeoutStopSec=")).unwrap();
    assert!(options.wait.unwrap() < Duration::from_secs(stop.parse().unwrap()));
    // systemd stops units in the reverse order of their start.
    assert!(unit.contains("\nAfter=vipwatch-node.service\nBefore=keepalived.service\n"));
}
