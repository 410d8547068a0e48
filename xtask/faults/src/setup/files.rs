// SPDX-License-Identifier: Apache-2.0
//! The configuration files of a lab: keepalived's and those of `vipwatch node`.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::{
    ClusterSettings, ClusterTimes, ConfigEdit, DOWN_TIMER, GROUP, HOSTS, HealthyShape, LabSetup,
    RECORDER, etcd_address,
};

/// What a failed track script subtracts from the priority.
const TRACK_WEIGHT: u8 = 70;
const TRACK: &str = "  track_script {\n    check\n  }\n";

impl LabSetup {
    /// The configuration of keepalived on one host. The track script fails while `script_file` exists.
    pub fn keepalived_conf(&self, host: usize, edit: ConfigEdit, script_file: &Path) -> String {
        let delay = if self.shape == Some(HealthyShape::StartupDelay) {
            "  vrrp_startup_delay 5\n"
        } else {
            ""
        };
        let mut text = format!("global_defs {{\n  router_id lab\n  script_user root\n{delay}}}\n");
        if self.has_track_script {
            let _ = write!(
                text,
                "vrrp_script check {{\n  script \"/usr/bin/test ! -e {}\"\n  interval 1\n  fall 1\n  rise 1\n  \
             weight -{TRACK_WEIGHT}\n}}\n",
                script_file.display()
            );
        }
        if self.has_sync_group {
            let track = if self.has_track_script { TRACK } else { "" };
            let _ = write!(
                text,
                "vrrp_sync_group G {{\n  group {{\n    VI_1\n    VI_2\n  }}\n{track}}}\n"
            );
        }
        for index in 0..self.instances() {
            self.instance_block(&mut text, host, index, edit);
        }
        text
    }

    fn instance_block(&self, text: &mut String, host: usize, index: usize, edit: ConfigEdit) {
        let instance = self.instance(index);
        let priority = edit.priority.unwrap_or(self.priorities[host]);
        let interval = f64::from(self.advert_millis) / 1000.0;
        let _ = write!(
            text,
            "vrrp_instance {} {{\n  state BACKUP\n  interface {}\n  virtual_router_id {}\n  \
         priority {priority}\n  version {}\n  advert_int {interval}\n",
            instance.name, instance.advert_link, instance.vrid, self.version
        );
        if self.down_timer != DOWN_TIMER {
            let _ = writeln!(text, "  down_timer_adverts {}", self.down_timer);
        }
        if self.is_nopreempt {
            text.push_str("  nopreempt\n");
        }
        if self.has_vmac {
            let _ = writeln!(text, "  use_vmac {}", instance.address_link);
        }
        if instance.is_unicast {
            let source = self.advert_address(host);
            let _ = writeln!(text, "  unicast_src_ip {source}\n  unicast_peer {{");
            for other in (0..self.nodes()).filter(|other| *other != host) {
                let _ = writeln!(text, "    {}", self.advert_address(other));
            }
            text.push_str("  }\n");
        }
        if self.has_track_script && !self.has_sync_group {
            text.push_str(TRACK);
        }
        text.push_str("  virtual_ipaddress {\n");
        let extra = (edit.has_extra_address && index == 0).then(|| self.extra_address());
        let is_floating = self.shape == Some(HealthyShape::FloatingAddress);
        for (number, address) in (1..).zip(instance.addresses.into_iter().chain(extra)) {
            if is_floating && number == 2 {
                text.push_str("  }\n  virtual_ipaddress_excluded {\n");
            }
            let device = if self.has_heartbeat { " dev eth0" } else { "" };
            let _ = writeln!(text, "    {address}{device}");
        }
        text.push_str("  }\n}\n");
    }

    /// A foreign keepalived's configuration: the first instance's virtual router id, with other addresses.
    pub fn foreign_conf(&self) -> String {
        let foreign = LabSetup {
            priorities: vec![1; self.nodes() + 1],
            has_track_script: false,
            has_sync_group: false,
            has_vmac: false,
            has_unicast_twin: false,
            ..self.clone()
        };
        let text = foreign.keepalived_conf(self.nodes(), ConfigEdit::default(), Path::new(""));
        // Each of the instance's addresses ends with one of these texts.
        let others = [(":1:100/64", ":77:1/64"), (".101/24", ".177/24"), (".102/24", ".178/24")];
        others.iter().fold(text, |text, (own, other)| text.replace(own, other))
    }
}

/// The configuration of keepalived for a router with one address.
pub fn router_conf(setup: &LabSetup, link: &str, address: &str) -> String {
    let (version, interval) = (setup.version, f64::from(setup.advert_millis) / 1000.0);
    format!(
        "vrrp_instance VR_7 {{\n  state BACKUP\n  interface {link}\n  virtual_router_id 7\n  priority 50\n  \
         version {version}\n  advert_int {interval}\n  virtual_ipaddress {{\n    {address} dev {link}\n  }}\n}}\n"
    )
}

