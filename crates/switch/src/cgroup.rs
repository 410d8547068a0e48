// SPDX-License-Identifier: Apache-2.0
//! The cgroups of a process. The agent starts a monitor in the cgroup of its own service. A monitor that stayed in the
//! cgroup of an operator's shell would count as a part of that login session, and could end with it.

use std::io;
use std::path::{Path, PathBuf};

/// Where the hierarchies are mounted.
const MOUNT: &str = "/sys/fs/cgroup";

/// The files to which a process must write its pid to join the cgroups of the process `pid`; empty if this process is in
/// the same ones.
pub(crate) fn cgroups_to_join(pid: u32) -> io::Result<Vec<PathBuf>> {
    let [own, other] = ["self".to_owned(), pid.to_string()].map(|pid| memberships(&pid));
    let own = own?;
    Ok(other?
        .into_iter()
        .filter(|line| !own.contains(line))
        .map(|line| line.procs_file())
        .collect())
}

/// Moves this process into the cgroups.
pub(crate) fn join(files: &[PathBuf]) -> io::Result<()> {
    use std::io::Write;
    for file in files {
        // The kernel reads the pid "0" as the process that writes it.
        std::fs::File::options().write(true).open(file)?.write_all(b"0")?;
    }
    Ok(())
}

/// One line of `/proc/PID/cgroup`: `NUMBER:CONTROLLERS:PATH`.
#[derive(Debug, PartialEq, Eq)]
struct Membership {
    /// Empty for the unified hierarchy.
    controllers: String,
    path: String,
}

impl Membership {
    fn procs_file(&self) -> PathBuf {
        let mount = Path::new(MOUNT);
        let hierarchy = match self.controllers.as_str() {
            "" if mount.join("cgroup.procs").exists() => mount.to_owned(),
            "" => mount.join("unified"),
            named => mount.join(named.trim_start_matches("name=")),
        };
        hierarchy.join(self.path.trim_start_matches('/')).join("cgroup.procs")
    }
}

fn memberships(pid: &str) -> io::Result<Vec<Membership>> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    Ok(text.lines().filter_map(parse).collect())
}

fn parse(line: &str) -> Option<Membership> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (controllers, path) = (fields.next()?.to_owned(), fields.next()?.to_owned());
    Some(Membership { controllers, path })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_the_file_of_its_hierarchy() {
        let file = |line: &str| parse(line).unwrap().procs_file();
        let path = "system.slice/neutron-l3-agent.service/cgroup.procs";
        let expected = [
            ("4:cpu,cpuacct:/system.slice/neutron-l3-agent.service", "cpu,cpuacct"),
            ("1:name=systemd:/system.slice/neutron-l3-agent.service", "systemd"),
        ];
        for (line, directory) in expected {
            assert_eq!(file(line), Path::new(MOUNT).join(directory).join(path));
        }
        assert!(file("0::/system.slice/neutron-l3-agent.service").ends_with(path));
        assert_eq!(parse("garbage"), None);
    }

    #[test]
    fn this_process_is_already_in_its_own_cgroups() {
        assert_eq!(cgroups_to_join(std::process::id()).unwrap(), Vec::<PathBuf>::new());
    }
}
