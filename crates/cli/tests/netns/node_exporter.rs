// SPDX-License-Identifier: Apache-2.0
//! Debian's node exporter reads the metrics file of a node.

use std::path::Path;
use std::process::{Child, Stdio};

use vipwatch_testkit::monitor::output_of;
use vipwatch_testkit::{Lab, TestNetns, wait_for, wait_showing};

use crate::support::{fixture_with, vi_1_conf};

const ADDRESS: &str = "127.0.0.1:9100";

/// A running node exporter. Dropping it kills the process.
struct NodeExporter(Child);

impl NodeExporter {
    /// Starts it in `netns`, in which no other test can use its port.
    fn start(netns: &TestNetns, directory: &Path, log: &Path) -> Self {
        let mut command = netns.command("prometheus-node-exporter");
        command
            .args(["--collector.disable-defaults", "--collector.textfile"])
            .arg(format!("--collector.textfile.directory={}", directory.display()))
            .arg(format!("--web.listen-address={ADDRESS}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(log).unwrap());
        Self(command.spawn().unwrap())
    }
}

impl Drop for NodeExporter {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_node_exporter_exports_the_metrics_file_without_an_error() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let directory = lab.path().join("textfile");
    std::fs::create_dir(&directory).unwrap();
    let file = directory.join("vipwatch.prom");
    fixture.configure(&format!("[metrics]\ntextfile = {file:?}\ntextfile_every = \"1s\"\n"));
    let node = fixture.start();
    wait_for("the file", || file.exists().then_some(()));
    let monitoring = lab.netns("m");
    let log_file = lab.path().join("node-exporter.log");
    let _exporter = NodeExporter::start(&monitoring, &directory, &log_file);
    let log = || std::fs::read_to_string(&log_file).unwrap_or_default();
    let scrape = || {
        let mut command = monitoring.command("curl");
        command.args(["-sS", "--max-time", "30", &format!("http://{ADDRESS}/metrics")]);
        String::from_utf8(output_of(&mut command).stdout).unwrap()
    };
    let text = wait_showing("an answer", log, || Some(scrape()).filter(|text| !text.is_empty()));
    assert!(text.contains("\nnode_textfile_scrape_error 0\n"), "{text}");
    let role = text.lines().find(|line| line.starts_with("vipwatch_role_primary{"));
    let labels = format!("netns=\"{}\"", netns.name());
    assert!(role.is_some_and(|line| line.contains(&labels) && line.ends_with(" 0")), "{text}");
    assert!(text.contains("\nnode_textfile_mtime_seconds{file="), "{text}");
    // Debian's node exporter logs every metric that it rejects.
    assert!(!log().contains("level=error"), "{}", log());
    assert!(node.stop().success());
    let text = scrape();
    assert!(!text.contains("vipwatch"), "a stopped node has no metrics: {text}");
}
