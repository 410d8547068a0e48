// SPDX-License-Identifier: Apache-2.0
//! The table of all options. The parser, `--help` and the check of `docs/reference/options.md` use it.

use std::fmt::Write;

use crate::args::PROGRAM;

/// What the parser does with an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OptionKind {
    RouterId,
    Namespace,
    ConfDir,
    MonitorInterface,
    MonitorCidr,
    PidFile,
    StatePath,
    User,
    Group,
    LogFile,
    ConfigFile,
    ConfigDir,
    SyslogFacility,
    Conntrackd(bool),
    Debug(bool),
    Syslog(bool),
    PrimaryWord,
    AuditInterval,
    Announce,
    AllowAnyAgent,
    Foreground,
    Check,
    Help,
    Version,
    /// Accepted for compatibility with Neutron's own program; it has no effect.
    Ignored,
}

/// One option.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Opt {
    pub(crate) name: &'static str,
    pub(crate) short: Option<char>,
    /// Name of the value in `--help`; `None` for a switch.
    pub(crate) value: Option<&'static str>,
    pub(crate) kind: OptionKind,
    /// Empty for spellings that `--help` does not list.
    pub(crate) help: &'static str,
}

const fn opt(name: &'static str, value: &'static str, kind: OptionKind, help: &'static str) -> Opt {
    Opt { name, short: None, value: Some(value), kind, help }
}

const fn switch(name: &'static str, kind: OptionKind, help: &'static str) -> Opt {
    Opt { name, short: None, value: None, kind, help }
}

const fn short(short: char, opt: Opt) -> Opt {
    Opt { short: Some(short), ..opt }
}

/// The options that the agent passes.
const AGENT: &[Opt] = &[
    opt("router_id", "ID", OptionKind::RouterId, "monitor this router"),
    opt(
        "namespace",
        "NAME",
        OptionKind::Namespace,
        "watch this network namespace, as `ip netns` lists it",
    ),
    opt(
        "conf_dir",
        "DIR",
        OptionKind::ConfDir,
        "use this directory for the state file, keepalived.conf and conntrackd.conf",
    ),
    opt(
        "monitor_interface",
        "LINK",
        OptionKind::MonitorInterface,
        "watch this link for the virtual address; wait for it if it is missing",
    ),
    opt(
        "monitor_cidr",
        "CIDR",
        OptionKind::MonitorCidr,
        "watch this virtual address with prefix length, in any notation",
    ),
    opt("pid_file", "FILE", OptionKind::PidFile, "write the process id to this file"),
    opt(
        "state_path",
        "DIR",
        OptionKind::StatePath,
        "find the agent's socket `keepalived-state-change` in this directory [/var/lib/neutron]",
    ),
    opt(
        "user",
        "USER",
        OptionKind::User,
        "run as this user, by name or number; normally the agent's",
    ),
    opt("group", "GROUP", OptionKind::Group, "run as this group, by name or number"),
    opt(
        "log-file",
        "FILE",
        OptionKind::LogFile,
        "log to this file, relative to conf_dir [neutron-keepalived-state-change.log]",
    ),
    switch(
        "enable_conntrackd",
        OptionKind::Conntrackd(true),
        "synchronise conntrackd before notifying the agent",
    ),
    short('d', switch("debug", OptionKind::Debug(true), "log every step")),
];

/// The options that an operator may add.
const OPERATOR: &[Opt] = &[
    opt(
        "config-file",
        "FILE",
        OptionKind::ConfigFile,
        "read this configuration instead of the default files; may be repeated",
    ),
    opt(
        "config-dir",
        "DIR",
        OptionKind::ConfigDir,
        "read the *.conf files of this directory; may be repeated",
    ),
    opt(
        "primary_word",
        "WORD",
        OptionKind::PrimaryWord,
        "use `master` (Neutron up to 16) or `primary` (from 17) [config file, else the command line's style]",
    ),
    opt(
        "audit_interval",
        "SECONDS",
        OptionKind::AuditInterval,
        "compare the state with the kernel every SECONDS [60]",
    ),
    opt(
        "announce",
        "WHEN",
        OptionKind::Announce,
        "announce addresses: `off`, `legacy` (each new one), `primary` (all, on becoming primary) [`legacy` with `master`, else `off`]",
    ),
    switch(
        "allow_any_agent",
        OptionKind::AllowAnyAgent,
        "notify any process that serves the socket, not only --user and root",
    ),
    switch("use-syslog", OptionKind::Syslog(true), "log to syslog as well [default]"),
    switch("nouse-syslog", OptionKind::Syslog(false), "log to the file only"),
    opt(
        "syslog-log-facility",
        "NAME",
        OptionKind::SyslogFacility,
        "use this syslog facility [LOG_USER]",
    ),
    switch(
        "foreground",
        OptionKind::Foreground,
        "stay in the foreground and log to standard error as well, for containers and systemd",
    ),
    switch(
        "check",
        OptionKind::Check,
        "print the settings, the current state and any problems, and exit",
    ),
    short('h', switch("help", OptionKind::Help, "print this and exit")),
    switch("version", OptionKind::Version, "print the version and exit"),
];

