//! Finds what there is to watch on this node, in the files that keepalived is run with.
//!
//! Two kinds of places: `<state_path>/ha_confs/ID/keepalived.conf`, where Neutron's L3 agent
//! writes one for each HA router, and ordinary keepalived's own configuration. A file that
//! cannot be read or understood is a problem with its name and line, and keeps nothing else
//! from being found.

mod include;

use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use ipnet::IpNet;
use vipwatch_core::keepalived::{Problem, VrrpInstance, configuration};
use vipwatch_core::{InstanceId, LinkName, NetnsName};
use vipwatch_linux::netns::NetnsId;

/// Where to look.
#[derive(Debug, Clone)]
pub struct Places {
    /// Neutron's `state_path`.
    pub neutron: PathBuf,
    /// keepalived's own configuration.
    pub keepalived: PathBuf,
}

impl Default for Places {
    fn default() -> Self {
        Self {
            neutron: PathBuf::from("/var/lib/neutron"),
            keepalived: PathBuf::from("/etc/keepalived/keepalived.conf"),
        }
    }
}

/// Whose it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// A router of Neutron's.
    Neutron,
    /// An instance of ordinary keepalived.
    Keepalived,
}

impl Origin {
    /// One word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Neutron => "neutron",
            Self::Keepalived => "keepalived",
        }
    }
}

/// Something to watch.
#[derive(Debug, Clone)]
pub struct Found {
    /// What to call it.
    pub id: InstanceId,
    /// Whose it is.
    pub origin: Origin,
    /// Where its addresses are; `None` for the node's own namespace.
    pub netns: Option<NetnsName>,
    /// The file that says so.
    pub file: PathBuf,
    /// What it says.
    pub vrrp: VrrpInstance,
}

impl Found {
    /// The addresses that make it primary. A router's floating addresses come and go with the
    /// agent's work: there the one that keepalived advertises decides.
    pub fn watched(&self) -> Vec<(LinkName, IpNet)> {
        let addresses = self.vrrp.addresses.iter();
        let counts = |is_excluded: bool| match self.origin {
            Origin::Neutron => !is_excluded,
            Origin::Keepalived => true,
        };
        addresses
            .filter(|address| counts(address.is_excluded))
            .map(|address| (address.link, address.cidr))
            .collect()
    }
}

/// What was wrong with a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// The file.
    pub file: PathBuf,
    /// The line, where there is one.
    pub line: Option<u32>,
    /// What.
    pub text: String,
}

/// Everything that was found.
#[derive(Debug, Default)]
pub struct Discovery {
    /// What there is to watch, in order of their ids.
    pub instances: Vec<Found>,
    /// What was wrong.
    pub troubles: Vec<Trouble>,
    /// The configurations in which something was wrong: perhaps they are being written.
    pub spoiled: Vec<PathBuf>,
    /// When the youngest of all files was written.
    pub written: Option<SystemTime>,
}

/// Looks into `places`.
pub fn discover(places: &Places) -> Discovery {
    let mut discovery = Discovery::default();
    let confs = places.neutron.join("ha_confs");
    match std::fs::read_dir(&confs) {
        Ok(entries) => {
            for entry in entries.flatten() {
                let file = entry.path().join("keepalived.conf");
                let id = entry.file_name().to_string_lossy().into_owned();
                if file.exists() {
                    discovery.take_router(&id, &file);
                }
            }
        }
        // A node without Neutron is nothing to talk about.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => discovery.trouble(&confs, None, format!("cannot list it: {error}")),
    }
    if places.keepalived.exists() {
        discovery.take_keepalived(&places.keepalived);
    }
    discovery.instances.sort_by(|a, b| a.id.as_str().cmp(b.id.as_str()));
    discovery
}

impl Discovery {
    /// A router of Neutron's: one instance, called after the directory it is in.
    fn take_router(&mut self, id: &str, file: &Path) {
        let id: InstanceId = match id.parse() {
            Ok(id) => id,
            Err(error) => {
                self.trouble(file, None, format!("its directory cannot be an id: {error}"));
                return;
            }
        };
        let (_, instances) = self.read(file);
        let Some(vrrp) = instances.into_iter().next() else { return };
        if vrrp.addresses.iter().all(|address| address.is_excluded) {
            let text = "there is no address that would make it primary".to_owned();
            self.trouble(file, Some(vrrp.place.line), text);
            return;
        }
        let netns = router_netns(&id);
        if netns.is_none() {
            self.trouble(file, None, format!("{id} cannot be the name of a namespace"));
        }
        self.add(Found { id, origin: Origin::Neutron, netns, file: file.to_owned(), vrrp });
    }

    fn take_keepalived(&mut self, file: &Path) {
        let (netns, instances) = self.read(file);
        for vrrp in instances {
            match vrrp.name.parse() {
                Ok(id) => self.add(Found {
                    id,
                    origin: Origin::Keepalived,
                    netns: netns.clone(),
                    file: file.to_owned(),
                    vrrp,
                }),
                Err(error) => {
                    let text = format!("vrrp_instance {:?} cannot be an id: {error}", vrrp.name);
                    self.trouble(file, Some(vrrp.place.line), text);
                }
            }
        }
    }

    fn add(&mut self, found: Found) {
        if let Some(other) = self.instances.iter().find(|other| other.id == found.id) {
            let text = format!("{} is there already, in {}", found.id, other.file.display());
            let line = found.vrrp.place.line;
            self.trouble(&found.file, Some(line), text);
            return;
        }
        self.instances.push(found);
    }

