// SPDX-License-Identifier: Apache-2.0
//! Reads the few settings that come from configuration files, in oslo.config's INI format.
//!
//! `neutron.conf` is read because Neutron's own program read it. It also holds passwords,
//! so only the keys named here are kept.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use vipwatch_linux::file::{TextFile, read_text_file};
use vipwatch_linux::privilege::Identity;

use crate::announce::{AnnounceMode, PlanOverrides};
use crate::args::{Args, INTERVAL_VALUES, parse_interval};
use crate::failure::{Code, Failure};
use crate::primary_word::PrimaryWord;

/// The files that are read if neither `--config-file` nor `--config-dir` is given. Each of them may be missing.
const DEFAULT_FILES: [&str; 2] =
    ["/etc/neutron/neutron.conf", "/etc/neutron/neutron-keepalived-state-change.conf"];

/// Maximum size of a configuration file, in bytes. The samples of Neutron have about 100,000.
const MAX_FILE: u64 = 4 << 20;

/// The section of this program. An unknown key in it is an error.
const SECTION: &str = "vipwatch";

/// The settings of the configuration files; `None` if no file sets a key.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct NeutronConfig {
    pub(crate) debug: Option<bool>,
    pub(crate) state_path: Option<String>,
    pub(crate) primary_word: Option<PrimaryWord>,
    pub(crate) audit_interval: Option<Duration>,
    pub(crate) allow_any_agent: Option<bool>,
    pub(crate) announce: Option<AnnounceMode>,
    pub(crate) announce_overrides: PlanOverrides,
}

impl NeutronConfig {
    /// Reads the files that `args` names, or the default ones. `reader` is the identity that the monitor will have.
    pub(crate) fn load(args: &Args, reader: Identity) -> Result<Self, Failure> {
        let mut config = Self::default();
        if args.config_files.is_empty() && args.config_dirs.is_empty() {
            for file in DEFAULT_FILES {
                match read(Path::new(file), reader) {
                    Ok(text) => config.merge(&text, file)?,
                    Err(ReadError::Io(error)) if error.kind() == io::ErrorKind::FileTooLarge => {
                        return Err(unreadable(Path::new(file), &error));
                    }
                    // A default file that is missing or not readable is left out.
                    Err(ReadError::Io(_)) => {}
                    Err(ReadError::Unsafe(failure)) => return Err(failure),
                }
            }
            return Ok(config);
        }
        let mut files: Vec<PathBuf> = args.config_files.iter().map(PathBuf::from).collect();
        for directory in &args.config_dirs {
            files.extend(conf_files(Path::new(directory))?);
        }
        for file in files {
            let text = read(&file, reader).map_err(|error| match error {
                ReadError::Io(error) => unreadable(&file, &error),
                ReadError::Unsafe(failure) => failure,
            })?;
            config.merge(&text, &file.display().to_string())?;
        }
        Ok(config)
    }

