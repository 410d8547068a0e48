// SPDX-License-Identifier: Apache-2.0
//! Measures a node with its witness, and the same node without it.

mod adverts;
mod findings;
mod forwarding;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use vipwatch_testkit::{Lab, NodeFixture, Routers, pause};

use self::adverts::{AdvertSender, send_all};
use self::findings::{FindingDelays, advert_findings, process_findings};
use self::forwarding::{Throughput, throughput};
use crate::args::{BenchArgs, namespaces};
use crate::measure::{MemoryUse, Samples, memory, ms, thread_cpu, wakeups, write_file};
use crate::node::{START_TIMEOUT, STATES, event_to_file, wait_for_all, with_state_files};
use crate::report::{BenchReport, BenchTarget, Row};

/// The measured node.
struct Setup<'a> {
    fixture: &'a NodeFixture,
    routers: &'a Routers,
    senders: &'a [AdvertSender],
}

/// The results of one mode, one entry for each round.
#[derive(Default)]
struct Rounds {
    /// In percent of one core.
    cpu: Vec<f64>,
    /// For each second.
    wakeups: Vec<f64>,
    /// In KiB.
    rss: Vec<f64>,
    anonymous: Vec<f64>,
    /// From a change to its state file, the medians and 99th percentiles in ms.
    file_p50: Vec<f64>,
    file_p99: Vec<f64>,
    /// From the signal to the end of the process, in ms.
    kill: Vec<f64>,
    stop: Vec<f64>,
}

/// Runs all measurements.
pub fn run(args: &BenchArgs) -> BenchReport {
    let load = load_average();
    let count = namespaces(args.pick(100, 1000));
    eprintln!("bench: making {count} namespaces");
    let lab = Lab::new();
    let routers = Routers::new(lab.path(), &format!("w{count}"), count, 0);
    advertise_every_second(&lab, &routers);
    let senders = AdvertSender::for_all(&routers);
    let has_ended = AtomicBool::new(false);
    let fixture = NodeFixture::new(&args.subject, lab.path());
    let mut delays = FindingDelays::default();
    let [off, on] = std::thread::scope(|scope| {
        scope.spawn(|| send_all(&senders, &has_ended));
        let setup = Setup { fixture: &fixture, routers: &routers, senders: &senders };
        let rounds = rounds(args, &setup, &mut delays);
        has_ended.store(true, Ordering::Relaxed);
        rounds
    });
    eprintln!("bench: findings about processes");
    delays.process = process_findings(&args.subject, args.pick(5, 200)).unwrap_or_default();
    eprintln!("bench: forwarding");
    let span = Duration::from_secs(args.pick(3, 10));
    let forwarded = throughput(&args.subject, args.pick(2, 5), span);
    let rows = rows(count, &on, &off, &delays, &forwarded);
    let mut report = BenchReport::new("witness", args, &["without witness"], rows);
    report.machine = format!("{}, load average {load} before the run", report.machine);
    report
}

/// Measures without and with the witness in turn, so that a change of the machine's load affects both.
fn rounds(args: &BenchArgs, setup: &Setup<'_>, delays: &mut FindingDelays) -> [Rounds; 2] {
    let mut rounds: [Rounds; 2] = Default::default();
    let count = args.pick(2, 5);
    for number in 1..=count {
        for (mode, rounds) in ["false", "true"].into_iter().zip(&mut rounds) {
            eprintln!("bench: round {number} of {count}: witness {mode}");
            let settings = format!("[witness]\nenabled = {mode}\n");
            setup.fixture.configure(&with_state_files(&settings));
            let is_last = number == count && mode == "true";
            round(args, setup, rounds, is_last.then_some(&mut *delays));
        }
    }
    rounds
}

