//! `cargo xtask test`: everything, enclosed. What was asked for and cannot run is red.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::build::{self, TestProgram};
use crate::{Stop, Task, check, enclosure, fuzz, provision};

/// Which tests.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Suite {
    Unit,
    TestNetns,
    Contract,
    Neutron,
}

impl Suite {
    const ALL: [Self; 4] = [Self::Unit, Self::TestNetns, Self::Contract, Self::Neutron];

    fn name(self) -> &'static str {
        match self {
            Self::Unit => "unit",
            Self::TestNetns => "netns",
            Self::Contract => "contract",
            Self::Neutron => "neutron",
        }
    }

    /// Integration tests are called after their suite; everything else is a unit test.
    fn of(program: &TestProgram) -> Self {
        Self::ALL.into_iter().find(|suite| suite.name() == program.target).unwrap_or(Self::Unit)
    }

    /// Tests at the same time. Most of them wait for other processes most of the time; those
    /// with Neutron's own agents do not.
    fn threads(self) -> &'static str {
        match self {
            Self::Unit => "2",
            Self::TestNetns | Self::Contract => "8",
            Self::Neutron => "1",
        }
    }
}

#[derive(Default)]
struct Wanted<'a> {
    suite: Option<Suite>,
    filter: Option<&'a str>,
    subject: Option<PathBuf>,
    table: Option<PathBuf>,
}

fn parse<'a>(words: &[&'a str]) -> Result<Wanted<'a>, Stop> {
    let mut wanted = Wanted::default();
    let mut words = words.iter().copied();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| Stop(format!("{word} needs a value")));
        match word {
            "--subject" => wanted.subject = Some(std::path::absolute(value()?)?),
            "--table" => wanted.table = Some(std::path::absolute(value()?)?),
            word if word.starts_with('-') => return Err(Stop(format!("unknown option {word}"))),
            word if wanted.suite.is_none() && wanted.filter.is_none() => {
                wanted.suite = Suite::ALL.into_iter().find(|suite| suite.name() == word);
                if wanted.suite.is_none() {
                    wanted.filter = Some(word);
                }
            }
            word => wanted.filter = Some(word),
        }
    }
    Ok(wanted)
}

/// Builds and installs, then goes inside.
pub fn outside(words: &[&str]) -> Task {
    if words == ["fuzz"] {
        return fuzz::briefly();
    }
    let wanted = parse(words)?;
    provision::programs(&[provision::BASIC])?;
    enclosure::probe()?;
    let is_all = wanted.suite.is_none() && wanted.filter.is_none();
    if is_all {
        check::quick()?;
        fuzz::briefly()?;
    }
    let wants = |suite| wanted.suite.is_none_or(|wanted| wanted == suite);
    if wants(Suite::TestNetns) || wants(Suite::Contract) {
        provision::programs(&[provision::TCPDUMP, provision::ARPING, provision::KEEPALIVED])?;
        provision::programs(&[provision::STRANGERS, provision::PEERS])?;
    }
    if wants(Suite::TestNetns) || wants(Suite::Contract) || wants(Suite::Neutron) {
        enclosure::probe_users()?;
    }
    if wants(Suite::Contract) || wants(Suite::Neutron) {
        provision::programs(&[provision::KEEPALIVED, provision::CONNTRACKD, provision::PEERS])?;
    }
    let programs = build::tests()?;
    let subject = match wanted.subject {
        Some(subject) => subject,
        None => build::dropin()?,
    };
    let mut environment = vec![("VIPWATCH_SUBJECT", subject.display().to_string())];
    if wants(Suite::Neutron) {
        for (name, version) in
            [("VIPWATCH_NEUTRON_29", "29.0.0"), ("VIPWATCH_NEUTRON_28", "28.0.2")]
        {
            environment.push((name, provision::neutron(version)?.display().to_string()));
        }
    }
    if let Some(table) = &wanted.table {
        environment.push(("VIPWATCH_TABLE", table.display().to_string()));
    }
    let mut line = vec!["test".to_owned(), wanted.filter.unwrap_or_default().to_owned()];
    for suite in Suite::ALL.into_iter().filter(|suite| wants(*suite)) {
        for program in programs.iter().filter(|program| Suite::of(program) == suite) {
            line.extend([
                suite.name().to_owned(),
                format!("{}/{}", program.package, program.target),
                program.path.display().to_string(),
            ]);
        }
    }
    let line: Vec<&str> = line.iter().map(String::as_str).collect();
    enclosure::enter(&line, &environment)
}