    fn read(&mut self, file: &Path) -> (Option<NetnsName>, Vec<VrrpInstance>) {
        let include::Loaded { statements, files, mut problems, unread, written } =
            include::load(file);
        self.written = self.written.max(written);
        let before = self.troubles.len();
        for (path, error) in unread {
            self.trouble(&path, None, format!("cannot read it: {error}"));
        }
        let read = configuration(&statements, &mut problems);
        for Problem { place, text } in problems {
            let file = files.get(place.file).map_or(file, PathBuf::as_path);
            self.trouble(file, Some(place.line), text);
        }
        if self.troubles.len() > before {
            self.spoiled.push(file.to_owned());
        }
        (read.netns, read.instances)
    }

    fn trouble(&mut self, file: &Path, line: Option<u32>, text: String) {
        self.troubles.push(Trouble { file: file.to_owned(), line, text });
    }
}

/// The namespace of a router: that of its own, or, with distributed routers, of its source
/// address translation, where the HA link is then.
fn router_netns(id: &InstanceId) -> Option<NetnsName> {
    let named = |prefix: &str| format!("{prefix}-{id}").parse::<NetnsName>().ok();
    let exists = |name: &NetnsName| NetnsId::of_name(name).is_ok_and(|found| found.is_some());
    named("snat").filter(exists).or_else(|| named("qrouter"))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;

    use super::*;

    fn write(path: &Path, text: &str) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        File::create(path).unwrap().write_all(text.as_bytes()).unwrap();
    }

    fn instance(name: &str, vip: &str) -> String {
        format!(
            "vrrp_instance {name} {{\n interface eth0\n virtual_router_id 1\n \
             virtual_ipaddress {{\n  {vip} dev ha-1\n }}\n virtual_ipaddress_excluded {{\n  \
             10.9.9.9/32 dev qg-1\n }}\n}}\n"
        )
    }

    fn stage() -> (tempfile::TempDir, Places) {
        let directory = tempfile::tempdir().unwrap();
        let places = Places {
            neutron: directory.path().join("neutron"),
            keepalived: directory.path().join("etc/keepalived.conf"),
        };
        (directory, places)
    }

    fn said(discovery: &Discovery) -> Vec<String> {
        let show = |trouble: &Trouble| {
            let name = trouble.file.file_name().unwrap().to_string_lossy().into_owned();
            format!("{name}:{}: {}", trouble.line.unwrap_or(0), trouble.text)
        };
        discovery.troubles.iter().map(show).collect()
    }

    #[test]
    fn a_node_without_anything_has_nothing_and_no_trouble() {
        let (_directory, places) = stage();
        let discovery = discover(&places);
        assert!(discovery.instances.is_empty() && discovery.troubles.is_empty());
    }

    #[test]
    fn routers_and_ordinary_instances_are_found_side_by_side() {
        let (_directory, places) = stage();
        for id in ["5c7d", "0a1b"] {
            let file = places.neutron.join("ha_confs").join(id).join("keepalived.conf");
            write(&file, &instance("VR_1", "169.254.0.1/24"));
        }
        write(
            &places.keepalived,
            &format!("net_namespace blue\n{}", instance("VI_1", "192.0.2.9")),
        );
        let discovery = discover(&places);
        assert_eq!(said(&discovery), Vec::<String>::new());
        let found: Vec<String> = discovery
            .instances
            .iter()
            .map(|found| {
                let netns = found.netns.as_ref().unwrap();
                format!("{} {} {netns} {}", found.id, found.origin.word(), found.watched().len())
            })
            .collect();
        let expected = [
            "0a1b neutron qrouter-0a1b 1",
            "5c7d neutron qrouter-5c7d 1",
            "VI_1 keepalived blue 2",
        ];
        assert_eq!(found, expected, "a router's floating addresses do not make it primary");
    }

    #[test]
    fn includes_are_followed_and_what_is_wrong_is_named_with_file_and_line() {
        let (_directory, places) = stage();
        let etc = places.keepalived.parent().unwrap();
        write(&places.keepalived, "include conf.d/*.conf\ninclude gone.conf\n$X=1\n");
        write(&etc.join("conf.d/a.conf"), &instance("A", "192.0.2.1"));
        write(&etc.join("conf.d/b.conf"), &format!("\n{}", instance("A", "192.0.2.2")));
        write(&etc.join("conf.d/c.conf"), "include c.conf\nvrrp_instance C {\n");
        write(&etc.join("conf.d/d.other"), &instance("D", "192.0.2.4"));
        let discovery = discover(&places);
        let ids: Vec<&str> = discovery.instances.iter().map(|found| found.id.as_str()).collect();
        assert_eq!(ids, ["A"]);
        let said = said(&discovery);
        for expected in [
            "b.conf:2: vrrp_instance A is there already",
            "c.conf:1: include c.conf goes round in a circle",
            "c.conf:2: vrrp_instance C is not closed",
            "keepalived.conf:2: include gone.conf: there is no such file",
        ] {
            assert!(said.iter().any(|said| said.starts_with(expected)), "{expected}: {said:#?}");
        }
    }

    #[test]
    fn a_pipe_in_a_files_place_is_not_waited_for() {
        let (_directory, places) = stage();
        std::fs::create_dir_all(places.keepalived.parent().unwrap()).unwrap();
        let made = std::process::Command::new("mkfifo").arg(&places.keepalived).status().unwrap();
        assert!(made.success());
        assert_eq!(
            said(&discover(&places)),
            ["keepalived.conf:0: cannot read it: it is not a file"]
        );
    }
}
