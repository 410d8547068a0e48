// SPDX-License-Identifier: Apache-2.0
//! The agent's options that decide what it does when it finds a router without a monitor.
//!
//! While a monitor is replaced, no monitor runs for a moment. With `check_child_processes_action = exit` the agent would
//! end then, and with it the handling of all routers of the node.

use std::path::{Path, PathBuf};

use vipwatch_linux::file::read_head;

use crate::failure::SwitchFailure;

/// Maximum size of a configuration file, in bytes.
const MAX_FILE: u64 = 4 << 20;

/// Fails if the agent ends when it finds no monitor for a router.
pub(crate) fn check_action(directory: &Path) -> Result<(), SwitchFailure> {
    let mut options = AgentOptions::default();
    for file in files(directory) {
        // A file that does not exist, or that is not text, has no options for the agent either.
        let text = read_head(&file, MAX_FILE).unwrap_or_default();
        options.read(&String::from_utf8_lossy(&text), &file);
    }
    let Some(file) = options.exits_by() else { return Ok(()) };
    Err(SwitchFailure::environment(format!(
        "check_child_processes_action is exit in {}: the agent may end while a monitor is replaced",
        file.display()
    ))
    .hint("set it to respawn, the default, and restart the agent; --neutron-config names another directory"))
}

/// The files that packages and deployment tools give to the agent, in the order in which it reads them.
fn files(directory: &Path) -> Vec<PathBuf> {
    let shared = Path::new("/usr/share/neutron");
    let mut files = vec![shared.join("neutron-dist.conf")];
    files.extend(files_in(&shared.join("l3_agent")));
    files.push(directory.join("neutron.conf"));
    files.extend(files_in(&directory.join("neutron.conf.d")));
    files.push(directory.join("l3_agent.ini"));
    let further = ["l3_agent.ini.d", "l3_agent.d", "conf.d/common", "conf.d/neutron-l3-agent"];
    for name in further {
        files.extend(files_in(&directory.join(name)));
    }
    files
}

fn files_in(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|end| end == "conf" || end == "ini"));
    files.sort();
    files
}

/// The options of the section `[AGENT]`. The last value counts.
#[derive(Debug, Default)]
struct AgentOptions {
    action: Option<(String, PathBuf)>,
    interval: Option<String>,
}

impl AgentOptions {
    fn read(&mut self, text: &str, file: &Path) {
        let mut section = "";
        for line in text.lines().map(str::trim) {
            if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
                section = name;
                continue;
            }
            let Some((name, value)) = line.split_once(['=', ':']) else { continue };
            let value = value.trim().trim_matches(['"', '\'']).to_owned();
            match (section.eq_ignore_ascii_case("agent"), name.trim()) {
                (true, "check_child_processes_action") => {
                    self.action = Some((value, file.to_owned()));
                }
                (true, "check_child_processes_interval") => self.interval = Some(value),
                _ => {}
            }
        }
    }

    /// The file by which the agent ends; `None` if it does not. With the interval 0 it does not look for dead monitors.
    fn exits_by(&self) -> Option<&Path> {
        let (action, file) = self.action.as_ref()?;
        let is_checking = self.interval.as_deref() != Some("0");
        (action.eq_ignore_ascii_case("exit") && is_checking).then_some(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exits(texts: &[&str]) -> bool {
        let mut options = AgentOptions::default();
        for text in texts {
            options.read(text, Path::new("/etc/neutron/l3_agent.ini"));
        }
        options.exits_by().is_some()
    }

    #[test]
    fn only_the_last_value_in_the_section_of_the_agent_counts() {
        let exit = "[AGENT]\ncheck_child_processes_action = exit\n";
        assert!(exits(&[exit]));
        assert!(exits(&["[agent]\n  check_child_processes_action=exit"]));
        assert!(!exits(&[]));
        assert!(!exits(&["[DEFAULT]\ncheck_child_processes_action = exit\n"]));
        assert!(!exits(&["[AGENT]\n# check_child_processes_action = exit\n"]));
        assert!(!exits(&[exit, "[AGENT]\ncheck_child_processes_action = respawn\n"]));
        assert!(!exits(&[exit, "[AGENT]\ncheck_child_processes_interval = 0\n"]));
    }
}
