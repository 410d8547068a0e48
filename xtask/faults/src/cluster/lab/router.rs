// SPDX-License-Identifier: Apache-2.0
//! A Neutron router on one host: its namespace, its link, the file of keepalived and the state file. The injector itself
//! adds the address and writes the state file: no keepalived and no monitor runs for it.

use std::path::PathBuf;

use super::super::setup::ClusterRunSetup;
use super::cluster_host::ClusterHost;
use crate::FaultsError;
use crate::lab::write_file;

/// The id of the router.
pub const ROUTER: &str = "5d3c1f6e-0000-4000-8000-000000000001";
const LINK: &str = "ha-lab";
/// Valid on one link only, as that of each router: it belongs to no other group.
const ADDRESS: &str = "169.254.0.1/24";
const VRID: u8 = 7;

impl ClusterHost {
    /// The directory with the routers.
    pub fn router_directory(&self) -> PathBuf {
        self.file("neutron/ha_confs")
    }

    fn router_file(&self, name: &str) -> PathBuf {
        self.router_directory().join(ROUTER).join(name)
    }

    /// Creates the router, which holds its address.
    pub fn create_router(&self, setup: &ClusterRunSetup) -> Result<(), FaultsError> {
        let run = |line: &str| self.base.run(line).map(drop);
        run(&format!("ip netns add qrouter-{ROUTER}"))?;
        let ip = format!("ip -n qrouter-{ROUTER}");
        run(&format!("{ip} link add {LINK} type veth peer name ha-peer"))?;
        run(&format!("{ip} link set ha-peer up"))?;
        run(&format!("{ip} link set {LINK} up"))?;
        run(&format!("{ip} address add {ADDRESS} dev {LINK}"))?;
        std::fs::create_dir_all(self.router_directory().join(ROUTER))?;
        self.write_state("primary")?;
        let interval = f64::from(setup.keepalived.advert_millis) / 1000.0;
        let text = format!(
            "vrrp_instance VR_{VRID} {{\n  state BACKUP\n  interface {LINK}\n  virtual_router_id {VRID}\n  \
             priority 50\n  version {}\n  advert_int {interval}\n  virtual_ipaddress {{\n    \
             {ADDRESS} dev {LINK}\n  }}\n}}\n",
            setup.keepalived.version
        );
        write_file(&self.router_file("keepalived.conf"), &text)
    }

    /// Removes the address from the kernel.
    pub fn release_router(&self) -> Result<(), FaultsError> {
        let line = format!("ip -n qrouter-{ROUTER} address del {ADDRESS} dev {LINK}");
        self.base.run(&line).map(drop)
    }

    /// Writes the state file, as the monitor does.
    pub fn write_state(&self, word: &str) -> Result<(), FaultsError> {
        write_file(&self.router_file("state"), word)
    }

    /// Removes the namespace and the files.
    pub fn remove_router(&self) -> Result<(), FaultsError> {
        self.base.run(&format!("ip netns del qrouter-{ROUTER}"))?;
        Ok(std::fs::remove_dir_all(self.router_directory().join(ROUTER))?)
    }
}
