// SPDX-License-Identifier: Apache-2.0
//! Neutron's own code against `vipwatch`: discovery reads the configurations that Neutron's `keepalived` classes
//! write, Neutron's monitors report to the receiver, and the cluster view is compared with Neutron's API. `cargo xtask test`
//! installs Neutron from PyPI.

#![expect(clippy::unwrap_used, reason = "a panic fails the test with its message")]

mod ha_state;

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use vipwatch_testkit::monitor::output_of;
use vipwatch_testkit::wait::wait_within;
use vipwatch_testkit::{Lab, Release, Router, wait_for};

/// Writes the configurations of 50 routers as the agent does, with every kind of line.
const GENERATOR: &str = r"
import os, sys
from unittest import mock
from neutron.agent.linux import keepalived
with mock.patch.object(keepalived, '_is_keepalived_use_no_track_supported', return_value=True):
    for number in range(1, 51):
        conf = keepalived.KeepalivedConf()
        instance = keepalived.KeepalivedInstance(
            'BACKUP', 'ha-%08d' % number, number, ['169.254.192.0/18'],
            advert_int=2, priority=50, nopreempt=True)
        for floating in range(number % 5):
            instance.add_vip('10.1.%d.%d/32' % (number, floating + 1), 'qg-1', None)
        instance.add_vip('2001:db8:%x::1/64' % number, 'qr-1', None)
        instance.add_vip('fe80::f816:3eff:fe00:%x/64' % number, 'qr-1', 'link')
        instance.virtual_routes.gateway_routes = [
            keepalived.KeepalivedVirtualRoute('0.0.0.0/0', '10.1.0.254', 'qg-1')]
        conf.add_instance(instance)
        path = os.path.join(sys.argv[1], 'ha_confs', 'router-%d' % number)
        os.makedirs(path)
        with open(os.path.join(path, 'keepalived.conf'), 'w') as f:
            f.write(conf.get_config_str())
";