/// Runs the test programs one after the other, and counts.
pub fn inside(words: &[&str]) -> Task {
    let (filter, programs) = words.split_first().ok_or_else(|| Stop("no filter".to_owned()))?;
    let began = Instant::now();
    let mut total = Count::default();
    let mut failed = Vec::new();
    let mut results = Vec::new();
    for program in programs.chunks_exact(3) {
        let (suite, name, path) = (program[0], program[1], program[2]);
        let suite =
            Suite::ALL.into_iter().find(|known| known.name() == suite).unwrap_or(Suite::Unit);
        // Directories speak through these signals; a test's own threads must not be killed by
        // them, and only what was held back at the start is held back in all of them.
        let mut command = Command::new("env");
        command.arg("--block-signal=IO,RTMIN+5").arg(path);
        command.args(["--show-output", "--test-threads", suite.threads()]);
        if !filter.is_empty() {
            command.arg(filter);
        }
        println!("── {} · {name}", suite.name());
        let mut run = run(&mut command)?;
        total.add(&run.count);
        results.append(&mut run.results);
        if !run.is_ok {
            failed.push(name.to_owned());
        }
    }
    if let Some(table) = std::env::var_os("VIPWATCH_TABLE") {
        write_table(&PathBuf::from(table), &mut results)?;
    }
    println!("\n{} passed, {} failed", total.passed, total.failed);
    println!("in {:.0} s", began.elapsed().as_secs_f64());
    if !failed.is_empty() {
        return Err(Stop(format!("failed: {}", failed.join(", "))));
    }
    if total.passed == 0 {
        return Err(Stop("no test has that name".to_owned()));
    }
    Ok(())
}

#[derive(Default)]
struct Count {
    passed: u32,
    failed: u32,
}

impl Count {
    fn add(&mut self, other: &Self) {
        self.passed += other.passed;
        self.failed += other.failed;
    }
}

/// What one test program did.
struct Run {
    count: Count,
    /// Each test's name, and whether it passed.
    results: Vec<(String, bool)>,
    is_ok: bool,
}

/// Runs one test program, showing what it prints.
fn run(command: &mut Command) -> Result<Run, Stop> {
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let mut results = Vec::new();
    let mut count = Count::default();
    let output = child.stdout.take().ok_or_else(|| Stop("no output".to_owned()))?;
    for line in std::io::BufRead::lines(std::io::BufReader::new(output)) {
        let line = line?;
        let result = line.strip_prefix("test ").and_then(|rest| rest.rsplit_once(" ... "));
        match result {
            Some((name, "ok")) => {
                count.passed += 1;
                results.push((name.to_owned(), true));
            }
            Some((name, "FAILED")) => {
                count.failed += 1;
                results.push((name.to_owned(), false));
            }
            _ => {}
        }
        println!("{line}");
    }
    let is_ok = child.wait()?.success();
    Ok(Run { count, results, is_ok })
}

fn write_table(path: &std::path::Path, results: &mut [(String, bool)]) -> Task {
    results.sort();
    let passed = results.iter().filter(|(_, is_ok)| *is_ok).count();
    let mut text = format!("{passed} of {} cases pass.\n\n| case | |\n|---|---|\n", results.len());
    for (name, is_ok) in results.iter() {
        let verdict = if *is_ok { "pass" } else { "**fail**" };
        let _ = writeln!(text, "| `{name}` | {verdict} |");
    }
    std::fs::File::create(path)?.write_all(text.as_bytes())?;
    Ok(())
}
