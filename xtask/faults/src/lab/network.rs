// SPDX-License-Identifier: Apache-2.0
//! The networks of a lab, each with a bridge in the namespace of the lab and a link on each host, and their faults.
//!
//! ```text
//!   br0  data         eth0   keepalived's adverts and the virtual addresses
//!   br1  management   mgmt0  etcd
//!   br2  notification out0   webhooks to the recorder; it has no faults
//!   br3  heartbeat    hb0    the adverts, in labs where they have a network of their own
//! ```

use serde::{Deserialize, Serialize};

use super::host::LabHost;
use super::run;
use crate::setup::{DataLink, HEARTBEAT_LINK, LINK, LabSetup};
use crate::{FaultsError, LabResult};

/// A network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LabNetwork {
    Data,
    Management,
    Notification,
    Heartbeat,
}

/// The names of a network's parts.
struct NetworkNames {
    bridge: &'static str,
    /// The name of a port at the bridge, without the number of its host.
    port: &'static str,
    /// The link of each host.
    link: &'static str,
}

impl LabNetwork {
    const ALL: [Self; 4] = [Self::Data, Self::Management, Self::Notification, Self::Heartbeat];

    /// The word in the log of the injector.
    pub fn word(self) -> &'static str {
        if self == Self::Management { "mgmt" } else { "data" }
    }

    fn names(self) -> NetworkNames {
        match self {
            Self::Data => NetworkNames { bridge: "br0", port: "p", link: LINK },
            Self::Management => NetworkNames { bridge: "br1", port: "m", link: "mgmt0" },
            Self::Notification => NetworkNames { bridge: "br2", port: "o", link: "out0" },
            Self::Heartbeat => NetworkNames { bridge: "br3", port: "h", link: HEARTBEAT_LINK },
        }
    }

    /// The network in which a disturbance of this network concerns the adverts, not only a link.
    pub fn of_adverts(self, kind: Disturbance, setup: &LabSetup) -> Self {
        let is_of_link = matches!(kind, Disturbance::Down | Disturbance::NoCarrier);
        if self == Self::Data && setup.has_heartbeat && !is_of_link {
            Self::Heartbeat
        } else {
            self
        }
    }
}

/// A fault of one host's connection to a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Disturbance {
    /// The port leaves the bridge: both sides stay up.
    Cut,
    /// The host receives nothing.
    ReceiveLoss,
    /// The host sends nothing.
    SendLoss,
    /// The link is set down on the host.
    Down,
    /// The port is set down at the switch.
    NoCarrier,
}

/// Creates an empty `/run`, and the bridges.
pub fn prepare() -> LabResult {
    run("mount", "--make-rprivate /")?;
    run("mount", "-t tmpfs tmpfs /run")?;
    run("ip", "link set lo up")?;
    for network in LabNetwork::ALL {
        let bridge = network.names().bridge;
        run("ip", &format!("link add {bridge} type bridge forward_delay 0 mcast_snooping 0"))?;
        run("ip", &format!("link set {bridge} up"))?;
    }
    run("ip", "address add 10.7.0.254/24 dev br2").map(drop)
}

impl LabHost {
    /// Connects a new host link with a network's bridge.
    pub fn connect(&self, network: LabNetwork, address: &str) -> LabResult {
        let NetworkNames { bridge, link, .. } = network.names();
        let (port, init) = (self.port(network), self.init);
        run("ip", &format!("link add {port} type veth peer name {link} netns {init}"))?;
        run("ip", &format!("link set {port} master {bridge}"))?;
        run("ip", &format!("link set {port} up"))?;
        self.set_up(link, address)
    }

