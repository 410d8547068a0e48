//! The few settings that come from files, in oslo.config's INI format.
//!
//! `neutron.conf` is read because Neutron's own program read it; it also holds passwords,
//! so of every file only the keys named here are kept.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use vipwatch_linux::privilege::Identity;

use crate::announce;
use crate::args::{Args, seconds};
use crate::failure::{Code, Failure};
use crate::words::Word;

/// Read when no `--config-file` is given; a missing one is no fault.
const DEFAULT_FILES: [&str; 2] =
    ["/etc/neutron/neutron.conf", "/etc/neutron/neutron-keepalived-state-change.conf"];

/// Our own section; everything in it must be known.
const SECTION: &str = "vipwatch";

/// What the files say.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct NeutronConfig {
    pub(crate) debug: Option<bool>,
    pub(crate) state_path: Option<String>,
    pub(crate) primary_word: Option<Word>,
    pub(crate) audit_interval: Option<Duration>,
    pub(crate) allow_any_agent: Option<bool>,
    pub(crate) announce: Option<announce::AnnounceMode>,
    pub(crate) announce_changes: announce::PlanOverrides,
}

impl NeutronConfig {
    /// Reads the files `args` names, or the default ones.
    pub(crate) fn load(args: &Args, reader: Identity) -> Result<Self, Failure> {
        let mut config = Self::default();
        if args.config_files.is_empty() && args.config_dirs.is_empty() {
            for file in DEFAULT_FILES {
                match read(Path::new(file), reader) {
                    Ok(text) => config.merge(&text, file)?,
                    // Not there, or not for this user: then it is not for us.
                    Err(Unread::Io(_)) => {}
                    Err(Unread::Unsafe(failure)) => return Err(failure),
                }
            }
            return Ok(config);
        }
        let mut files: Vec<PathBuf> = args.config_files.iter().map(PathBuf::from).collect();
        for directory in &args.config_dirs {
            files.extend(conf_files(Path::new(directory))?);
        }
        for file in files {
            let text = read(&file, reader).map_err(|unread| match unread {
                Unread::Io(error) => {
                    let message = format!("cannot read {}: {error}", file.display());
                    Failure::new(Code::of(&error), message)
                }
                Unread::Unsafe(failure) => failure,
            })?;
            config.merge(&text, &file.display().to_string())?;
        }
        Ok(config)
    }

    fn merge(&mut self, text: &str, file: &str) -> Result<(), Failure> {
        let mut section = "DEFAULT".to_owned();
        for (number, line) in text.lines().enumerate() {
            // A line that begins with a space continues the value before; none of ours has one.
            let is_comment = line.starts_with(['#', ';', ' ', '\t']) || line.trim().is_empty();
            if is_comment {
                continue;
            }
            if let Some(name) =
                line.trim().strip_prefix('[').and_then(|name| name.strip_suffix(']'))
            {
                name.clone_into(&mut section);
                continue;
            }
            // Whichever comes first separates: `key = value`, `key: value`.
            let Some((key, value)) = line.split_once(['=', ':']) else {
                continue;
            };
            self.set(&section, key.trim(), unquoted(value.trim())).map_err(|problem| {
                Failure::new(Code::Usage, format!("{file}, line {}: {problem}", number + 1))
            })?;
        }
        Ok(())
    }

    fn set(&mut self, section: &str, key: &str, value: &str) -> Result<(), String> {
        let wrong = |what: &str| format!("{key} is {what}, not {value:?}");
        match (section, key) {
            ("DEFAULT", "debug") => self.debug = boolean(value).or(self.debug),
            ("DEFAULT", "state_path") => self.state_path = Some(value.to_owned()),
            (SECTION, "primary_word") => {
                let word = Word::parse(value).ok_or_else(|| wrong("`master` or `primary`"))?;
                self.primary_word = Some(word);
            }
            (SECTION, "audit_interval") => {
                let interval = seconds(value).ok_or_else(|| wrong("1 to 86400 seconds"))?;
                self.audit_interval = Some(interval);
            }
            (SECTION, "allow_any_agent") => {
                let is_on = boolean(value).ok_or_else(|| wrong("true or false"))?;
                self.allow_any_agent = Some(is_on);
            }
            (SECTION, "announce") => {
                let mode = announce::AnnounceMode::parse(value);
                self.announce = Some(mode.ok_or_else(|| wrong(announce::AnnounceMode::WORDS))?);
            }
            (SECTION, unknown) => {
                if let Some(rest) = unknown.strip_prefix("announce_")
                    && self.announce_changes.set(rest, value).map_err(wrong)?
                {
                    return Ok(());
                }
                return Err(format!(
                    "unknown key {unknown:?}; [{SECTION}] has primary_word, audit_interval, \
                     allow_any_agent, announce, and announce_count, _gap, _second_burst, \
                     _refresh, _rate and _check"
                ));
            }
            _ => {}
        }
        Ok(())
    }
}

