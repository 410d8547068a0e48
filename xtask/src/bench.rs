//! `cargo xtask bench NAME`: ours and the peers in the same run, on the same machine.

mod announce;
mod dropin;
mod measure;
mod node;
mod receiver;
mod report;

use std::path::PathBuf;

use crate::{Stop, Task, build, enclosure, provision};

const NAMES: &str = "dropin, announce, node, receiver";

/// Builds, installs the peers, and goes inside.
pub fn outside(words: &[&str]) -> Task {
    let mut name = None;
    let mut json = String::new();
    let mut is_quick = false;
    let mut words = words.iter().copied();
    while let Some(word) = words.next() {
        match word {
            "--json" => {
                let path = words.next().ok_or_else(|| Stop("--json needs a file".to_owned()))?;
                json = std::path::absolute(path)?.display().to_string();
            }
            "--quick" => is_quick = true,
            word if word.starts_with('-') => return Err(Stop(format!("unknown option {word}"))),
            word => name = Some(word),
        }
    }
    let name = match name {
        Some(name @ ("dropin" | "announce" | "node" | "receiver")) => name,
        Some(other) => return Err(Stop(format!("unknown bench {other:?}; there are: {NAMES}"))),
        None => return Err(Stop(format!("which bench? there are: {NAMES}"))),
    };
    provision::programs(&[provision::BASIC])?;
    enclosure::probe()?;
    let is_vipwatch = matches!(name, "node" | "receiver");
    let subject = if is_vipwatch { build::vipwatch("release")? } else { build::dropin()? };
    let mut homes = [String::new(), String::new()];
    if is_vipwatch {
        provision::programs(&[provision::PEERS])?;
        homes[0] = provision::neutron("29.0.0")?.display().to_string();
    } else if name == "dropin" {
        provision::programs(&[provision::PEERS, provision::C])?;
        dropin::limit::build()?;
        homes = [provision::neutron("29.0.0")?, provision::neutron("28.0.2")?]
            .map(|home| home.display().to_string());
    } else {
        provision::programs(&[provision::TCPDUMP, provision::ARPING])?;
    }
    let pace = if is_quick { "quick" } else { "full" };
    let subject = subject.display().to_string();
    enclosure::enter(&["bench", name, &subject, &homes[0], &homes[1], pace, &json], &[])
}

/// Measures.
pub fn inside(words: &[&str]) -> Task {
    let [name, subject, script, daemon, pace, json] = words else {
        return Err(Stop("the bench is started from outside".to_owned()));
    };
    let is_quick = *pace == "quick";
    let report = if *name == "announce" {
        announce::run(&PathBuf::from(subject), is_quick)
    } else if *name == "node" {
        let (subject, script) = (PathBuf::from(subject), PathBuf::from(script));
        node::NodeBench { subject, script, is_quick }.run()
    } else if *name == "receiver" {
        let (subject, neutron) = (PathBuf::from(subject), PathBuf::from(script));
        receiver::ReceiverBench { subject, neutron, is_quick }.run()
    } else {
        let homes = dropin::PeerPrograms {
            subject: PathBuf::from(subject),
            script: PathBuf::from(script),
            daemon: PathBuf::from(daemon),
        };
        dropin::run(&homes, is_quick)?
    };
    report.print();
    if !json.is_empty() {
        report.write_json(&PathBuf::from(json))?;
    }
    Ok(())
}