/// The name and the files of one `vipwatch node`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFiles {
    pub name: String,
    pub config: PathBuf,
    state: PathBuf,
    pub socket: PathBuf,
}

impl NodeFiles {
    /// Those of a node in the directory of its host; `service` is the beginning of their names.
    pub fn of(name: String, directory: &Path, service: &str) -> Self {
        let file = |end: &str| directory.join(format!("{service}{end}"));
        Self { name, config: file(".toml"), state: file("-state"), socket: file(".sock") }
    }
}

/// The configuration of a node on one host, in the directory of the host.
pub fn node_conf(setup: &LabSetup, host: usize, directory: &Path, files: &NodeFiles) -> String {
    let directory = directory.display();
    let (name, state, socket) = (&files.name, files.state.display(), files.socket.display());
    let audit = setup
        .cluster
        .as_ref()
        .map_or(String::new(), |cluster| format!("audit_every = \"{}s\"\n", cluster.times.audit));
    let sent = if setup.captures_sent { "\"*\"" } else { "" };
    let cluster = setup.cluster.as_ref();
    let targets = cluster
        .map_or_else(|| hook_conf(&directory.to_string()), |cluster| cluster_conf(cluster, host));
    format!(
        "[node]\nname = \"{name}\"\nstate_dir = \"{state}\"\nsocket = \"{socket}\"\nlog = \"text\"\n{audit}\
         [find]\nkeepalived_conf = \"{directory}/keepalived.conf\"\nneutron_state_path = \"{directory}/neutron\"\n\
         [witness]\nenabled = true\nsent = [{sent}]\n{targets}"
    )
}

/// A hook that writes each finding, with the time at which it received it, to the file `hook.jsonl`.
fn hook_conf(directory: &str) -> String {
    let line = r#"printf "{\"wall\":%s,\"body\":%s}\n" "$(date +%s%6N)" "$(cat)""#;
    format!(
        "[[notify]]\ninstances = [\"*\"]\n[[notify.hook]]\nname = \"recorder\"\n\
         program = [\"/bin/sh\", \"-c\", '{line} >> {directory}/hook.jsonl']\non = [\"finding\"]\n"
    )
}

/// The sections about the cluster. All members of etcd are endpoints, that of the own host is the first.
fn cluster_conf(cluster: &ClusterSettings, host: usize) -> String {
    let ClusterTimes { heartbeat, lease, settle, slow_settle, .. } = cluster.times;
    let (view, min_backups) =
        (if cluster.has_full_view { "full" } else { "own" }, cluster.min_backups);
    let endpoint =
        |member: usize| format!("\"http://{}:2379\"", etcd_address((host + member) % HOSTS));
    let endpoints = (0..HOSTS).map(endpoint).collect::<Vec<String>>().join(", ");
    format!(
        "[cluster]\nendpoints = [{endpoints}]\nallow_unencrypted = true\nview = \"{view}\"\nheartbeat = \"{heartbeat}s\"\n\
         lease = \"{lease}s\"\nsettle = \"{settle}s\"\nslow_settle = \"{slow_settle}s\"\n\
         min_backups = {min_backups}\n\
         [[notify]]\ninstances = [\"*\"]\n[[notify.webhook]]\nname = \"recorder\"\n\
         url = \"http://{RECORDER}/\"\non = [\"finding\"]\ndeliver = \"every\"\n"
    )
}

/// The lines of a node's configuration that put the first instance into [`GROUP`].
pub fn group_conf() -> String {
    format!("[[group]]\nname = \"{GROUP}\"\ninstances = [\"VI_1\"]\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::LabKind;
    use crate::setup::node_name;

    #[test]
    fn a_foreign_keepalived_has_the_same_vrid_and_no_common_address() {
        for seed in 0..20 {
            let setup = LabSetup::of(LabKind::Nodes, seed);
            let text = setup.foreign_conf();
            assert!(text.contains("virtual_router_id 51"), "{text}");
            for address in setup.instance(0).addresses {
                assert!(!text.contains(&address), "{text}");
            }
        }
    }

    #[test]
    fn all_members_are_endpoints_of_each_node() {
        let directory = Path::new("/lab");
        let files = NodeFiles::of(node_name(1), directory, "vipwatch");
        let text = node_conf(&LabSetup::of(LabKind::Cluster, 1), 1, directory, &files);
        assert!(
            text.contains("endpoints = [\"http://10.8.0.2:2379\", \"http://10.8.0.3:2379\""),
            "{text}"
        );
    }
}
