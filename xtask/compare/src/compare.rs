// SPDX-License-Identifier: Apache-2.0
//! Compares files until one differs. That file is reduced to the lines that cause the difference, and kept.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use vipwatch_core::keepalived::Version;
use vipwatch_node::discovery::{ConfigLocations, DiscoveryResult, discover};
use vipwatch_testkit::{Dump, DumpInstance, DumpLab, Random, keepalived};

use crate::mutation::mutated;

/// Interval between two lines of progress.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// keepalived's `--config-id` for every file; lines with `@node1` apply.
const CONFIG_ID: &str = "node1";

/// One configuration, as lines.
#[derive(Clone, PartialEq, Eq)]
pub struct Sample {
    /// `keepalived.conf`
    pub main: Vec<String>,
    /// `included.conf`, which the main file may include.
    pub included: Vec<String>,
}

/// Compares until the time is over or the number of files is reached; fails at the first difference.
///
/// `words` is `DIRECTORY [--seed N] [--count N] [--seconds N]`; files with a difference are kept in the directory.
pub fn run(words: &[String]) -> Result<(), String> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let kept = PathBuf::from(words.first().ok_or("no directory for broken files given")?);
    let (mut seed, mut count, mut seconds) = (now.as_secs(), None, 60);
    for pair in words[1..].chunks(2) {
        let number = pair.get(1).and_then(|value| value.parse().ok());
        let number = number.ok_or_else(|| format!("{} needs a number", pair[0]))?;
        match pair[0].as_str() {
            "--seed" => seed = number,
            "--count" => count = Some(number),
            "--seconds" => seconds = number,
            other => return Err(format!("unknown option {other}")),
        }
    }
    let lab = DumpLab::new();
    let mut random = Random::new(seed);
    let (began, mut last_progress) = (Instant::now(), Instant::now());
    let limit = Duration::from_secs(seconds);
    let is_over = |compared: u64| match count {
        Some(count) => compared >= count,
        None => began.elapsed() >= limit,
    };
    println!("── fuzz · keepalived, seed {seed}");
    let (mut compared, mut broken) = (0, 0);
    while !is_over(compared) {
        let sample = mutated(&mut random);
        match compare(&lab, &sample) {
            Comparison::Equal => {}
            Comparison::NoResult => broken += 1,
            Comparison::Different(first) => {
                let name = format!("{seed}-{compared}");
                return Err(report(&lab, sample, &kept.join(name), &first));
            }
        }
        compared += 1;
        if last_progress.elapsed() >= PROGRESS_INTERVAL {
            last_progress = Instant::now();
            println!("{compared} files compared in {} s", began.elapsed().as_secs());
        }
    }
    println!(
        "{compared} files compared, no difference; keepalived crashed, hung or missed a link on {broken} of them"
    );
    Ok(())
}

/// The result of one comparison.
enum Comparison {
    Equal,
    Different(String),
    /// keepalived crashed, hung or did not find a link.
    NoResult,
}

/// Reduces a sample with a difference and writes it to `directory`; returns the error message.
fn report(lab: &DumpLab, sample: Sample, directory: &Path, first: &str) -> String {
    println!("a file differs; removing the lines that do not matter");
    let sample = smallest(lab, sample);
    let Comparison::Different(text) = compare(lab, &sample) else {
        return format!(
            "{}: the file differed in the first comparison and was equal in the second\n{first}",
            directory.display()
        );
    };
    let kept =
        write(directory, &sample).map_or_else(|error| error, |()| directory.display().to_string());
    let Sample { main, included } = sample;
    let (main, included) = (main.join("\n"), included.join("\n"));
    format!(
        "keepalived and discovery differ (kept in {kept})\n{text}\n\
         ── keepalived.conf\n{main}\n── included.conf\n{included}"
    )
}

