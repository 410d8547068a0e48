// SPDX-License-Identifier: Apache-2.0
//! Measures the announcement of addresses by the drop-in and by `arping`. `arping` is started as Neutron 10 to
//! 17 did: two processes for each address and round, one thread for each address.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ipnet::IpNet;
use vipwatch_testkit::keepalived::BridgeSwitch;
use vipwatch_testkit::monitor::{output_of, read_pid};
use vipwatch_testkit::wait::wait_within;
use vipwatch_testkit::{Behaviour, FakeAgent, Lab, Release, Router, TestNetns, Wire};

use crate::args::BenchArgs;
use crate::measure::{count, cpu, ms};
use crate::report::{BenchReport, BenchTarget, Row};

/// Maximum time for one round: enough for 1,000 addresses and 2,000 processes.
const ROUND_TIMEOUT: Duration = Duration::from_mins(2);

/// A router with addresses on `qg-1`, and a peer on the same bridge where tcpdump records the frames.
struct Setup {
    router: Router,
    wire: Wire,
    agent: FakeAgent,
    addresses: Vec<IpNet>,
    _peer: TestNetns,
    _switch: BridgeSwitch,
    lab: Lab,
}

/// The measured times of one round of announcements.
struct Burst {
    /// From the cause to the first frame, in ms.
    first: f64,
    /// From the cause to the last frame, in ms.
    last: f64,
    /// CPU time, in ms.
    cpu: f64,
}

impl Setup {
    fn new(count: usize) -> Self {
        let lab = Lab::new();
        let agent = FakeAgent::listen(lab.path(), Behaviour::Threaded);
        let mut router = Router::new(&lab, Release::V29);
        // With --debug, 1,000 addresses are more lines than the log buffers, and the line about their end is dropped.
        router.debug = false;
        let switch = BridgeSwitch::new(&lab);
        let peer = lab.netns("peer");
        // The drop-in would also announce the IPv6 address that the kernel adds by itself.
        vipwatch_testkit::run(
            router.netns.command("sysctl").args(["-qw", "net.ipv6.conf.all.disable_ipv6=1"]),
        );
        switch.plug(&router.netns, "qg-1", "port-r");
        switch.plug(&peer, "eth0", "port-p");
        let addresses: Vec<IpNet> = (0..count)
            .map(|n| format!("10.7.{}.{}/32", n / 200, n % 200 + 1).parse().expect("an address"))
            .collect();
        let editor = router.netns.editor();
        let link = editor.link("qg-1");
        for address in &addresses {
            editor.add(link, *address);
        }
        let wire = Wire::tap(&peer, "eth0");
        Self { router, wire, agent, addresses, _peer: peer, _switch: switch, lab }
    }

    /// Measures the frames that `work` sends: a request and a reply for each address. `finish` waits for the end
    /// of the work; the CPU time is read after that.
    fn time(&self, work: impl FnOnce(), finish: impl Fn(), cpu_of: impl Fn() -> f64) -> Burst {
        let frames = self.addresses.len() * 2;
        let before = cpu_of();
        let began = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        work();
        let times = wait_within(ROUND_TIMEOUT, "every announcement", || {
            let times: Vec<Duration> = self.wire.frames().iter().map(|frame| frame.at).collect();
            (times.len() >= frames).then_some(times)
        });
        finish();
        let since = |time: &Duration| ms(time.saturating_sub(began));
        Burst {
            first: times.iter().map(since).fold(f64::MAX, f64::min),
            last: times.iter().map(since).fold(0.0, f64::max),
            cpu: cpu_of() - before,
        }
    }

