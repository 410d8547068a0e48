//! `cargo xtask fuzz keepalived`: changes valid configurations in small ways, and has real keepalived and
//! discovery read each. Where they differ, the file is made smaller until every line of it matters, and kept.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use vipwatch_node::discovery::{ConfigLocations, DiscoveryResult, discover};
use vipwatch_testkit::{Dump, DumpInstance, DumpLab};

use super::mutation::{Random, mutated};
use crate::build::target_directory;
use crate::{Stop, Task, enclosure, provision};

/// How often progress is printed.
const PROGRESS_EVERY: Duration = Duration::from_secs(5);

/// The configuration id of every file.
const CONFIG_ID: &str = "node1";

/// One configuration: the file that keepalived starts with, and the one it may include.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Sample {
    pub(super) main: Vec<String>,
    pub(super) included: Vec<String>,
}

struct Options {
    seed: u64,
    count: Option<u64>,
    seconds: u64,
}

fn parse(words: &[&str]) -> Result<Options, Stop> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let seed = now.map_or(1, |now| now.as_secs());
    let mut options = Options { seed, count: None, seconds: 60 };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let number = words.next().and_then(|value| value.parse().ok());
        let number = || number.ok_or_else(|| Stop(format!("{word} needs a number")));
        match *word {
            "--seed" => options.seed = number()?,
            "--count" => options.count = Some(number()?),
            "--seconds" => options.seconds = number()?,
            other => return Err(Stop(format!("unknown option {other}"))),
        }
    }
    Ok(options)
}

/// Installs keepalived and goes inside.
pub fn outside(words: &[&str]) -> Task {
    parse(words)?;
    provision::programs(&[provision::BASIC, provision::KEEPALIVED])?;
    enclosure::probe()?;
    let line: Vec<&str> = ["fuzz"].iter().chain(words).copied().collect();
    enclosure::enter(&line, &[])
}

/// Compares until the time is over, or so many files were compared.
pub fn inside(words: &[&str]) -> Task {
    let Options { seed, count, seconds } = parse(words)?;
    let lab = DumpLab::new();
    let mut random = Random::new(seed);
    let (began, mut told) = (Instant::now(), Instant::now());
    let limit = Duration::from_secs(seconds);
    let is_over = |compared: u64| match count {
        Some(count) => compared >= count,
        None => began.elapsed() >= limit,
    };
    println!("── fuzz · keepalived, seed {seed}");
    let (mut compared, mut broken) = (0, 0);
    while !is_over(compared) {
        let sample = mutated(&mut random);
        match difference(&lab, &sample) {
            DebounceDecision::Agree => {}
            DebounceDecision::Broken => broken += 1,
            DebounceDecision::Differ(first) => {
                return Err(report(&lab, sample, seed, compared, &first));
            }
        }
        compared += 1;
        if told.elapsed() >= PROGRESS_EVERY {
            told = Instant::now();
            println!("{compared} files compared in {} s", began.elapsed().as_secs());
        }
    }
    println!(
        "{compared} files compared, no difference; keepalived crashed, hung or missed a link on {broken} of them"
    );
    Ok(())
}

/// What came of a comparison.
enum DebounceDecision {
    Agree,
    Differ(String),
    /// keepalived crashed, hung or missed a link: there is nothing to compare with.
    Broken,
}

/// Makes a sample that differs as small as it can be, and keeps it.
fn report(lab: &DumpLab, sample: Sample, seed: u64, compared: u64, first: &str) -> Stop {
    println!("file {compared} differs; making it smaller");
    let sample = smallest(lab, sample);
    let DebounceDecision::Differ(text) = difference(lab, &sample) else {
        return Stop(format!(
            "file {compared} of seed {seed} differed once, and does not again\n{first}"
        ));
    };
    let directory =
        target_directory().join("fuzz/broken/keepalived").join(format!("{seed}-{compared}"));
    let kept =
        write(&directory, &sample).map_or_else(|error| error, |()| directory.display().to_string());
    let Sample { main, included } = sample;
    let (main, included) = (main.join("\n"), included.join("\n"));
    Stop(format!(
        "keepalived and discovery differ (seed {seed}, file {compared}, kept in {kept})\n{text}\n\
         ── keepalived.conf\n{main}\n── included.conf\n{included}"
    ))
}

/// Removes lines while both still differ.
fn smallest(lab: &DumpLab, mut sample: Sample) -> Sample {
    let differs = |sample: &Sample| matches!(difference(lab, sample), DebounceDecision::Differ(_));
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

fn difference(lab: &DumpLab, sample: &Sample) -> DebounceDecision {
    let directory: PathBuf = lab.path().join("sample");
    if let Err(error) = write(&directory, sample) {
        return DebounceDecision::Differ(error);
    }
    let file = directory.join("keepalived.conf");
    let discovery = discover(&ConfigLocations {
        neutron: directory.join("neutron"),
        keepalived: file.clone(),
        config_id: Some(CONFIG_ID.to_owned()),
    });
    let problems: Vec<&str> =
        discovery.problems.iter().map(|problem| problem.text.as_str()).collect();
    let is_refused = problems.iter().any(|text| text.contains("keepalived does not start"));
    let ours = ours(&discovery);
    let said = || format!("discovery: {}\nproblems: {problems:#?}", ours.join("\n  "));
    match lab.dump(&file, Some(CONFIG_ID)) {
        Dump::Broken(_) => DebounceDecision::Broken,
        Dump::Refused(_) if is_refused => DebounceDecision::Agree,
        // Discovery cannot know which links exist.
        Dump::Refused(why) if why.contains("Non-existent interface") => DebounceDecision::Broken,
        Dump::Refused(why) => {
            DebounceDecision::Differ(format!("keepalived does not start:\n{why}\n{}", said()))
        }
        Dump::Instances(theirs) => {
            let theirs = theirs.into_iter().filter(|theirs| !theirs.addresses.is_empty());
            let mut theirs: Vec<String> = theirs.map(|theirs| theirs.to_string()).collect();
            theirs.sort();
            if theirs == ours && !is_refused {
                return DebounceDecision::Agree;
            }
            DebounceDecision::Differ(format!("keepalived: {}\n{}", theirs.join("\n  "), said()))
        }
    }
}

/// What discovery found, in the words of keepalived's dump.
fn ours(discovery: &DiscoveryResult) -> Vec<String> {
    let number =
        |number: Option<u8>| number.map_or("unknown".to_owned(), |number| number.to_string());
    let each = discovery.instances.iter().map(|found| {
        let vrrp = &found.vrrp;
        let addresses = vrrp.addresses.iter().map(|address| {
            let excluded = if address.is_excluded { " excluded" } else { "" };
            format!("{} dev {}{excluded}", address.cidr, address.link)
        });
        let instance = DumpInstance {
            name: vrrp.name.clone(),
            vrid: number(vrrp.vrid),
            priority: number(vrrp.priority),
            interface: vrrp.interface.to_string(),
            addresses: addresses.collect(),
        };
        instance.to_string()
    });
    let mut each: Vec<String> = each.collect();
    each.sort();
    each
}