/// The output of `vipwatch discover` for the configurations of one release. `home` is the environment variable
/// with the path of its virtual environment.
fn discover(home: &str) -> Value {
    let directory = tempfile::tempdir().unwrap();
    let python = PathBuf::from(
        std::env::var_os(home)
            .unwrap_or_else(|| panic!("{home} is not set; hint: run `cargo xtask test neutron`")),
    );
    let mut generate = Command::new(python.join("bin/python"));
    let output = output_of(generate.args(["-c", GENERATOR]).arg(directory.path()));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let empty = directory.path().join("keepalived.conf");
    std::fs::File::create(&empty).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_vipwatch"));
    command.args(["discover", "-o", "json", "--keepalived-conf"]).arg(empty);
    let output = output_of(command.arg("--state-path").arg(directory.path()));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn assert_every_line_is_read(home: &str) {
    let answer = discover(home);
    assert_eq!(answer["problems"], Value::Array(Vec::new()));
    let instances = answer["instances"].as_array().unwrap();
    assert_eq!(instances.len(), 50);
    for number in 1..=50_usize {
        let id = format!("router-{number}");
        let instance = instances.iter().find(|instance| instance["id"] == id.as_str()).unwrap();
        assert_eq!(instance["netns"], format!("qrouter-{id}"));
        assert_eq!(
            (instance["vrid"].as_u64(), instance["priority"].as_u64()),
            (Some(number as u64), Some(50))
        );
        assert_eq!(instance["advert_interval"], 2.0);
        assert_eq!(instance["interface"], format!("ha-{number:08}"));
        let addresses = instance["addresses"].as_array().unwrap();
        assert_eq!(addresses.len(), 1 + number % 5 + 2, "{instance}");
        let decisive: Vec<&Value> =
            addresses.iter().filter(|address| address["floating"] == false).collect();
        assert_eq!(decisive.len(), 1);
        assert!(decisive[0]["cidr"].as_str().unwrap().starts_with("169.254.0."), "{instance}");
    }
}

#[test]
fn every_line_that_neutron_29_writes_is_read() {
    assert_every_line_is_read("VIPWATCH_NEUTRON_29");
}

#[test]
fn every_line_that_neutron_28_writes_is_read() {
    assert_every_line_is_read("VIPWATCH_NEUTRON_28");
}

/// A running `vipwatch receiver`. It is killed when this value is dropped.
struct Receiver {
    child: std::process::Child,
    directory: PathBuf,
}

impl Receiver {
    fn start(directory: &Path) -> Self {
        let child = Command::new(env!("CARGO_BIN_EXE_vipwatch"))
            .args(["receiver", "--interval", "500ms", "--state-path"])
            .arg(directory)
            .arg("--state-dir")
            .arg(directory.join("receiver"))
            .arg("--status-socket")
            .arg(directory.join("agent.sock"))
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let socket = directory.join("keepalived-state-change");
        wait_for("the receiver", || std::os::unix::net::UnixStream::connect(&socket).ok());
        Self { child, directory: directory.to_owned() }
    }

    /// The settled state of a router; `None` before its first report.
    fn settled(&self, id: &str) -> Option<String> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vipwatch"));
        command.args(["receiver", "status", "-o", "json", "--status-socket"]);
        let output = output_of(command.arg(self.directory.join("agent.sock")));
        let answer: Value = serde_json::from_slice(&output.stdout).ok()?;
        let routers = answer["items"].as_array()?;
        let router = routers.iter().find(|router| router["id"] == id)?;
        router["settled"].as_str().map(str::to_owned)
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs an unmodified monitor of Neutron through real changes and checks the settled states of the receiver, also
/// after a kill of the receiver.
fn assert_reports_are_understood(program: &Path, release: Release, extra: &[&str]) {
    let lab = Lab::new();
    let mut router = Router::new(&lab, release);
    router.extra = extra.iter().map(ToString::to_string).collect();
    let receiver = Receiver::start(lab.path());
    let _monitor = router.start(program);
    router.wait_for_state("backup");
    // The script sends no report before the first event, and misses events before `ip monitor` runs: so the test
    // repeats a harmless change.
    let ((editor, link), other) = (router.editor(), "10.9.9.9/32".parse().unwrap());
    wait_within(std::time::Duration::from_mins(1), "the first report", || {
        editor.add(link, other);
        editor.remove(link, other);
        (receiver.settled(&router.id)? == "backup").then_some(())
    });
    // The daemon misses events for some time after its first report, too.
    router.take_vip();
    wait_within(std::time::Duration::from_mins(1), "the monitor to notice the address", || {
        router.drop_vip();
        router.take_vip();
        (router.state()? == "primary").then_some(())
    });
    for state in ["primary", "backup", "primary"] {
        wait_within(std::time::Duration::from_mins(1), state, || {
            (receiver.settled(&router.id)? == state).then_some(())
        });
        match state {
            "primary" => router.drop_vip(),
            _ => router.take_vip(),
        }
    }
    wait_within(std::time::Duration::from_mins(1), "the last report", || {
        (receiver.settled(&router.id)? == "backup").then_some(())
    });
    drop(receiver);
    let restarted = Receiver::start(lab.path());
    assert_eq!(
        restarted.settled(&router.id).as_deref(),
        Some("backup"),
        "the state survives a kill"
    );
}

fn monitor_of(home: &str) -> PathBuf {
    PathBuf::from(std::env::var_os(home).unwrap()).join("bin/neutron-keepalived-state-change")
}

#[test]
fn the_script_of_neutron_29_reports_to_our_receiver() {
    assert_reports_are_understood(&monitor_of("VIPWATCH_NEUTRON_29"), Release::V29, &[]);
}

#[test]
fn the_daemon_of_neutron_28_reports_to_our_receiver() {
    // Without this option it would search for a configuration file of Neutron, which does not exist here.
    let extra = ["--config-file=/dev/null"];
    assert_reports_are_understood(&monitor_of("VIPWATCH_NEUTRON_28"), Release::V26, &extra);
}
