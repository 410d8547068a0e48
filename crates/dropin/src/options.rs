//! Every option, once: parsing, `--help`, the manual and the documentation's check all read
//! this table.

use std::fmt::Write;

use crate::args::PROGRAM;

/// What an option means to the parser.
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
    /// Accepted because Neutron's own program accepted it; without effect here.
    Ignored,
}

/// One option.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Opt {
    pub(crate) name: &'static str,
    pub(crate) short: Option<char>,
    /// What the value is called; `None` for a switch.
    pub(crate) value: Option<&'static str>,
    pub(crate) meaning: OptionKind,
    /// Empty for spellings that `--help` does not list.
    pub(crate) help: &'static str,
}

const fn opt(
    name: &'static str,
    value: &'static str,
    meaning: OptionKind,
    help: &'static str,
) -> Opt {
    Opt { name, short: None, value: Some(value), meaning, help }
}

const fn switch(name: &'static str, meaning: OptionKind, help: &'static str) -> Opt {
    Opt { name, short: None, value: None, meaning, help }
}

const fn short(short: char, opt: Opt) -> Opt {
    Opt { short: Some(short), ..opt }
}

/// What the agent passes.
const AGENT: &[Opt] = &[
    opt("router_id", "ID", OptionKind::RouterId, "the router to speak for"),
    opt(
        "namespace",
        "NAME",
        OptionKind::Namespace,
        "network namespace to watch, as `ip netns` lists it",
    ),
    opt(
        "conf_dir",
        "DIR",
        OptionKind::ConfDir,
        "directory of the state file, keepalived.conf and conntrackd.conf",
    ),
    opt(
        "monitor_interface",
        "LINK",
        OptionKind::MonitorInterface,
        "link that bears the virtual address; waited for if missing",
    ),
    opt(
        "monitor_cidr",
        "CIDR",
        OptionKind::MonitorCidr,
        "virtual address with its prefix length, in any spelling",
    ),
    opt("pid_file", "FILE", OptionKind::PidFile, "where to write the process id"),
    opt(
        "state_path",
        "DIR",
        OptionKind::StatePath,
        "directory of the agent's socket `keepalived-state-change` [/var/lib/neutron]",
    ),
    opt("user", "USER", OptionKind::User, "user to become, by name or number; the agent's"),
    opt("group", "GROUP", OptionKind::Group, "group to become, by name or number"),
    opt(
        "log-file",
        "FILE",
        OptionKind::LogFile,
        "log file, in conf_dir if relative [neutron-keepalived-state-change.log]",
    ),
    switch(
        "enable_conntrackd",
        OptionKind::Conntrackd(true),
        "synchronise conntrackd before the agent is told",
    ),
    short('d', switch("debug", OptionKind::Debug(true), "log every step")),
];

/// What an operator may add.
const OPERATOR: &[Opt] = &[
    opt(
        "config-file",
        "FILE",
        OptionKind::ConfigFile,
        "configuration to read instead of the default files; may be repeated",
    ),
    opt(
        "config-dir",
        "DIR",
        OptionKind::ConfigDir,
        "directory of further *.conf files; may be repeated",
    ),
    opt(
        "primary_word",
        "WORD",
        OptionKind::PrimaryWord,
        "`master` for Neutron up to 16, `primary` from 17 [from the config file, else from how it was called]",
    ),
    opt(
        "audit_interval",
        "SECONDS",
        OptionKind::AuditInterval,
        "how often to compare itself with the kernel [60]",
    ),
    opt(
        "announce",
        "WHEN",
        OptionKind::Announce,
        "announce addresses by ARP and NDP: `off`, `legacy` (each new one), `primary` (all, on becoming primary) [`legacy` if the word is `master`, else `off`]",
    ),
    switch(
        "allow_any_agent",
        OptionKind::AllowAnyAgent,
        "tell whoever serves the socket, not only --user and root",
    ),
    switch("use-syslog", OptionKind::Syslog(true), "log to syslog as well [default]"),
    switch("nouse-syslog", OptionKind::Syslog(false), "log to the file only"),
    opt("syslog-log-facility", "NAME", OptionKind::SyslogFacility, "syslog facility [LOG_USER]"),
    switch("foreground", OptionKind::Foreground, "do not daemonise; for containers and systemd"),
    switch(
        "check",
        OptionKind::Check,
        "say what would be watched and written and what is wrong, and exit",
    ),
    short('h', switch("help", OptionKind::Help, "print this and exit")),
    switch("version", OptionKind::Version, "print the version and exit"),
];

/// Other spellings, and what Neutron's own program took and this one has no use for.
const SILENT: &[Opt] = &[
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
    AGENT.iter().chain(OPERATOR).chain(SILENT)
}

/// The option called `name`, or the only one that begins so: that is what argparse, which
/// Neutron used, allows.
pub(crate) fn find(name: &str) -> Option<&'static Opt> {
    if let Some(exact) = all().find(|opt| opt.name == name) {
        return Some(exact);
    }
    let mut begins = all().filter(|opt| opt.name.starts_with(name));
    let first = begins.next()?;
    begins.next().is_none().then_some(first)
}

/// The option with this letter.
pub(crate) fn find_short(letter: char) -> Option<&'static Opt> {
    all().find(|opt| opt.short == Some(letter))
}

/// The listed option most like `name`, to be suggested.
pub(crate) fn nearest(name: &str) -> Option<&'static str> {
    AGENT
        .iter()
        .chain(OPERATOR)
        .map(|opt| (distance(name, opt.name), opt.name))
        .filter(|(distance, _)| *distance <= 3)
        .min()
        .map(|(_, name)| name)
}

/// How many letters must change (Levenshtein).
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
         Watches the virtual address of one Neutron HA router, straight from the kernel. When\n\
         it comes or goes, writes `primary` or `backup` to DIR/state and tells the L3 agent,\n\
         until the agent has taken it. A drop-in for Neutron's own program, releases 12 to 29.\n\n\
         Values may follow their option after a space or an equals sign.\n\n"
    );
    section(&mut text, "What the agent passes", AGENT);
    section(&mut text, "What you may add", OPERATOR);
    text.push_str(
        "Signals: SIGTERM stops it; SIGHUP reopens the log.\n\
         Exit codes: 0 started (or stopped on request), 1 another instance runs or --check found\n\
         something, 2 wrong usage, 3 not permitted, 4 something needed is missing, 70 a defect.\n",
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
    fn an_unambiguous_beginning_is_enough() {
        assert_eq!(find("router").unwrap().name, "router_id");
        assert!(find("log").is_none(), "log-file, log-dir and others begin so");
        assert!(find("").is_none() && find("router-id").is_none());
    }

    #[test]
    fn a_slip_of_the_finger_is_recognised() {
        assert_eq!(nearest("router-id"), Some("router_id"));
        assert_eq!(nearest("monitor_crid"), Some("monitor_cidr"));
        assert_eq!(nearest("quite-something-else"), None);
    }

    #[test]
    fn no_option_is_listed_twice_and_each_is_explained() {
        let mut names: Vec<_> = all().map(|opt| opt.name).collect();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
        assert!(AGENT.iter().chain(OPERATOR).all(|opt| !opt.help.is_empty()));
    }
}