/// Options that `--help` does not list: other spellings, and options of Neutron's own program that have no effect here.
const HIDDEN: &[Opt] = &[
    switch("noenable_conntrackd", OptionKind::Conntrackd(false), ""),
    switch("nodebug", OptionKind::Debug(false), ""),
    opt("logfile", "FILE", OptionKind::LogFile, ""),
    opt("log-dir", "DIR", OptionKind::Ignored, ""),
    opt("logdir", "DIR", OptionKind::Ignored, ""),
    opt("log-config-append", "FILE", OptionKind::Ignored, ""),
    opt("log-config", "FILE", OptionKind::Ignored, ""),
    opt("log_config", "FILE", OptionKind::Ignored, ""),
    opt("log-date-format", "FORMAT", OptionKind::Ignored, ""),
    short('v', switch("verbose", OptionKind::Ignored, "")),
    switch("noverbose", OptionKind::Ignored, ""),
    switch("watch-log-file", OptionKind::Ignored, ""),
    switch("nowatch-log-file", OptionKind::Ignored, ""),
    switch("use-journal", OptionKind::Ignored, ""),
    switch("nouse-journal", OptionKind::Ignored, ""),
    switch("use-json", OptionKind::Ignored, ""),
    switch("nouse-json", OptionKind::Ignored, ""),
    switch("use-stderr", OptionKind::Ignored, ""),
    switch("nouse-stderr", OptionKind::Ignored, ""),
    opt("AGENT-root_helper", "COMMAND", OptionKind::Ignored, ""),
    opt("AGENT-root_helper_daemon", "COMMAND", OptionKind::Ignored, ""),
    switch("AGENT-use_helper_for_ns_read", OptionKind::Ignored, ""),
    switch("AGENT-nouse_helper_for_ns_read", OptionKind::Ignored, ""),
];

fn all() -> impl Iterator<Item = &'static Opt> {
    AGENT.iter().chain(OPERATOR).chain(HIDDEN)
}

/// The option called `name`, or the only one that starts with `name`. Neutron's own program used argparse, which
/// accepts such prefixes.
pub(crate) fn find(name: &str) -> Option<&'static Opt> {
    if let Some(exact) = all().find(|opt| opt.name == name) {
        return Some(exact);
    }
    let mut matches = all().filter(|opt| opt.name.starts_with(name));
    let first = matches.next()?;
    matches.next().is_none().then_some(first)
}

/// The option with this short name.
pub(crate) fn find_short(letter: char) -> Option<&'static Opt> {
    all().find(|opt| opt.short == Some(letter))
}

/// The listed option with the name most similar to `name`, as a suggestion; `None` if none is similar.
pub(crate) fn nearest(name: &str) -> Option<&'static str> {
    AGENT
        .iter()
        .chain(OPERATOR)
        .map(|opt| (distance(name, opt.name), opt.name))
        .filter(|(distance, _)| *distance <= 3)
        .min()
        .map(|(_, name)| name)
}

/// How many bytes must be changed, added or removed to turn `a` into `b` (Levenshtein distance).
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.bytes().enumerate() {
            let changed = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

/// The text of `--help`.
pub(crate) fn help() -> String {
    let mut text = format!(
        "Usage: {PROGRAM} --router_id ID --namespace NAME --conf_dir DIR \\\n           \
         --monitor_interface LINK --monitor_cidr CIDR --pid_file FILE [OPTION...]\n\n\
         Watches the virtual address of one Neutron HA router through the kernel's events. When it\n\
         appears or disappears, writes `primary` or `backup` to DIR/state and notifies the L3 agent\n\
         until the agent acknowledges. Replaces Neutron's own program, releases 12 to 29.\n\n\
         Values may follow their option after a space or an equals sign.\n\n"
    );
    section(&mut text, "Options that the agent passes", AGENT);
    section(&mut text, "Options that you may add", OPERATOR);
    text.push_str(
        "Signals: SIGTERM stops it; SIGHUP reopens the log.\n\
         Exit codes: 0 started (or stopped on request), 1 another monitor runs or --check found a\n\
         problem, 2 wrong usage, 3 not permitted, 4 a resource is missing, 70 a defect.\n",
    );
    text
}

fn section(text: &mut String, title: &str, options: &[Opt]) {
    let _ = writeln!(text, "{title}:");
    for opt in options {
        let short = opt.short.map_or(String::new(), |letter| format!("-{letter}, "));
        let value = opt.value.map_or(String::new(), |value| format!(" {value}"));
        let _ = writeln!(text, "  {:<26} {}", format!("{short}--{}{value}", opt.name), opt.help);
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unambiguous_prefix_of_a_name_is_enough() {
        assert_eq!(find("router").unwrap().name, "router_id");
        assert!(find("log").is_none(), "log-file, log-dir and others start with it");
        assert!(find("").is_none() && find("router-id").is_none());
    }

    #[test]
    fn the_option_closest_to_a_misspelled_name_is_suggested() {
        assert_eq!(nearest("router-id"), Some("router_id"));
        assert_eq!(nearest("monitor_crid"), Some("monitor_cidr"));
        assert_eq!(nearest("quite-something-else"), None);
    }

    #[test]
    fn every_option_is_listed_once_and_has_a_help_text() {
        let mut names: Vec<_> = all().map(|opt| opt.name).collect();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
        assert!(AGENT.iter().chain(OPERATOR).all(|opt| !opt.help.is_empty()));
    }
}
