// SPDX-License-Identifier: Apache-2.0
//! The command line of a monitor, as `/proc/PID/cmdline` shows it: which words are the interpreter, the program and the
//! arguments, and the values of the arguments.

use std::path::PathBuf;

use vipwatch_core::{InstanceId, LinkName, NetnsName, WatchedAddress, parse_vip};

/// The name of the program that the agent starts.
pub(crate) const PROGRAM: &str = "neutron-keepalived-state-change";

/// A monitor's command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MonitorCommand {
    /// The program as the command line names it; empty if it is not known.
    pub(crate) program: PathBuf,
    /// The words after the program.
    pub(crate) arguments: Vec<String>,
    pub(crate) router: InstanceId,
    pub(crate) netns: NetnsName,
    pub(crate) conf_dir: PathBuf,
    /// The link and the address that the monitor watches; `None` if link or address is not valid. The state is `backup` then.
    pub(crate) watch: Option<WatchedAddress>,
    pub(crate) pid_file: PathBuf,
    pub(crate) state_path: PathBuf,
    pub(crate) log_file: PathBuf,
    pub(crate) has_debug: bool,
}

impl MonitorCommand {
    /// Parses the words of a command line; `None` if it is not that of a monitor.
    pub(crate) fn parse(words: &[String]) -> Option<Self> {
        let separated = separated(words);
        let words = separated.as_deref().unwrap_or(words);
        let (program, arguments) = program_and_arguments(words)?;
        Some(Self { program: program.into(), ..Self::of_arguments(arguments)? })
    }

    /// The command with these arguments; `None` if one of the required ones is missing.
    pub(crate) fn of_arguments(arguments: &[String]) -> Option<Self> {
        let value = |name: &str| value_of(arguments, name);
        let conf_dir = PathBuf::from(value("conf_dir")?);
        let link: Option<LinkName> = value("monitor_interface")?.parse().ok();
        let vip = parse_vip(value("monitor_cidr")?);
        let log_file = value("log-file").unwrap_or("neutron-keepalived-state-change.log");
        Some(Self {
            program: PathBuf::new(),
            router: value("router_id")?.parse().ok()?,
            netns: value("namespace")?.parse().ok()?,
            watch: link.zip(vip).map(|(link, vip)| WatchedAddress { link, vip }),
            pid_file: value("pid_file")?.into(),
            state_path: value("state_path").unwrap_or("/var/lib/neutron").into(),
            // A relative name is relative to `conf_dir`; `join` keeps an absolute one.
            log_file: conf_dir.join(log_file),
            has_debug: arguments.iter().any(|word| word == "--debug" || word == "-d"),
            conf_dir,
            arguments: arguments.to_vec(),
        })
    }

    /// The arguments with each value as a word of its own, which is the only form that the script of Neutron 29 reads.
    pub(crate) fn spaced_arguments(&self) -> Vec<String> {
        let split = |word: &String| match word.split_once('=') {
            Some((name, value)) if name.starts_with("--") => {
                vec![name.to_owned(), value.to_owned()]
            }
            _ => vec![word.clone()],
        };
        self.arguments.iter().flat_map(split).collect()
    }

    /// Whether the values follow an equals sign, as agents up to 28 write them.
    pub(crate) fn has_joined_values(&self) -> bool {
        self.arguments.first().is_some_and(|word| word.contains('='))
    }

    /// Whether this is the same router, namespace and pid file. A second monitor with them is a duplicate.
    pub(crate) fn is_same_instance(&self, other: &Self) -> bool {
        (&self.router, &self.netns, &self.pid_file)
            == (&other.router, &other.netns, &other.pid_file)
    }
}

/// The last path component.
pub(crate) fn base_name(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}

/// The family of an interpreter, without its version: `python` for `/usr/bin/python3.11`.
pub(crate) fn interpreter_family(program: &str) -> Option<&'static str> {
    let name = base_name(program).trim_end_matches(|c| "0123456789.".contains(c));
    ["python", "sh"].into_iter().find(|family| name.ends_with(family))
}

/// The monitor that this process is, and its arguments; `None` if it is another program, for example one that starts a
/// monitor (`sudo`, `neutron-rootwrap`).
fn program_and_arguments(words: &[String]) -> Option<(&String, &[String])> {
    let is_monitor = |word: &String| base_name(word) == PROGRAM;
    if is_monitor(words.first()?) {
        return words.split_first();
    }
    interpreter_family(&words[0])?;
    let mut position = 1;
    while let Some(word) = words.get(position) {
        match word.as_str() {
            // Options of Python with a value.
            "-W" | "-X" => position += 2,
            option if option.starts_with('-') => position += 1,
            _ => return is_monitor(word).then(|| (word, &words[position + 1..])),
        }
    }
    None
}

