// SPDX-License-Identifier: Apache-2.0
//! Measures the search for instances: a scan of thousands of routers, and what a hostile file costs the others.
//!
//! The peer is an earlier build, if `VIPWATCH_BEFORE` names one. Both programs are measured in turn.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use vipwatch_testkit::{Lab, NodeFixture, Routers, pause};

use crate::args::BenchArgs;
use crate::measure::{Samples, ms, write_file};
use crate::node::{START_TIMEOUT, STATES, event_to_file, wait_for_all, with_state_files};
use crate::report::{BenchReport, BenchTarget, Row};

/// Size of the hostile file, the largest that is read.
const HOSTILE_BYTES: usize = 4 << 20;

/// Pause between two versions of the hostile file: longer than a file is taken for incomplete.
const REWRITE_INTERVAL: Duration = Duration::from_millis(150);

/// The medians of all rounds, in ms.
#[derive(Default)]
struct Rounds {
    scan: Vec<f64>,
    quiet: Vec<f64>,
    hostile: Vec<f64>,
}

/// Runs all measurements.
pub fn run(args: &BenchArgs) -> BenchReport {
    let before = std::env::var_os("VIPWATCH_BEFORE").map(PathBuf::from);
    let programs: Vec<&Path> = [Some(&args.subject), before.as_ref()]
        .into_iter()
        .flatten()
        .map(PathBuf::as_path)
        .collect();
    let mut rounds: Vec<Rounds> = programs.iter().map(|_| Rounds::default()).collect();
    let routers = args.pick(500, 5_000);
    let lab = Lab::new();
    let directory = lab.path().join("many");
    write_routers(&directory, routers);
    let few = Lab::new();
    let followed = Routers::new(few.path(), "d", args.pick(10, 20), 0);
    let count = args.pick(2, 5);
    for number in 1..=count {
        eprintln!("bench: round {number} of {count}");
        for (program, rounds) in programs.iter().zip(&mut rounds) {
            let scans = (0..args.pick(2, 5)).map(|_| scan(program, &directory));
            rounds.scan.extend(Samples::of(scans.collect()).p50());
            latency(args, program, &few, &followed, rounds);
        }
    }
    let p50 = |values: Option<&Vec<f64>>| Samples::of(values.cloned().unwrap_or_default()).p50();
    let [ours, peer] = [rounds.first(), rounds.get(1)];
    let row = |metric: String, of: fn(&Rounds) -> &Vec<f64>| {
        Row::new(metric, "ms").ours(p50(ours.map(of))).peer(p50(peer.map(of)))
    };
    let target = peer.map(|_| BenchTarget::AtMostTimesPeer(1.1));
    let quiet = p50(ours.map(|one| &one.quiet)).unwrap_or_default();
    let limit = BenchTarget::AtMost(quiet * 1.1);
    let rows = vec![
        row(format!("first scan of {routers} routers"), |one| &one.scan).target(target),
        row("change → state file, p50".to_owned(), |one| &one.quiet),
        row("change → state file, p50, while a hostile file is read".to_owned(), |one| {
            &one.hostile
        })
        .target(limit),
    ];
    BenchReport::new("discovery", args, &["before"], rows)
}

/// The files of routers without namespaces: a scan reads nothing else.
fn write_routers(directory: &Path, count: usize) {
    for number in 0..count {
        let router = directory.join(format!("ha_confs/router-{number}"));
        std::fs::create_dir_all(&router).expect("create a directory");
        let text = format!(
            "vrrp_instance VR_{} {{\n interface ha-1\n virtual_router_id {}\n virtual_ipaddress {{\n  \
             169.254.0.{}/24 dev ha-1\n }}\n virtual_ipaddress_excluded {{\n  10.0.0.1/24 dev qr-1\n  \
             192.0.2.9/32 dev qg-1\n }}\n}}\n",
            number % 255 + 1,
            number % 255 + 1,
            number % 255 + 1,
        );
        write_file(&router.join("keepalived.conf"), &text);
    }
}

/// The time in which a program lists the instances of all routers, in ms.
fn scan(program: &Path, directory: &Path) -> f64 {
    let config = directory.join("vipwatch.toml");
    write_file(
        &config,
        &format!("[find]\nneutron_state_path = \"{}\"\nprocesses = false\n", directory.display()),
    );
    let began = Instant::now();
    let status = Command::new(program)
        .args(["discover", "-q"])
        .env("VIPWATCH_CONFIG", &config)
        .stdout(Stdio::null())
        .status();
    assert!(status.is_ok_and(|status| status.success()), "discover failed");
    ms(began.elapsed())
}

/// Measures the time to state files, without and with a file that is read all the time.
fn latency(args: &BenchArgs, program: &Path, lab: &Lab, routers: &Routers, rounds: &mut Rounds) {
    let fixture = NodeFixture::new(program, lab.path());
    fixture.configure(&with_state_files(""));
    let states = Path::new(STATES);
    let samples = args.pick(50, 200);
    let node = fixture.start_within(START_TIMEOUT);
    wait_for_all(states, routers, "backup");
    pause(Duration::from_secs(1));
    rounds.quiet.extend(event_to_file(states, routers, samples).p50());
    let has_ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| rewrite(&fixture.keepalived_conf(), &has_ended));
        pause(Duration::from_secs(1));
        rounds.hostile.extend(event_to_file(states, routers, samples).p50());
        has_ended.store(true, Ordering::Relaxed);
    });
    let _ = node.stop();
    let _ = std::fs::remove_file(fixture.keepalived_conf());
}

/// Writes another version of the hostile file again and again.
fn rewrite(file: &Path, has_ended: &AtomicBool) {
    let instances: Vec<String> = (0..)
        .map(|n| format!("vrrp_instance I{n} {{\n interface eth0\n}}\n"))
        .take(110_000)
        .collect();
    let mut text = instances.concat();
    text.truncate(HOSTILE_BYTES - 64);
    let staged = file.with_extension("new");
    for number in 0.. {
        if has_ended.load(Ordering::Relaxed) {
            return;
        }
        write_file(&staged, &format!("# version {number}\n{text}"));
        std::fs::rename(&staged, file).expect("rename the hostile file");
        pause(REWRITE_INTERVAL);
    }
}