    /// Connects a new host link of this kind with the data network.
    pub fn connect_data(&self, kind: DataLink, address: &str) -> LabResult {
        let (network, init) = (LabNetwork::Data, self.init);
        let NetworkNames { bridge, link, .. } = network.names();
        let port = self.port(network);
        match kind {
            DataLink::Veth => self.connect(network, address),
            DataLink::Macvlan => {
                run("ip", &format!("link add {port} type veth peer name lower0 netns {init}"))?;
                run("ip", &format!("link set {port} master {bridge} up"))?;
                // Otherwise it answers for the address of the link above it, and unicast adverts arrive below that link.
                self.run("ip link set lower0 up arp off")?;
                self.run(&format!("ip link add {link} link lower0 type macvlan mode bridge"))?;
                self.set_up(link, address)
            }
            DataLink::Routed => {
                let router = format!("10.9.{}.254", self.index + 1);
                run("ip", &format!("link add {port} type veth peer name {link} netns {init}"))?;
                run("ip", &format!("link set {port} up"))?;
                run("ip", &format!("address add {router}/24 dev {port}"))?;
                self.set_up(link, address)?;
                self.run(&format!("ip route add default via {router}"))?;
                run("sysctl", "-q -w net.ipv4.ip_forward=1").map(drop)
            }
        }
    }

    /// Sets a link up and gives it its address, which the kernel removes when an IPv6 link is set down.
    fn set_up(&self, link: &str, address: &str) -> LabResult {
        self.run(&format!("ip link set {link} up"))?;
        let flag = if address.contains(':') { "nodad" } else { "" };
        self.run(&format!("ip address replace {address} dev {link} {flag}")).map(drop)
    }

    fn port(&self, network: LabNetwork) -> String {
        format!("{}{}", network.names().port, self.index)
    }

    /// The index of the port through which the adverts go.
    pub fn port_index(&self, setup: &LabSetup) -> LabResult<u32> {
        let network = LabNetwork::Data.of_adverts(Disturbance::Cut, setup);
        // `/sys` may be that of another network namespace.
        let line = run("ip", &format!("-o link show dev {}", self.port(network)))?;
        let index = line.split(':').next().and_then(|index| index.trim().parse().ok());
        index.ok_or_else(|| FaultsError(format!("no index in {line:?}")))
    }

    /// The link-layer address of the link in the data network.
    pub fn link_address(&self) -> LabResult<String> {
        let line = self.run(&format!("ip -o link show dev {LINK}"))?;
        let mut words = line.split_whitespace().skip_while(|word| *word != "link/ether");
        let address = words.nth(1).map(str::to_owned);
        address.ok_or_else(|| FaultsError(format!("no link-layer address in {line:?}")))
    }

    pub fn disturb(&self, network: LabNetwork, kind: Disturbance) -> LabResult {
        let (port, link) = (self.port(network), network.names().link);
        match kind {
            Disturbance::Cut => run("ip", &format!("link set {port} nomaster")),
            Disturbance::ReceiveLoss => block(&port, |line| run("tc", line)),
            Disturbance::SendLoss => block(link, |line| self.run(&format!("tc {line}"))),
            Disturbance::Down => self.run(&format!("ip link set {link} down")),
            Disturbance::NoCarrier => run("ip", &format!("link set {port} down")),
        }
        .map(drop)
    }

    pub fn heal(&self, network: LabNetwork, kind: Disturbance) -> LabResult {
        let (port, link) = (self.port(network), network.names().link);
        match kind {
            Disturbance::Cut => {
                run("ip", &format!("link set {port} master {}", network.names().bridge))
            }
            Disturbance::ReceiveLoss => run("tc", &format!("qdisc del dev {port} root")),
            Disturbance::SendLoss => self.run(&format!("tc qdisc del dev {link} root")),
            Disturbance::Down => return self.set_up(link, &self.own_address),
            Disturbance::NoCarrier => run("ip", &format!("link set {port} up")),
        }
        .map(drop)
    }
}

/// Drops all frames that leave a link. A token bucket that is smaller than every frame exists in kernels without `netem`.
fn block(link: &str, tc: impl Fn(&str) -> LabResult<String>) -> LabResult<String> {
    tc(&format!("qdisc replace dev {link} root netem loss 100%"))
        .or_else(|_| tc(&format!("qdisc replace dev {link} root tbf rate 8bit burst 1 limit 1")))
}
