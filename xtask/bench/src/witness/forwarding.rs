// SPDX-License-Identifier: Apache-2.0
//! Measures the throughput of a router while its links are captured and while they are not.

use std::cell::Cell;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use vipwatch_testkit::{Lab, NodeFixture, TestNetns, wait_for};

use crate::measure::{Samples, write_file};

/// Settings for the links that are captured: none; received adverts, the default; received and sent adverts, the default of
/// links `ha-*` only.
const MODES: [&str; 3] =
    ["[witness]\nenabled = false\n", "[witness]\n", "[witness]\nsent = [\"eth*\"]\n"];

/// Throughput of the router, medians.
#[derive(Clone, Copy, Default)]
pub struct Throughput {
    /// One TCP connection, in Gbit/s.
    pub tcp: Option<f64>,
    /// UDP packets of 64 bytes that arrive, in thousands a second.
    pub udp: Option<f64>,
}

/// A client, a router and a server.
struct RoutedPath {
    client: TestNetns,
    router: TestNetns,
    server: TestNetns,
    lab: Lab,
    /// The port of the next measurement: the last one may still be in use.
    port: Cell<u16>,
}

impl RoutedPath {
    fn new() -> Self {
        let lab = Lab::new();
        let [client, router, server] = ["client", "router", "server"].map(|name| lab.netns(name));
        let router_name = router.name();
        for (host, link, net) in [(&client, "eth0", 1), (&server, "eth1", 2)] {
            host.ip(&format!("link add eth0 type veth peer name {link} netns {router_name}"));
            host.ip(&format!("address add 10.0.{net}.2/24 dev eth0"));
            router.ip(&format!("address add 10.0.{net}.1/24 dev {link}"));
            host.ip("link set eth0 up");
            router.ip(&format!("link set {link} up"));
            host.ip(&format!("route add default via 10.0.{net}.1"));
        }
        router.visit(|| write_file("/proc/sys/net/ipv4/ip_forward".as_ref(), "1"));
        Self { client, router, server, lab, port: Cell::new(5201) }
    }

    /// Runs iperf3 for `span`; returns its result in bits or packets for each second.
    fn iperf(&self, span: Duration, args: &[&str], member: &str) -> Option<f64> {
        let port = self.port.replace(self.port.get() + 1);
        let mut server = self.server.command("iperf3");
        let server = server.args(["-s", "-1", "-p", &port.to_string()]).stdout(Stdio::null());
        let mut server = server.spawn().ok()?;
        let listener = format!(":{port:04X} 00000000000000000000000000000000:0000 0A");
        let sockets = || std::fs::read_to_string("/proc/thread-self/net/tcp6").unwrap_or_default();
        wait_for("iperf3 to listen", || {
            self.server.visit(sockets).contains(&listener).then_some(())
        });
        let [seconds, port] = [span.as_secs().to_string(), port.to_string()];
        let mut client: Command = self.client.command("iperf3");
        client.args(["-c", "10.0.2.2", "-p", &port, "-J", "-t", &seconds]).args(args);
        let output = client.output().ok()?;
        // The server ends after one client, unless that could not connect.
        let _ = server.kill();
        let _ = server.wait();
        let result: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
        let sum = &result["end"][member];
        match sum["packets"].as_f64() {
            Some(packets) => {
                let lost = sum["lost_packets"].as_f64()?;
                Some((packets - lost) / sum["seconds"].as_f64()? / 1e3)
            }
            None => Some(sum["bits_per_second"].as_f64()? / 1e9),
        }
    }

    /// The node in the router's namespace, with an instance on each link.
    fn node(&self, subject: &Path, settings: &str) -> NodeFixture {
        let fixture = NodeFixture::new(subject, self.lab.path()).on(&self.router);
        let instances = [0, 1].map(|number| {
            format!(
                "vrrp_instance VI_{number} {{\ninterface eth{number}\nvirtual_router_id {}\npriority 100\n\
                 virtual_ipaddress {{\n10.0.{}.9/24\n}}\n}}\n",
                number + 1,
                number + 1
            )
        });
        write_file(&fixture.keepalived_conf(), &instances.concat());
        fixture.configure(settings);
        fixture
    }
}

/// Measures the three [`MODES`] in turn, so that a change of the machine's load affects all. The result has their order.
pub fn throughput(subject: &Path, rounds: usize, span: Duration) -> [Throughput; 3] {
    let path = RoutedPath::new();
    let mut tcp: [Vec<f64>; 3] = Default::default();
    let mut udp: [Vec<f64>; 3] = Default::default();
    for _ in 0..rounds {
        for (index, mode) in MODES.into_iter().enumerate() {
            let fixture = path.node(subject, mode);
            let node = fixture.start();
            let wanted = if index == 0 { 0 } else { 2 };
            wait_for("the capture", || {
                let read = || std::fs::read_to_string("/proc/thread-self/net/packet");
                let table = path.router.visit(read).ok()?;
                (table.lines().count() == wanted + 1).then_some(())
            });
            tcp[index].extend(path.iperf(span, &[], "sum_received"));
            udp[index].extend(path.iperf(span, &["-u", "-b", "0", "-l", "64"], "sum"));
            let _ = node.stop();
        }
    }
    let mut udp = udp.into_iter();
    tcp.map(|tcp| Throughput {
        tcp: Samples::of(tcp).p50(),
        udp: Samples::of(udp.next().unwrap_or_default()).p50(),
    })
}