/// Neutron's Python daemon loads a library that joins its command line to one word with spaces; up to 15.0 the daemon
/// also writes a title around it: `NAME (WORD WORD …)`. Returns the separate words; a value with spaces is joined
/// again. `None` if the words are separate already.
fn separated(words: &[String]) -> Option<Vec<String>> {
    // The rest of the memory of the first command line follows as empty words.
    let [joined, rest @ ..] = words else { return None };
    if !joined.contains(' ') || rest.iter().any(|word| !word.is_empty()) {
        return None;
    }
    let inner = joined.split_once(" (").and_then(|(_, rest)| rest.trim_end().strip_suffix(')'));
    let inner = inner.unwrap_or(joined).trim_end();
    let mut result: Vec<String> = Vec::new();
    for word in inner.split(' ') {
        match result.last_mut() {
            Some(last) if last.starts_with("--") && !word.starts_with("--") => {
                last.push(' ');
                last.push_str(word);
            }
            _ => result.push(word.to_owned()),
        }
    }
    Some(result)
}

/// The value of `--name=value` or `--name value`; the last one counts.
fn value_of<'a>(arguments: &'a [String], name: &str) -> Option<&'a str> {
    let mut found = None;
    for (position, word) in arguments.iter().enumerate() {
        let Some(option) = word.strip_prefix("--") else { continue };
        match option.split_once('=') {
            Some((given, value)) if given == name => found = Some(value),
            None if option == name => found = arguments.get(position + 1).map(String::as_str),
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: &str = "--router_id=R --namespace=qrouter-R --conf_dir=/c/R --log-file=/c/R/l.log \
                           --monitor_interface=ha-1 --monitor_cidr=169.254.0.1/24 \
                           --pid_file=/p/R.monitor.pid --state_path=/s --user=42 --group=43";

    fn words(line: &str) -> Vec<String> {
        line.split(' ').filter(|word| !word.is_empty()).map(str::to_owned).collect()
    }

    #[test]
    fn every_program_and_both_forms_of_values_are_read_alike() {
        let spaced = OPTIONS.replace('=', " ");
        let lines = [
            format!("/usr/bin/{PROGRAM} {OPTIONS}"),
            format!("{PROGRAM} {spaced}"),
            format!("/usr/bin/python3 /usr/bin/{PROGRAM} {OPTIONS}"),
            format!("/usr/libexec/platform-python3.6 -W ignore -s /opt/{PROGRAM} {OPTIONS}"),
            format!("/bin/sh /usr/bin/{PROGRAM} {spaced} --debug"),
        ];
        for line in lines {
            let command = MonitorCommand::parse(&words(&line)).unwrap_or_else(|| panic!("{line}"));
            assert_eq!((command.router.as_str(), command.netns.as_str()), ("R", "qrouter-R"));
            assert_eq!(command.log_file, PathBuf::from("/c/R/l.log"));
            assert!(command.watch.is_some());
            assert_eq!(command.has_debug, line.ends_with("--debug"));
            assert_eq!(command.spaced_arguments()[..2], ["--router_id", "R"]);
        }
    }

    #[test]
    fn a_command_line_that_was_joined_to_one_word_is_separated() {
        let helper = "--AGENT-root_helper=sudo neutron-rootwrap /etc/neutron/rootwrap.conf";
        let joined = format!("/usr/bin/python2 /usr/bin/{PROGRAM} {OPTIONS} {helper}");
        for line in [joined.clone(), format!("{PROGRAM} ({joined})")] {
            let command = MonitorCommand::parse(&[line, String::new()]).unwrap();
            assert_eq!(command.router.as_str(), "R");
            assert_eq!(command.arguments.last().map(String::as_str), Some(helper));
        }
    }

    #[test]
    fn a_program_that_starts_a_monitor_is_not_one() {
        for line in [
            format!("sudo {PROGRAM} {OPTIONS}"),
            format!(
                "/usr/bin/python3 /usr/bin/neutron-rootwrap /etc/rootwrap.conf {PROGRAM} {OPTIONS}"
            ),
            format!("/usr/bin/{PROGRAM} --router_id=R"),
            "tail -f log".to_owned(),
            String::new(),
        ] {
            assert_eq!(MonitorCommand::parse(&words(&line)), None, "{line}");
        }
    }
}
