// SPDX-License-Identifier: Apache-2.0
//! The peers' way to read the states: a signal has keepalived write a file, which the exporter parses.
//!
//! Exporters such as mehdy/keepalived-exporter send the signal to the process and read the file in the directory for
//! temporary files.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use vipwatch_testkit::monitor::read_pid;
use vipwatch_testkit::{Lab, TestNetns, pause, run};

use crate::measure::{self, Samples, kill_all, ms, thread_cpu, write_file};
use crate::node::until;

/// Instances on each link; a link has 255 virtual router ids.
const PER_LINK: usize = 250;
/// Maximum time of one dump, and of the start.
const DUMP_TIMEOUT: Duration = Duration::from_secs(30);
/// Time in which the CPU time without a dump is measured.
const IDLE_SPAN: Duration = Duration::from_secs(3);

/// What one dump costs.
pub struct DumpCost {
    /// Number of instances of the keepalived.
    pub instances: f64,
    /// From the signal to the parsed file, in ms.
    pub time: Samples,
    /// CPU time of keepalived, in ms, without what it uses anyway.
    pub cpu: f64,
}

/// Starts one keepalived with `count` instances, and has it write `dumps` dumps; `None` if it does not.
pub fn dump_cost(count: usize, dumps: u32) -> Option<DumpCost> {
    let lab = Lab::new();
    let netns = lab.netns("peer");
    let keepalived = PeerKeepalived::start(&lab, &netns, count);
    let file = lab.path().join("keepalived.json");
    let pids = until(DUMP_TIMEOUT, || keepalived.pids())?;
    let used = || pids.iter().map(|pid| thread_cpu(*pid)).sum::<f64>();
    // keepalived takes the signal only after its start.
    until(DUMP_TIMEOUT, || dump(pids[0], &file, count, Duration::from_secs(2)))?;
    let (before, since) = (used(), Instant::now());
    pause(IDLE_SPAN);
    let idle_share = (used() - before) / ms(since.elapsed());
    let (before, since) = (used(), Instant::now());
    let times: Option<Vec<f64>> =
        (0..dumps).map(|_| dump(pids[0], &file, count, DUMP_TIMEOUT)).collect();
    let cpu = used() - before - idle_share * ms(since.elapsed());
    let cpu = cpu.max(0.0) / f64::from(dumps);
    Some(DumpCost { instances: measure::count(count), time: Samples::of(times?), cpu })
}

/// A keepalived with many instances. It is killed when dropped.
struct PeerKeepalived {
    child: Child,
    pid_files: [std::path::PathBuf; 2],
}

impl PeerKeepalived {
    fn start(lab: &Lab, netns: &TestNetns, count: usize) -> Self {
        let mut config = String::from("global_defs {\n  router_id peer\n}\n");
        for number in 0..count {
            let (link, vrid) = (number / PER_LINK, number % PER_LINK + 1);
            if vrid == 1 {
                netns.add_link(&format!("eth{link}"));
                netns.ip(&format!("address add 198.18.{link}.1/24 dev eth{link}"));
            }
            let _ = write!(
                config,
                "vrrp_instance VI_{number} {{\n  state BACKUP\n  interface eth{link}\n  \
                 virtual_router_id {vrid}\n  priority 100\n  advert_int 1\n  virtual_ipaddress {{\n    \
                 10.{link}.{vrid}.1/32 dev eth{link}\n  }}\n}}\n"
            );
        }
        let path = lab.path().join("keepalived.conf");
        write_file(&path, &config);
        let pid_files = ["keepalived.pid", "keepalived-vrrp.pid"].map(|name| lab.path().join(name));
        let mut command = netns.command("keepalived");
        // keepalived writes its dump into this directory; without it, into /tmp.
        command.env("TMPDIR", lab.path());
        command.args(["-n", "-P", "-l", "-f"]).arg(&path);
        command.arg("-p").arg(&pid_files[0]).arg("-r").arg(&pid_files[1]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().expect("start keepalived");
        Self { child, pid_files }
    }

    /// The pids of the parent and of the process that runs VRRP; `None` before they have started.
    fn pids(&self) -> Option<Vec<i32>> {
        self.pid_files.iter().map(|file| read_pid(file)).collect()
    }
}

/// Sends the signal, and returns the milliseconds until the file is complete and parsed; `None` after `limit`.
fn dump(pid: i32, file: &Path, count: usize, limit: Duration) -> Option<f64> {
    let _ = std::fs::remove_file(file);
    let (mut sender, mut trigger) = signal_sender(pid);
    let began = Instant::now();
    trigger.write_all(b"\n").ok()?;
    let parsed = until(limit, || {
        let text = std::fs::read(file).ok().filter(|text| text.trim_ascii_end().ends_with(b"]"))?;
        let value: serde_json::Value = serde_json::from_slice(&text).ok()?;
        (value.as_array()?.len() == count).then_some(())
    });
    let took = ms(began.elapsed());
    drop(trigger);
    let _ = sender.wait();
    parsed.map(|()| took)
}

/// A shell that sends the signal for a dump as soon as it reads a line, so that its start is not measured.
fn signal_sender(pid: i32) -> (Child, ChildStdin) {
    let number = run(Command::new("keepalived").arg("--signum=JSON"));
    let script = format!("read line; kill -{} {pid}", number.trim());
    let mut command = Command::new("sh");
    command.args(["-c", &script]).stdin(Stdio::piped());
    let mut child = command.spawn().expect("start sh");
    let trigger = child.stdin.take().expect("stdin is a pipe");
    // The shell waits for the line after this time.
    pause(Duration::from_millis(20));
    (child, trigger)
}

impl Drop for PeerKeepalived {
    fn drop(&mut self) {
        kill_all(self.pids().into_iter().flatten());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