/// Without the quotes around it, if they match.
fn unquoted(value: &str) -> &str {
    ['"', '\'']
        .into_iter()
        .find_map(|quote| value.strip_prefix(quote)?.strip_suffix(quote))
        .unwrap_or(value)
}

/// As oslo.config reads it.
fn boolean(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "1" | "on" | "yes" => Some(true),
        "false" | "0" | "off" | "no" => Some(false),
        _ => None,
    }
}

enum Unread {
    Io(io::Error),
    Unsafe(Failure),
}

/// Reads a file that nobody but root and `reader` could have written.
fn read(path: &Path, reader: Identity) -> Result<String, Unread> {
    let mut file = File::open(path).map_err(Unread::Io)?;
    // Asked of the open file: the name may stand for another one by now.
    let metadata = file.metadata().map_err(Unread::Io)?;
    let is_group_trusted = [0, reader.group].contains(&metadata.gid());
    let writers = if is_group_trusted { 0o002 } else { 0o022 };
    let name = path.display();
    let problem = if metadata.mode() & writers != 0 {
        Some((format!("{name} may be written by others"), format!("chmod go-w {name}")))
    } else if ![0, reader.user, Identity::current().user].contains(&metadata.uid()) {
        let owner = metadata.uid();
        Some((format!("{name} belongs to user {owner}"), format!("chown root {name}")))
    } else {
        None
    };
    if let Some((problem, remedy)) = problem {
        let failure = Failure::new(Code::NotPermitted, format!("{problem}: it is not read"));
        return Err(Unread::Unsafe(failure.hint(remedy)));
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(Unread::Io)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The `*.conf` files of `directory`, in order.
fn conf_files(directory: &Path) -> Result<Vec<PathBuf>, Failure> {
    let failed = |error: io::Error| {
        let message = format!("cannot read directory {}: {error}", directory.display());
        Failure::new(Code::of(&error), message)
    };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|extension| extension == "conf") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(text: &str) -> Result<NeutronConfig, Failure> {
        let mut config = NeutronConfig::default();
        config.merge(text, "test.conf")?;
        Ok(config)
    }

    #[test]
    fn the_keys_we_need_are_found_among_the_many_we_do_not() {
        let config = merged(
            "# comment\n[DEFAULT]\ndebug = True\nstate_path=/var/lib/neutron\n\
             transport_url = rabbit://secret\n[AGENT]\ndebug = false\n\
             [vipwatch]\nprimary_word = master\naudit_interval = 5\n",
        )
        .unwrap();
        let expected = NeutronConfig {
            debug: Some(true),
            state_path: Some("/var/lib/neutron".to_owned()),
            primary_word: Some(Word::Master),
            audit_interval: Some(Duration::from_secs(5)),
            ..NeutronConfig::default()
        };
        assert_eq!(config, expected);
    }

    #[test]
    fn a_colon_separates_too_and_matching_quotes_are_stripped() {
        let config = merged(
            "[DEFAULT]\nstate_path: \"/srv/a=b\"\ndebug : yes\n[vipwatch]\nprimary_word = 'master'\n",
        )
        .unwrap();
        let expected = NeutronConfig {
            debug: Some(true),
            state_path: Some("/srv/a=b".to_owned()),
            primary_word: Some(Word::Master),
            ..NeutronConfig::default()
        };
        assert_eq!(config, expected);
        let config = merged("[DEFAULT]\nstate_path = \"/srv/odd'\n").unwrap();
        assert_eq!(config.state_path.as_deref(), Some("\"/srv/odd'"), "these do not match");
        assert_eq!(unquoted("\""), "\"");
    }

    #[test]
    fn a_mistake_in_our_section_is_named_with_file_and_line() {
        let failure = merged("\n[vipwatch]\nprimary_wrd = master\n").unwrap_err();
        assert!(failure.message.contains("test.conf, line 3"), "{}", failure.message);
        assert!(failure.message.contains("primary_wrd"), "{}", failure.message);
    }
}
