// SPDX-License-Identifier: Apache-2.0
//! The command line of a keepalived process: which configuration it reads, in which namespace, and where its pid
//! files are. The grammar is that of `getopt_long` with the options of keepalived 2.2.
//!
//! Options without a meaning for vipwatch are skipped. Options of other versions are taken for options without an
//! argument.

/// The options of a running keepalived that matter to vipwatch. Paths are as on the command line, and may be
/// relative to the working directory of the process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandLine {
    /// `-f`, `--use-file`: the configuration file; `None` for keepalived's default.
    pub config: Option<String>,
    /// `-i`, `--config-id`: the id that decides conditional lines; `None` for the host name.
    pub config_id: Option<String>,
    /// `-s`, `--namespace`: the name of the network namespace; `None` for that of the configuration.
    pub netns: Option<String>,
    /// `-p`, `--pid`: the pid file of the parent; `None` for keepalived's default.
    pub pid_file: Option<String>,
    /// `-r`, `--vrrp_pid`: the pid file of the VRRP child; `None` for keepalived's default.
    pub vrrp_pid_file: Option<String>,
    /// Whether the process has a VRRP child: `-C` without `-P` leaves it out.
    pub has_vrrp: bool,
    /// `-P` without `-C`: the VRRP child is the only child, apart from one for BFD.
    pub has_vrrp_only: bool,
    /// Whether the process stays: a test of the configuration, a version or a help text ends at once.
    pub is_daemon: bool,
}

/// The file that keepalived reads without `-f`.
pub const DEFAULT_CONFIG: &str = "/etc/keepalived/keepalived.conf";

/// Whether an option has an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Argument {
    None,
    Required,
    /// Only in the same word: `-tFILE`, `--config-test=FILE`.
    Optional,
}

/// Every long option of keepalived 2.2 with its letter. An option without a letter has a digit here.
const LONG_OPTIONS: &[(&str, char)] = &[
    ("use-file", 'f'),
    ("vrrp", 'P'),
    ("check", 'C'),
    ("no_bfd", 'B'),
    ("all", '1'),
    ("log-console", 'l'),
    ("log-detail", 'D'),
    ("log-facility", 'S'),
    ("log-file", 'g'),
    ("flush-log-file", '2'),
    ("no-syslog", 'G'),
    ("umask", 'u'),
    ("release-vips", 'X'),
    ("dont-release-vrrp", 'V'),
    ("dont-release-ipvs", 'I'),
    ("dont-respawn", 'R'),
    ("dont-fork", 'n'),
    ("dump-conf", 'd'),
    ("pid", 'p'),
    ("vrrp_pid", 'r'),
    ("genhash", 'T'),
    ("checkers_pid", 'c'),
    ("address-monitoring", 'a'),
    ("bfd_pid", 'b'),
    ("snmp", 'x'),
    ("snmp-agent-socket", 'A'),
    ("namespace", 's'),
    ("core-dump", 'm'),
    ("core-dump-pattern", 'M'),
    ("all-config", 'e'),
    ("config-id", 'i'),
    ("signum", '3'),
    ("config-test", 't'),
    ("version", 'v'),
    ("help", 'h'),
];

fn argument_of(letter: char) -> Argument {
    match letter {
        'f' | 'S' | 'u' | 'p' | 'r' | 'c' | 'b' | 'A' | 's' | 'i' | '3' => Argument::Required,
        'g' | 'M' | 't' => Argument::Optional,
        _ => Argument::None,
    }
}

impl CommandLine {
    /// Parses the words of a command line, without the name of the program.
    pub fn parse<'a>(words: impl IntoIterator<Item = &'a str>) -> Self {
        let mut parser = Parser { line: Self::default(), has_p: false, has_c: false };
        let mut words = words.into_iter();
        while let Some(word) = words.next() {
            match word.strip_prefix("--") {
                Some("") => break,
                Some(long) => parser.long(long, &mut words),
                // `getopt_long` moves words that are no options to the end.
                None => {
                    if let Some(letters) = word.strip_prefix('-') {
                        parser.short(letters, &mut words);
                    }
                }
            }
        }
        let Parser { mut line, has_p, has_c } = parser;
        line.has_vrrp = has_p || !has_c;
        line.has_vrrp_only = has_p && !has_c;
        line
    }

    /// The configuration file, as on the command line.
    pub fn config(&self) -> &str {
        self.config.as_deref().unwrap_or(DEFAULT_CONFIG)
    }
}

impl Default for CommandLine {
    fn default() -> Self {
        Self {
            config: None,
            config_id: None,
            netns: None,
            pid_file: None,
            vrrp_pid_file: None,
            has_vrrp: true,
            has_vrrp_only: false,
            is_daemon: true,
        }
    }
}

struct Parser {
    line: CommandLine,
    has_p: bool,
    has_c: bool,
}

