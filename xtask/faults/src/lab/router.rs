// SPDX-License-Identifier: Apache-2.0
//! A Neutron router on one host: its namespace, its link, the file of keepalived and the state file. The injector itself
//! adds the address and writes the state file: no keepalived and no monitor runs for it.

use super::host::LabHost;
use super::write_file;
use crate::LabResult;
use crate::setup::{LabSetup, ROUTER, router_conf};

const LINK: &str = "ha-lab";
/// Valid on one link only, as that of each router: it belongs to no other group.
const ADDRESS: &str = "169.254.0.1/24";

impl LabHost {
    /// A command of `ip` in the namespace of the router.
    fn router_ip(&self, words: &str) -> LabResult {
        self.run(&format!("ip -n qrouter-{ROUTER} {words}")).map(drop)
    }

    /// Creates the router, which holds its address.
    pub fn create_router(&self, setup: &LabSetup) -> LabResult {
        self.run(&format!("ip netns add qrouter-{ROUTER}"))?;
        self.router_ip(&format!("link add {LINK} type veth peer name ha-peer"))?;
        self.router_ip("link set ha-peer up")?;
        self.router_ip(&format!("link set {LINK} up"))?;
        self.router_ip(&format!("address add {ADDRESS} dev {LINK}"))?;
        let directory = self.file(&format!("neutron/ha_confs/{ROUTER}"));
        std::fs::create_dir_all(&directory)?;
        self.write_state("primary")?;
        write_file(&directory.join("keepalived.conf"), &router_conf(setup, LINK, ADDRESS))
    }

    /// Removes the address from the kernel.
    pub fn release_router(&self) -> LabResult {
        self.router_ip(&format!("address del {ADDRESS} dev {LINK}"))
    }

    /// Writes the state file, as the monitor does.
    pub fn write_state(&self, word: &str) -> LabResult {
        write_file(&self.file(&format!("neutron/ha_confs/{ROUTER}/state")), word)
    }

    /// Removes the namespace and the files.
    pub fn remove_router(&self) -> LabResult {
        self.run(&format!("ip netns del qrouter-{ROUTER}"))?;
        Ok(std::fs::remove_dir_all(self.file(&format!("neutron/ha_confs/{ROUTER}")))?)
    }
}