    /// Measures the drop-in: the virtual address is added, the router becomes primary, and the drop-in announces
    /// all addresses.
    fn ours(&self, subject: &Path) -> Burst {
        let config = self.lab.path().join("vipwatch.conf");
        let text = "[vipwatch]\nannounce = primary\nannounce_count = 1\nannounce_second_burst = 0\n\
                    announce_rate = 100000\n";
        std::fs::File::create(&config)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .expect("a configuration");
        let mut command = self.router.command(subject);
        let output = output_of(command.arg("--config-file").arg(config));
        assert!(output.status.success(), "{output:?}");
        self.agent.wait_for_words(&["backup"]);
        let pid = read_pid(&self.router.pid_file()).expect("a pid");
        let (editor, link) = self.router.editor();
        let vip = self.router.cidr.parse().expect("an address");
        let cpu_of = || cpu(&[pid]);
        let finish = || self.router.wait_for_log("Announced addresses of router");
        let [one] = *self.addresses else {
            return self.time(|| editor.add(link, vip), finish, cpu_of);
        };
        // A change of role costs more than the announcement of one address. Therefore the router becomes primary
        // first, and one new address is announced after that.
        let link_of_one = editor.link("qg-1");
        editor.remove(link_of_one, one);
        editor.add(link, vip);
        self.agent.wait_for_word("primary");
        self.time(|| editor.add(link_of_one, one), finish, cpu_of)
    }

    /// Measures `arping`, started as Neutron's monitor started it.
    fn arping(&self) -> Burst {
        let work = || {
            std::thread::scope(|scope| {
                for address in &self.addresses {
                    scope.spawn(|| {
                        for kind in ["-U", "-A"] {
                            arping(&self.router.netns, kind, address);
                        }
                    });
                }
            });
        };
        self.time(work, || {}, children_cpu)
    }
}

fn arping(netns: &TestNetns, kind: &str, address: &IpNet) {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", netns.name(), "arping", kind, "-I", "qg-1"]);
    command.args(["-c", "1", "-w", "2"]).arg(address.addr().to_string());
    // `arping` gets no answer and fails; here that is expected.
    let _ = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
}

/// CPU time of all ended children of this process, in ms.
fn children_cpu() -> f64 {
    let own = i32::try_from(std::process::id()).unwrap_or(0);
    crate::measure::waited_cpu(own)
}

/// Measures 1, 100 and 1,000 addresses; 1 and 20 in a quick run.
pub fn run(args: &BenchArgs) -> BenchReport {
    let counts: &[usize] = args.pick(&[1, 20], &[1, 100, 1000]);
    let mut rows = Vec::new();
    for &number in counts {
        let plural = if number == 1 { "address" } else { "addresses" };
        // One address takes so little time that the mean of ten rounds is reported.
        let repeats = if number == 1 { 10 } else { 1 };
        eprintln!("bench: {number} {plural}: vipwatch");
        let ours: Vec<_> = (0..repeats).map(|_| Setup::new(number).ours(&args.subject)).collect();
        eprintln!("bench: {number} {plural}: arping");
        let theirs: Vec<_> = (0..repeats).map(|_| Setup::new(number).arping()).collect();
        let row = |name: &str, unit, of: fn(&Burst) -> f64, scale: f64| {
            let mean =
                |bursts: &[Burst]| bursts.iter().map(of).sum::<f64>() / count(bursts.len()) * scale;
            let name = format!("{number} {plural}: {name}");
            Row::new(name, unit).ours(mean(&ours)).peer(mean(&theirs))
        };
        rows.push(row("cause → first frame on the wire", "ms", |burst| burst.first, 1.0));
        let target = (number == 1000).then_some(BenchTarget::AtMost(50.0));
        let last = row("cause → last frame of the round", "ms", |burst| burst.last, 1.0);
        rows.push(last.target(target));
        let cpu = row("CPU per address", "µs", |burst| burst.cpu, 1000.0 / count(number));
        rows.push(cpu.target(BenchTarget::TimesLess(100.0)));
    }
    let mut report = BenchReport::new("announce", args, &["arping -U, -A"], rows);
    report.title += ": one round, IPv4, a request and a reply for each address";
    report
}