impl Parser {
    /// A word of short options, without its `-`: several letters may share it, and the rest after a letter with an
    /// argument is the argument.
    fn short<'a>(&mut self, letters: &'a str, words: &mut impl Iterator<Item = &'a str>) {
        let mut rest = letters;
        while let Some(letter) = rest.chars().next() {
            rest = &rest[letter.len_utf8()..];
            match argument_of(letter) {
                Argument::None => self.option(letter, None),
                Argument::Required if rest.is_empty() => return self.option(letter, words.next()),
                Argument::Required | Argument::Optional => return self.option(letter, Some(rest)),
            }
        }
    }

    /// A long option, without its `--`; an unambiguous beginning of its name is enough.
    fn long<'a>(&mut self, word: &'a str, words: &mut impl Iterator<Item = &'a str>) {
        let (name, value) =
            word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
        let exact = LONG_OPTIONS.iter().find(|(known, _)| *known == name);
        let mut starting = LONG_OPTIONS.iter().filter(|(known, _)| known.starts_with(name));
        let only = starting.next().filter(|_| starting.next().is_none());
        let Some((_, letter)) = exact.or(only) else { return };
        match (argument_of(*letter), value) {
            (Argument::Required, None) => self.option(*letter, words.next()),
            (_, value) => self.option(*letter, value),
        }
    }

    fn option(&mut self, letter: char, value: Option<&str>) {
        let value = || value.map(str::to_owned);
        match letter {
            'f' => self.line.config = value(),
            'i' => self.line.config_id = value(),
            's' => self.line.netns = value(),
            'p' => self.line.pid_file = value(),
            'r' => self.line.vrrp_pid_file = value(),
            'P' => self.has_p = true,
            'C' => self.has_c = true,
            't' | 'v' | 'h' | 'T' | '3' => self.line.is_daemon = false,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> CommandLine {
        CommandLine::parse(text.split_whitespace())
    }

    #[test]
    fn short_options_may_share_a_word_and_have_their_argument_in_it() {
        let line = parse("-lnDf/etc/a.conf -p /run/a.pid -r/run/b.pid -i web -s blue");
        assert_eq!(line.config.as_deref(), Some("/etc/a.conf"));
        assert_eq!(line.pid_file.as_deref(), Some("/run/a.pid"));
        assert_eq!(line.vrrp_pid_file.as_deref(), Some("/run/b.pid"));
        assert_eq!(line.config_id.as_deref(), Some("web"));
        assert_eq!(line.netns.as_deref(), Some("blue"));
        assert!(line.has_vrrp && !line.has_vrrp_only && line.is_daemon);
    }

    #[test]
    fn long_options_take_an_equals_sign_a_next_word_or_a_shortened_name() {
        assert_eq!(parse("--use-file=/a").config(), "/a");
        assert_eq!(parse("--use-file /a --dont-fork").config(), "/a");
        assert_eq!(parse("--use /a").config(), "/a");
        assert_eq!(parse("--vrrp_pid=/v").vrrp_pid_file.as_deref(), Some("/v"));
        assert_eq!(parse("--config-id x --namespace=n").netns.as_deref(), Some("n"));
        // `--conf` is the beginning of two options, and `--future` of none.
        assert_eq!(parse("--conf /a --future").config(), DEFAULT_CONFIG);
    }

    #[test]
    fn the_command_line_of_neutron_is_read() {
        let line = parse(
            "-P -f /var/lib/neutron/ha_confs/r/keepalived.conf -p /var/lib/neutron/ha_confs/r.pid.keepalived \
             -r /var/lib/neutron/ha_confs/r.pid.keepalived-vrrp -D",
        );
        assert_eq!(line.config(), "/var/lib/neutron/ha_confs/r/keepalived.conf");
        assert_eq!(
            line.vrrp_pid_file.as_deref(),
            Some("/var/lib/neutron/ha_confs/r.pid.keepalived-vrrp")
        );
        assert!(line.has_vrrp_only);
    }

    #[test]
    fn a_process_without_vrrp_and_one_that_ends_at_once_are_recognised() {
        assert!(!parse("-C").has_vrrp && parse("-CP").has_vrrp && parse("-P").has_vrrp);
        for words in ["-t", "--config-test=/log", "-nt/log", "-v", "--help", "--signum=STOP"] {
            assert!(!parse(words).is_daemon, "{words}");
        }
    }

    #[test]
    fn the_last_of_two_options_counts_and_an_argument_may_be_missing() {
        assert_eq!(parse("-f /a -f /b").config(), "/b");
        assert_eq!(parse("-f").config(), DEFAULT_CONFIG);
        assert_eq!(parse("-n -- -f /a").config(), DEFAULT_CONFIG);
        assert_eq!(parse("word -f /a").config(), "/a");
    }
}