fn round(
    args: &BenchArgs,
    setup: &Setup<'_>,
    rounds: &mut Rounds,
    delays: Option<&mut FindingDelays>,
) {
    let states = Path::new(STATES);
    let Setup { fixture, routers, senders } = setup;
    let node = fixture.start_within(START_TIMEOUT);
    wait_for_all(states, routers, "backup");
    // Work that the node defers after its start, and evidence that has not settled, are not part of the idle time.
    pause(Duration::from_secs(15));
    let pid = node.pid();
    let (used, woken, since) = (thread_cpu(pid), wakeups(pid), Instant::now());
    pause(Duration::from_secs(args.pick(10, 30)));
    let span = since.elapsed();
    rounds.cpu.push((thread_cpu(pid) - used) / ms(span) * 100.0);
    rounds.wakeups.push((wakeups(pid) - woken) / span.as_secs_f64());
    let files = event_to_file(states, routers, args.pick(200, 400));
    rounds.file_p50.extend(files.p50());
    rounds.file_p99.extend(files.p99());
    let MemoryUse { rss, anonymous, .. } = memory(&[pid]);
    rounds.rss.push(rss);
    rounds.anonymous.push(anonymous);
    if let Some(delays) = delays {
        eprintln!("bench: findings about adverts");
        advert_findings(fixture, routers, senders, args.pick(10, 40), delays);
    }
    let began = Instant::now();
    node.kill();
    rounds.kill.push(ms(began.elapsed()));
    let node = fixture.start_within(START_TIMEOUT);
    pause(Duration::from_secs(5));
    let began = Instant::now();
    let _ = node.stop();
    rounds.stop.push(ms(began.elapsed()));
}

/// Sets the interval of all instances to one second.
fn advertise_every_second(lab: &Lab, routers: &Routers) {
    for router in &routers.each {
        let path = lab.path().join("ha_confs").join(&router.id).join("keepalived.conf");
        let text = std::fs::read_to_string(&path).expect("read a configuration");
        write_file(&path, &text.replace("advert_int 2", "advert_int 1"));
    }
}

/// The load average of the last minute.
fn load_average() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or_default().to_owned()
}

/// The rows of the report.
fn rows(
    count: usize,
    on: &Rounds,
    off: &Rounds,
    delays: &FindingDelays,
    forwarded: &[Throughput; 3],
) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut row = |metric: String, unit, ours: Option<f64>, peer: Option<f64>, target| {
        rows.push(Row::new(metric, unit).ours(ours).peer(peer).target(target));
    };
    let mut both = |name: &str, unit, scale: f64, of: &dyn Fn(&Rounds) -> &[f64], target| {
        let value = |rounds| Samples::of(of(rounds).to_vec()).p50().map(|value| value / scale);
        row(format!("{count} instances: {name}"), unit, value(on), value(off), target);
    };
    let more = |limit| Some(BenchTarget::MoreThanPeer(limit));
    both("CPU at one advert a second each", "%", 1.0, &|r| &r.cpu, more(0.5));
    both("wake-ups", "1/s", 1.0, &|r| &r.wakeups, None);
    both("resident memory", "MiB", 1024.0, &|r| &r.rss, more(4.0));
    both("of that anonymous memory", "MiB", 1024.0, &|r| &r.anonymous, more(4.0));
    let slower = Some(BenchTarget::AtMostTimesPeer(1.1));
    both("change → state file, p50", "ms", 1.0, &|r| &r.file_p50, slower);
    both("change → state file, p99", "ms", 1.0, &|r| &r.file_p99, None);
    let second = Some(BenchTarget::AtMost(1000.0));
    both("SIGKILL → process gone", "ms", 1.0, &|r| &r.kill, second);
    both("SIGTERM → process gone", "ms", 1.0, &|r| &r.stop, second);
    for (name, samples, limit) in [
        ("keepalived killed → finding", &delays.process, 50.0),
        ("adverts stop → `no-primary`", &delays.silence, 1050.0),
        ("adverts of a second primary → `two-primaries`", &delays.overlap, 1050.0),
    ] {
        for (share, value) in [("p50", samples.p50()), ("p99", samples.p99())] {
            let name = format!("{name}, beyond its settle time, {share}");
            row(name, "ms", value, None, Some(BenchTarget::AtMost(limit)));
        }
    }
    let [without, received, sent] = forwarded;
    let faster = Some(BenchTarget::AtLeastTimesPeer(0.97));
    for (mode, with, target) in [("received", received, faster), ("received and sent", sent, None)]
    {
        let name = |what: &str| format!("forwarding, {mode} adverts captured: {what}");
        row(name("one TCP connection"), "Gbit/s", with.tcp, without.tcp, target);
        row(name("UDP packets of 64 bytes"), "1000/s", with.udp, without.udp, target);
    }
    rows
}
