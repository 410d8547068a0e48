// SPDX-License-Identifier: Apache-2.0
//! The exact command line with which each Neutron release starts its monitor.

use std::path::Path;

/// A version of Neutron. Versions between two of these start the monitor like the older one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the name is the version")]
pub enum Release {
    /// Queens, except 12.0.6.
    V12,
    /// Passes the agent's root helper, and an empty root helper daemon.
    V12_0_6,
    /// Rocky, except 13.0.3.
    V13,
    V13_0_3,
    /// The first Stein: passes the literal `None` as root helper daemon.
    V14_0_0,
    V14_0_1,
    /// Does not pass the root helper, and has a longer pid file name.
    V14_0_2,
    /// Train.
    V15,
    /// Ussuri.
    V16,
    V17,
    V18,
    V19,
    V20,
    V21,
    /// Antelope.
    V22,
    V23,
    V24,
    V25,
    /// Epoxy.
    V26,
    V27,
    V28,
    /// 2026.2.
    V29,
}

/// The values of a router that the agent passes to its monitor.
#[derive(Debug)]
pub struct MonitorCall<'a> {
    /// Router id.
    pub router: &'a str,
    /// Namespace.
    pub netns: &'a str,
    /// Configuration directory.
    pub conf_dir: &'a Path,
    /// Link.
    pub link: &'a str,
    /// Virtual address with prefix length.
    pub cidr: &'a str,
    /// Directory of pid files.
    pub pids: &'a Path,
    /// `state_path` of the agent.
    pub state_path: &'a Path,
    /// User id of the agent.
    pub user: u32,
    /// Group id of the agent.
    pub group: u32,
    /// `ha_conntrackd_enabled` of the agent.
    pub conntrackd: bool,
    /// `debug` of the agent.
    pub debug: bool,
}

impl Release {
    /// The word for the primary state.
    pub fn primary(self) -> &'static str {
        if self < Self::V17 { "master" } else { "primary" }
    }

    /// Whether the agent waits for the started process to end.
    pub fn waits(self) -> bool {
        self < Self::V29
    }

    /// Whether the agent removes the pid file before it starts a monitor, and after any signal.
    pub fn removes_pid_file(self) -> bool {
        self >= Self::V24
    }

    /// The name of the pid file.
    pub fn pid_file(self, router: &str) -> String {
        if self < Self::V14_0_2 {
            format!("{router}.monitor.pid")
        } else {
            format!("{router}.monitor.pid.neutron-keepalived-state-change-monitor")
        }
    }

    /// The words before the program: up to release 15 the agent starts it inside the namespace, from 22 to 28
    /// with a tag in its environment.
    pub fn wrapper(self, call: &MonitorCall<'_>) -> Vec<String> {
        let words = |text: String| text.split(' ').map(str::to_owned).collect();
        if self < Self::V16 {
            words(format!("ip netns exec {}", call.netns))
        } else if (Self::V22..Self::V29).contains(&self) {
            words(format!(
                "env PROCESS_TAG=neutron-keepalived-state-change-monitor-{}.monitor",
                call.router
            ))
        } else {
            Vec::new()
        }
    }

    /// The arguments after the program's name.
    pub fn arguments(self, call: &MonitorCall<'_>) -> Vec<String> {
        let text = |path: &Path| path.display().to_string();
        let pid_file = call.pids.join(self.pid_file(call.router));
        let log_file = call.conf_dir.join("neutron-keepalived-state-change.log");
        let has_log_file = self >= Self::V15;
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
            if self >= Self::V29 {
                arguments.extend([format!("--{name}"), value]);
            } else {
                arguments.push(format!("--{name}={value}"));
            }
        }
        let root_helper_daemon = match self {
            Self::V12_0_6 | Self::V13_0_3 | Self::V14_0_1 => Some(""),
            Self::V14_0_0 => Some("None"),
            _ => None,
        };
        if let Some(daemon) = root_helper_daemon {
            arguments.extend([
                "--AGENT-root_helper=sudo neutron-rootwrap /etc/neutron/rootwrap.conf".to_owned(),
                format!("--AGENT-root_helper_daemon={daemon}"),
            ]);
        }
        if self >= Self::V26 {
            arguments.extend(call.conntrackd.then(|| "--enable_conntrackd".to_owned()));
            arguments.extend(call.debug.then(|| "--debug".to_owned()));
        }
        arguments
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The whole command line, with `MONITOR` for the program.
    fn line(release: Release) -> String {
        let call = MonitorCall {
            router: "R",
            netns: "qrouter-R",
            conf_dir: Path::new("/c/R"),
            link: "ha-1",
            cidr: "169.254.0.1/24",
            pids: Path::new("/p"),
            state_path: Path::new("/s"),
            user: 42,
            group: 43,
            conntrackd: true,
            debug: true,
        };
        let mut words = release.wrapper(&call);
        words.push("MONITOR".to_owned());
        words.extend(release.arguments(&call));
        words.join(" ")
    }

    #[test]
    fn each_release_has_its_own_command_line() {
        let old = "ip netns exec qrouter-R MONITOR --router_id=R --namespace=qrouter-R --conf_dir=/c/R \
                   --monitor_interface=ha-1 --monitor_cidr=169.254.0.1/24 --pid_file=/p/R.monitor.pid \
                   --state_path=/s --user=42 --group=43";
        let helper = "--AGENT-root_helper=sudo neutron-rootwrap /etc/neutron/rootwrap.conf \
                      --AGENT-root_helper_daemon=";
        let service = "neutron-keepalived-state-change-monitor";
        let logged = format!(
            "MONITOR --router_id=R --namespace=qrouter-R --conf_dir=/c/R \
             --log-file=/c/R/neutron-keepalived-state-change.log --monitor_interface=ha-1 \
             --monitor_cidr=169.254.0.1/24 --pid_file=/p/R.monitor.pid.{service} --state_path=/s \
             --user=42 --group=43"
        );
        let tagged = format!("env PROCESS_TAG={service}-R.monitor {logged}");
        let flagged = format!("{tagged} --enable_conntrackd --debug");
        let stein = old.replace("R.monitor.pid", &format!("R.monitor.pid.{service}"));
        let newest = format!("{logged} --enable_conntrackd --debug").replace('=', " ");
        let cases: [(&[Release], String); 9] = [
            (&[Release::V12, Release::V13], old.to_owned()),
            (&[Release::V12_0_6, Release::V13_0_3, Release::V14_0_1], format!("{old} {helper}")),
            (&[Release::V14_0_0], format!("{old} {helper}None")),
            (&[Release::V14_0_2], stein),
            (&[Release::V15], format!("ip netns exec qrouter-R {logged}")),
            (
                &[
                    Release::V16,
                    Release::V17,
                    Release::V18,
                    Release::V19,
                    Release::V20,
                    Release::V21,
                ],
                logged,
            ),
            (&[Release::V22, Release::V23, Release::V24, Release::V25], tagged),
            (&[Release::V26, Release::V27, Release::V28], flagged),
            (&[Release::V29], newest),
        ];
        for (releases, expected) in cases {
            for release in releases {
                assert_eq!(line(*release), expected, "{release:?}");
            }
        }
    }
}
