// SPDX-License-Identifier: Apache-2.0
//! Measures the time from a fault to the event of its finding, beyond the settle time of the finding.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use vipwatch_testkit::keepalived::Keepalived;
use vipwatch_testkit::{Lab, NodeFixture, Routers, TestNetns, pause};

use super::adverts::AdvertSender;
use crate::measure::{Samples, ms};
use crate::node::streams::open_stream;
use crate::node::{change, until};

/// Maximum time to a finding.
const FINDING_TIMEOUT: Duration = Duration::from_mins(1);

/// The settle time of findings about processes: the node's audit waits so long after the last change.
const PROCESS_SETTLE: Duration = Duration::from_secs(5);

/// A finding about an instance is not reported before its role is this old.
const ROLE_SETTLE: Duration = Duration::from_secs(5);

/// The settle time of findings about adverts.
const ADVERT_SETTLE: Duration = Duration::from_secs(1);

/// The interval of the adverts.
const INTERVAL: Duration = Duration::from_secs(1);

/// The master-down interval of an instance with the priority 50 and adverts of version 2 every second: 3 s and 206/256 s.
const DOWN_INTERVAL: Duration = Duration::from_millis(3805);

/// Time between the faults of two instances, so that they fall into different times of the second.
const STAGGER: Duration = Duration::from_millis(370);

/// The findings that the event stream of a node has reported as open.
#[derive(Clone, Default)]
struct SeenFindings(Arc<Mutex<Vec<SeenFinding>>>);

struct SeenFinding {
    id: String,
    name: String,
    at: Instant,
}

impl SeenFindings {
    /// Reads the event stream on a thread that ends with the node.
    fn follow(fixture: &NodeFixture) -> Option<Self> {
        let stream = open_stream(fixture)?;
        stream.set_read_timeout(None).ok()?;
        let seen = Self::default();
        let writer = seen.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(stream).lines().map_while(Result::ok) {
                let at = Instant::now();
                let Some(data) = line.strip_prefix("data: ") else { continue };
                let Ok(event) = serde_json::from_str::<serde_json::Value>(data) else { continue };
                let Some(name) = event["finding"]["name"].as_str() else { continue };
                if event["state"] == "open" {
                    let id = event["id"].as_str().unwrap_or_default().to_owned();
                    let finding = SeenFinding { id, name: name.to_owned(), at };
                    writer.0.lock().expect("no thread panicked").push(finding);
                }
            }
        });
        Some(seen)
    }

    /// Waits for a finding about an instance; returns when it was reported.
    fn wait(&self, id: &str, name: &str) -> Option<Instant> {
        until(FINDING_TIMEOUT, || {
            let seen = self.0.lock().expect("no thread panicked");
            let found = seen.iter().find(|finding| finding.name == name && finding.id.contains(id));
            found.map(|finding| finding.at)
        })
    }
}

/// The delays beyond the settle time.
#[derive(Default)]
pub struct FindingDelays {
    /// `keepalived-gone-address-left`, in ms after the end of keepalived's last process and [`PROCESS_SETTLE`].
    pub process: Samples,
    /// `no-primary`, in ms after the last advert, the master-down interval and [`ADVERT_SETTLE`].
    pub silence: Samples,
    /// `two-primaries`, in ms after the advert that completes the evidence, and not less than [`ROLE_SETTLE`] after the
    /// change of the role.
    pub overlap: Samples,
}

/// Milliseconds from `due` to `at`. A finding before it is due counts as 0.
fn delay(due: Instant, at: Instant) -> f64 {
    ms(at.saturating_duration_since(due))
}

/// Runs `measure` for `count` routers at the same time, each with another beginning; no samples if one is missing.
fn staggered(count: usize, measure: impl Fn(usize) -> Option<f64> + Sync) -> Samples {
    let values: Option<Vec<f64>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..count)
            .map(|number| {
                let measure = &measure;
                scope.spawn(move || {
                    pause(STAGGER * u32::try_from(number).unwrap_or(0));
                    measure(number)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().ok().flatten()).collect()
    });
    Samples::of(values.unwrap_or_default())
}