    fn merge(&mut self, text: &str, file: &str) -> Result<(), Failure> {
        let mut section = "DEFAULT".to_owned();
        for (number, line) in text.lines().enumerate() {
            // A line that starts with a space continues the value before it. No key of this program has such a value.
            let is_skipped = line.starts_with(['#', ';', ' ', '\t']) || line.trim().is_empty();
            if is_skipped {
                continue;
            }
            if let Some(name) =
                line.trim().strip_prefix('[').and_then(|name| name.strip_suffix(']'))
            {
                name.clone_into(&mut section);
                continue;
            }
            // The first `=` or `:` separates key and value.
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
        let invalid =
            |expected: &str| format!("invalid value {value:?} for {key}: expected {expected}");
        match (section, key) {
            ("DEFAULT", "debug") => self.debug = boolean(value).or(self.debug),
            ("DEFAULT", "state_path") => self.state_path = Some(value.to_owned()),
            (SECTION, "primary_word") => {
                let word = PrimaryWord::parse(value).ok_or_else(|| invalid(PrimaryWord::VALUES))?;
                self.primary_word = Some(word);
            }
            (SECTION, "audit_interval") => {
                let interval = parse_interval(value).ok_or_else(|| invalid(INTERVAL_VALUES))?;
                self.audit_interval = Some(interval);
            }
            (SECTION, "allow_any_agent") => {
                let is_on = boolean(value).ok_or_else(|| invalid("true or false"))?;
                self.allow_any_agent = Some(is_on);
            }
            (SECTION, "announce") => {
                let mode = AnnounceMode::parse(value);
                self.announce = Some(mode.ok_or_else(|| invalid(AnnounceMode::VALUES))?);
            }
            (SECTION, unknown) => {
                if let Some(rest) = unknown.strip_prefix("announce_")
                    && self.announce_overrides.set(rest, value).map_err(invalid)?
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

/// Removes the quotes around a value if both are the same.
fn unquoted(value: &str) -> &str {
    ['"', '\'']
        .into_iter()
        .find_map(|quote| value.strip_prefix(quote)?.strip_suffix(quote))
        .unwrap_or(value)
}

/// Parses a boolean as oslo.config does.
fn boolean(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "1" | "on" | "yes" => Some(true),
        "false" | "0" | "off" | "no" => Some(false),
        _ => None,
    }
}

fn unreadable(file: &Path, error: &io::Error) -> Failure {
    Failure::new(Code::of(error), format!("cannot read {}: {error}", file.display()))
}

/// Why a configuration file was not read.
enum ReadError {
    Io(io::Error),
    /// Another user could have written the file.
    Unsafe(Failure),
}

/// Reads a file that only root and `reader` can write. Other files are refused, because the settings decide which
/// process the monitor trusts as the agent.
fn read(path: &Path, reader: Identity) -> Result<String, ReadError> {
    let TextFile { text, metadata } = read_text_file(path, MAX_FILE).map_err(ReadError::Io)?;
    let is_group_trusted = [0, reader.group].contains(&metadata.gid());
    let foreign_write_bits = if is_group_trusted { 0o002 } else { 0o022 };
    let name = path.display();
    let problem = if metadata.mode() & foreign_write_bits != 0 {
        Some((format!("{name} is writable by other users"), format!("chmod go-w {name}")))
    } else if ![0, reader.user, Identity::current().user].contains(&metadata.uid()) {
        let owner = metadata.uid();
        Some((format!("{name} belongs to user {owner}"), format!("chown root {name}")))
    } else {
        None
    };
    if let Some((problem, hint)) = problem {
        let failure = Failure::new(Code::NotPermitted, format!("{problem}: the file is not read"));
        return Err(ReadError::Unsafe(failure.hint(hint)));
    }
    Ok(text)
}

/// The `*.conf` files of `directory`, sorted by name.
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
    fn only_the_known_keys_are_kept() {
        let config = merged(
            "# comment\n[DEFAULT]\ndebug = True\nstate_path=/var/lib/neutron\n\
             transport_url = rabbit://secret\n[AGENT]\ndebug = false\n\
             [vipwatch]\nprimary_word = master\naudit_interval = 5\n",
        )
        .unwrap();
        let expected = NeutronConfig {
            debug: Some(true),
            state_path: Some("/var/lib/neutron".to_owned()),
            primary_word: Some(PrimaryWord::Master),
            audit_interval: Some(Duration::from_secs(5)),
            ..NeutronConfig::default()
        };
        assert_eq!(config, expected);
    }

    #[test]
    fn a_colon_separates_key_and_value_and_matching_quotes_are_removed() {
        let config = merged(
            "[DEFAULT]\nstate_path: \"/srv/a=b\"\ndebug : yes\n[vipwatch]\nprimary_word = 'master'\n",
        )
        .unwrap();
        let expected = NeutronConfig {
            debug: Some(true),
            state_path: Some("/srv/a=b".to_owned()),
            primary_word: Some(PrimaryWord::Master),
            ..NeutronConfig::default()
        };
        assert_eq!(config, expected);
        let config = merged("[DEFAULT]\nstate_path = \"/srv/odd'\n").unwrap();
        assert_eq!(config.state_path.as_deref(), Some("\"/srv/odd'"), "the quotes do not match");
        assert_eq!(unquoted("\""), "\"");
    }

    #[test]
    fn an_unknown_key_is_reported_with_file_and_line() {
        let failure = merged("\n[vipwatch]\nprimary_wrd = master\n").unwrap_err();
        assert!(failure.message.contains("test.conf, line 3"), "{}", failure.message);
        assert!(failure.message.contains("primary_wrd"), "{}", failure.message);
    }
}
