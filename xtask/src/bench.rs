//! `cargo xtask bench NAME`: ours and the peers in the same run, on the same machine.

mod dropin;
mod measure;
mod report;

use std::path::PathBuf;

use crate::{Stop, Task, build, enclosure, provision};

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
    match name {
        Some("dropin") => {}
        Some(other) => return Err(Stop(format!("unknown bench {other:?}; there is: dropin"))),
        None => return Err(Stop("which bench? there is: dropin".to_owned())),
    }
    provision::programs(&[provision::BASIC, provision::PEERS])?;
    enclosure::probe()?;
    let subject = build::dropin()?;
    let script = provision::neutron("29.0.0")?;
    let daemon = provision::neutron("28.0.2")?;
    let pace = if is_quick { "quick" } else { "full" };
    let words = [
        "bench",
        &subject.display().to_string(),
        &script.display().to_string(),
        &daemon.display().to_string(),
        pace,
        &json,
    ];
    enclosure::enter(&words, &[])
}

/// Measures.
pub fn inside(words: &[&str]) -> Task {
    let [subject, script, daemon, pace, json] = words else {
        return Err(Stop("the bench is started from outside".to_owned()));
    };
    let homes = dropin::Homes {
        subject: PathBuf::from(subject),
        script: PathBuf::from(script),
        daemon: PathBuf::from(daemon),
    };
    let report = dropin::run(&homes, *pace == "quick")?;
    report.print();
    if !json.is_empty() {
        report.write_json(&PathBuf::from(json))?;
    }
    Ok(())
}
