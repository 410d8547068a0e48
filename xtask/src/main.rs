//! The commands of this repository. A fresh clone on a Debian or Ubuntu machine with Rust
//! needs nothing else: what is missing is installed, or you are told what to run.

mod bench;
mod build;
mod check;
mod demo;
mod enclosure;
mod fuzz;
mod provision;
mod test;
mod tidy;

use std::process::ExitCode;

/// Why a task stopped; the text is for people.
pub struct Stop(pub String);

impl<E: std::fmt::Display> From<E> for Stop {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

pub type Task = Result<(), Stop>;

const HELP: &str = "\
Usage: cargo xtask COMMAND

  demo [--seconds N]             three nodes with real keepalived in throw-away namespaces;
                                 something fails every few seconds; `vipwatch watch`, live
  test [SUITE] [FILTER]          everything, or one of: unit, netns, contract, neutron, fuzz
       [--subject PATH]          the contract suite against another executable
       [--table FILE]            and its results as a Markdown table
  check [--advisories]           format, lints, house rules, documentation, dependencies
  bench NAME [--json FILE]       measure beside the peers in the same run; NAME: dropin,
                                 announce, node, receiver
        [--quick]                fewer repetitions, no figures to quote
  fuzz [TARGET] [--seconds N]    feed readers with anything, for a minute each; TARGET: request,
                                 keepalived_conf, netlink, frame
  fuzz keepalived                change valid configurations of keepalived's a little, and compare what
       [--seed N] [--count N]    real keepalived and discovery read, for a minute or N files; what
       [--seconds N]             differs is kept below target/fuzz/broken

Everything that needs network namespaces runs in its own, without root where user namespaces
are allowed, and leaves nothing behind.
";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        ["demo", rest @ ..] => demo::outside(rest),
        ["test", rest @ ..] => test::outside(rest),
        ["check", rest @ ..] => check::run(rest),
        ["bench", rest @ ..] => bench::outside(rest),
        ["fuzz", rest @ ..] => fuzz::run(rest),
        [enclosure::INSIDE, rest @ ..] => inside(rest),
        [] | ["help" | "--help" | "-h", ..] => {
            print!("{HELP}");
            Ok(())
        }
        [unknown, ..] => {
            Err(Stop(format!("unknown command {unknown:?}; `cargo xtask help` lists them")))
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(Stop(message)) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}

/// The second half of a command, in namespaces of its own.
fn inside(words: &[&str]) -> Task {
    enclosure::furnish()?;
    match words {
        ["demo", rest @ ..] => demo::inside(rest),
        ["test", rest @ ..] => test::inside(rest),
        ["bench", rest @ ..] => bench::inside(rest),
        ["fuzz", rest @ ..] => fuzz::keepalived::inside(rest),
        other => Err(Stop(format!("nothing to do inside: {other:?}"))),
    }
}
