// SPDX-License-Identifier: Apache-2.0
//! Measures vipwatch and the programs it replaces, in one run on one machine.
//!
//! `cargo xtask bench` builds this program and every program it measures, installs the peers, and starts it
//! in namespaces of its own. It is a crate of its own so that the other commands do not compile it.

mod announce;
mod args;
mod cluster;
mod discovery;
mod dropin;
mod measure;
mod node;
mod receiver;
mod report;
mod web;
mod witness;

use std::process::ExitCode;

use self::args::BenchArgs;

/// Measures, prints the table, and writes the JSON file if one is wanted.
fn main() -> ExitCode {
    let bench = match std::env::args().nth(1).as_deref() {
        Some("announce") => announce::run,
        Some("cluster") => cluster::run,
        Some("discovery") => discovery::run,
        Some("dropin") => dropin::run,
        Some("node") => node::run,
        Some("receiver") => receiver::run,
        Some("web") => web::run,
        Some("witness") => witness::run,
        other => {
            eprintln!("bench: unknown bench {other:?}");
            return ExitCode::FAILURE;
        }
    };
    let report = bench(&BenchArgs::read());
    report.print();
    let Some(path) = std::env::var_os("VIPWATCH_JSON") else { return ExitCode::SUCCESS };
    match report.write_json(path.as_ref()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: cannot write {}: {error}", path.display());
            ExitCode::FAILURE
        }
    }
}