/// Measures the findings about adverts with a running node that follows the routers.
pub fn advert_findings(
    fixture: &NodeFixture,
    routers: &Routers,
    senders: &[AdvertSender],
    count: usize,
    delays: &mut FindingDelays,
) -> Option<()> {
    let seen = SeenFindings::follow(fixture)?;
    let count = count.min(routers.each.len() / 2);
    delays.silence = staggered(count, |number| {
        let sender = &senders[number];
        sender.is_paused.store(true, Ordering::Relaxed);
        sender.send();
        let due = Instant::now() + DOWN_INTERVAL + ADVERT_SETTLE;
        let at = seen.wait(&routers.each[number].id, "no-primary")?;
        sender.is_paused.store(false, Ordering::Relaxed);
        Some(delay(due, at))
    });
    // Other routers: their adverts have never stopped.
    delays.overlap = staggered(count, |number| {
        let (router, sender) = (&routers.each[count + number], &senders[count + number]);
        sender.is_paused.store(true, Ordering::Relaxed);
        sender.send();
        change(router, "primary");
        let role_since = Instant::now();
        pause(INTERVAL);
        sender.send();
        // The evidence is complete with an advert that is this much younger than the role.
        pause(ADVERT_SETTLE + Duration::from_millis(50));
        sender.send();
        let due = Instant::now().max(role_since + ROLE_SETTLE);
        sender.is_paused.store(false, Ordering::Relaxed);
        let at = seen.wait(&router.id, "two-primaries")?;
        change(router, "backup");
        Some(delay(due, at))
    });
    Some(())
}

/// One keepalived in a namespace of its own.
struct Host {
    name: String,
    keepalived: Keepalived,
    _netns: TestNetns,
}

/// Kills real keepalived processes one after the other.
pub fn process_findings(subject: &Path, count: usize) -> Option<Samples> {
    let lab = Lab::new();
    let fixture = NodeFixture::new(subject, lab.path()).with_processes();
    fixture.configure("[witness]\n");
    let mut hosts = Vec::new();
    for number in 1..=count {
        let name = format!("bench-p{number:03}");
        let netns = lab.netns(&format!("p{number}"));
        netns.add_link("eth0");
        netns.ip("address add 192.0.2.254/24 dev eth0");
        let directory = lab.path().join(&name);
        std::fs::create_dir_all(&directory).expect("create a directory");
        let conf = format!(
            "vrrp_instance {name} {{\nstate MASTER\ninterface eth0\nvirtual_router_id {number}\npriority 150\n\
             advert_int 1\nvirtual_ipaddress {{\n192.0.2.{number}/24\n}}\n}}\n"
        );
        let keepalived = Keepalived::start_with(&netns, &directory, &conf);
        hosts.push(Host { name, keepalived, _netns: netns });
    }
    let node = fixture.start();
    let is_primary = || {
        let text = fixture.run_text(&["status", "-o", "json"]);
        let answer: serde_json::Value = serde_json::from_str(&text).ok()?;
        let roles = answer["instances"].as_array()?.iter().filter(|one| one["role"] == "primary");
        (roles.count() == count).then_some(())
    };
    until(FINDING_TIMEOUT, is_primary)?;
    // Work that follows the start, and the audits of the new roles, are over.
    pause(PROCESS_SETTLE * 2);
    let seen = SeenFindings::follow(&fixture)?;
    let mut samples = Vec::new();
    let mut kept = Vec::new();
    for Host { name, keepalived, _netns: netns } in hosts {
        keepalived.kill();
        let due = Instant::now() + PROCESS_SETTLE;
        kept.push((name, due, netns));
        pause(STAGGER);
    }
    for (name, due, _) in &kept {
        samples.push(delay(*due, seen.wait(name, "keepalived-gone-address-left")?));
    }
    node.kill();
    Some(Samples::of(samples))
}
