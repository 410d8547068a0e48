//! How each release of Neutron calls its monitor, word for word.

use std::path::Path;

/// A release, by its version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    /// Queens.
    V12,
    /// Stein, the first one: with the literal `None`.
    V14_0_0,
    /// Train.
    V15,
    /// Antelope.
    V22,
    /// Epoxy.
    V26,
    /// 2026.2.
    V29,
}

/// What an agent knows about the router.
#[derive(Debug)]
pub struct Call<'a> {
    /// Router id.
    pub router: &'a str,
    /// Namespace.
    pub netns: &'a str,
    /// Configuration directory.
    pub conf_dir: &'a Path,
    /// Link.
    pub link: &'a str,
    /// Virtual address.
    pub cidr: &'a str,
    /// Directory of pid files.
    pub pids: &'a Path,
    /// The agent's state directory.
    pub state_path: &'a Path,
    /// The agent's user.
    pub user: u32,
    /// The agent's group.
    pub group: u32,
    /// `ha_conntrackd_enabled`.
    pub conntrackd: bool,
    /// The agent's `debug`.
    pub debug: bool,
}

impl Release {
    /// The word for a primary.
    pub fn primary(self) -> &'static str {
        match self {
            Self::V12 | Self::V14_0_0 | Self::V15 => "master",
            Self::V22 | Self::V26 | Self::V29 => "primary",
        }
    }

    /// Whether the agent waits for the program to end.
    pub fn waits(self) -> bool {
        self != Self::V29
    }

    /// The name of the pid file.
    pub fn pid_file(self, router: &str) -> String {
        match self {
            Self::V12 | Self::V14_0_0 => format!("{router}.monitor.pid"),
            Self::V15 | Self::V22 | Self::V26 | Self::V29 => {
                format!("{router}.monitor.pid.neutron-keepalived-state-change-monitor")
            }
        }
    }

    /// What stands before the program: up to 15 it is started inside the namespace, from 22
    /// to 28 with a mark in its environment.
    pub fn wrapper(self, call: &Call<'_>) -> Vec<String> {
        let words = |text: String| text.split(' ').map(str::to_owned).collect();
        match self {
            Self::V12 | Self::V14_0_0 | Self::V15 => words(format!("ip netns exec {}", call.netns)),
            Self::V22 | Self::V26 => words(format!(
                "env PROCESS_TAG=neutron-keepalived-state-change-monitor-{}.monitor",
                call.router
            )),
            Self::V29 => Vec::new(),
        }
    }

    /// The arguments after the program's name.
    pub fn arguments(self, call: &Call<'_>) -> Vec<String> {
        let text = |path: &Path| path.display().to_string();
        let pid_file = call.pids.join(self.pid_file(call.router));
        let log_file = call.conf_dir.join("neutron-keepalived-state-change.log");
        let has_log_file = !matches!(self, Self::V12 | Self::V14_0_0);
        let pairs = [
            Some(("router_id", call.router.to_owned())),
            Some(("namespace", call.netns.to_owned())),
            Some(("conf_dir", text(call.conf_dir))),
            has_log_file.then(|| ("log-file", text(&log_file))),
            Some(("monitor_interface", call.link.to_owned())),
            Some(("monitor_cidr", call.cidr.to_owned())),
            Some(("pid_file", text(&pid_file))),
            Some(("state_path", text(call.state_path))),
            Some(("user", call.user.to_string())),
            Some(("group", call.group.to_string())),
        ];
        let mut arguments = Vec::new();
        for (name, value) in pairs.into_iter().flatten() {
            if self == Self::V29 {
                arguments.extend([format!("--{name}"), value]);
            } else {
                arguments.push(format!("--{name}={value}"));
            }
        }
        match self {
            Self::V14_0_0 => arguments.extend([
                "--AGENT-root_helper=sudo neutron-rootwrap /etc/neutron/rootwrap.conf".to_owned(),
                "--AGENT-root_helper_daemon=None".to_owned(),
            ]),
            Self::V26 | Self::V29 => {
                arguments.extend(call.conntrackd.then(|| "--enable_conntrackd".to_owned()));
                arguments.extend(call.debug.then(|| "--debug".to_owned()));
            }
            Self::V12 | Self::V15 | Self::V22 => {}
        }
        arguments
    }
}