/// Removes lines as long as the difference remains.
fn smallest(lab: &DumpLab, mut sample: Sample) -> Sample {
    let differs = |sample: &Sample| matches!(compare(lab, sample), Comparison::Different(_));
    for lines in [16, 8, 4, 2, 1, 1] {
        for is_main in [true, false] {
            let mut at = 0;
            loop {
                let mut smaller = sample.clone();
                let list = if is_main { &mut smaller.main } else { &mut smaller.included };
                if at >= list.len() {
                    break;
                }
                list.drain(at..list.len().min(at + lines));
                if differs(&smaller) {
                    sample = smaller;
                } else {
                    at += lines;
                }
            }
        }
    }
    sample
}

/// Writes both files of a sample.
fn write(directory: &Path, sample: &Sample) -> Result<(), String> {
    let write = |name: &str, lines: &[String]| {
        let mut text = lines.join("\n");
        text.push('\n');
        std::fs::create_dir_all(directory)
            .and_then(|()| std::fs::File::create(directory.join(name)))
            .and_then(|mut file| std::io::Write::write_all(&mut file, text.as_bytes()))
            .map_err(|error| format!("{}: {error}", directory.display()))
    };
    write("keepalived.conf", &sample.main)?;
    write("included.conf", &sample.included)
}

/// The version of the keepalived that reads the samples.
static VERSION: LazyLock<Version> = LazyLock::new(|| {
    let version = keepalived::version(&keepalived::program());
    Version::in_executable(format!("Keepalived v{version} ").as_bytes()).expect("a version")
});

/// Compares what keepalived and discovery read from a sample.
fn compare(lab: &DumpLab, sample: &Sample) -> Comparison {
    let directory: PathBuf = lab.path().join("sample");
    if let Err(error) = write(&directory, sample) {
        return Comparison::Different(error);
    }
    let file = directory.join("keepalived.conf");
    let discovery = discover(&ConfigLocations {
        neutron: directory.join("neutron"),
        keepalived: vec![file.clone()],
        config_id: Some(CONFIG_ID.to_owned()),
        version: *VERSION,
        ..ConfigLocations::default()
    });
    let problems: Vec<&str> =
        discovery.problems.iter().map(|problem| problem.text.as_str()).collect();
    let is_refused = problems.iter().any(|text| text.contains("keepalived does not start"));
    let ours = ours(&discovery);
    let details = || format!("discovery: {}\nproblems: {problems:#?}", ours.join("\n  "));
    match lab.dump(&file, Some(CONFIG_ID)) {
        Dump::Broken(_) => Comparison::NoResult,
        Dump::Refused(_) if is_refused => Comparison::Equal,
        // Discovery does not look at links.
        Dump::Refused(why) if why.contains("Non-existent interface") => Comparison::NoResult,
        Dump::Refused(why) => {
            Comparison::Different(format!("keepalived does not start:\n{why}\n{}", details()))
        }
        Dump::Instances(theirs) => {
            let is_followed =
                |name: &str| discovery.instances.iter().any(|one| one.vrrp.name == name);
            let theirs = theirs
                .into_iter()
                .filter(|theirs| !theirs.addresses.is_empty() || is_followed(&theirs.name));
            let mut theirs: Vec<String> = theirs.map(|theirs| theirs.to_string()).collect();
            theirs.sort();
            if theirs == ours && !is_refused {
                return Comparison::Equal;
            }
            Comparison::Different(format!("keepalived: {}\n{}", theirs.join("\n  "), details()))
        }
    }
}

/// The instances of discovery, in the format of keepalived's dump, sorted.
fn ours(discovery: &DiscoveryResult) -> Vec<String> {
    let number =
        |number: Option<u8>| number.map_or("unknown".to_owned(), |number| number.to_string());
    let instances = discovery.instances.iter().map(|config| {
        let vrrp = &config.vrrp;
        let addresses = vrrp.addresses.iter().map(|address| {
            let excluded = if address.is_excluded { " excluded" } else { "" };
            format!("{} dev {}{excluded}", address.cidr, address.link)
        });
        let instance = DumpInstance {
            name: vrrp.name.clone(),
            vrid: number(vrrp.vrid),
            priority: number(vrrp.priority),
            interface: vrrp.interface_name(),
            addresses: addresses.collect(),
        };
        instance.to_string()
    });
    let mut lines: Vec<String> = instances.collect();
    lines.sort();
    lines
}
