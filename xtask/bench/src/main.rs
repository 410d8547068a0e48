// SPDX-License-Identifier: Apache-2.0
//! Measures vipwatch and the programs it replaces, in one run on one machine.
//!
//! `cargo xtask bench` builds this program and every program it measures, installs the peers, and starts it
//! in namespaces of its own. It is a crate of its own so that the other commands do not compile it.

mod announce;
mod args;
mod cluster;
mod dropin;
mod measure;
mod node;
mod receiver;
mod report;
mod web;
mod witness;

use std::process::ExitCode;

use self::args::{Bench, BenchArgs};
use self::report::BenchReport;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match args::parse(&words).and_then(|args| run(&args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("bench: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Measures, prints the table, and writes the JSON file if one is wanted.
fn run(args: &BenchArgs) -> Result<(), String> {
    let report = measure(args)?;
    report.print();
    let Some(path) = &args.json else { return Ok(()) };
    report.write_json(path).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

fn measure(args: &BenchArgs) -> Result<BenchReport, String> {
    let is_quick = args.is_quick;
    let subject = args.subject.clone();
    match args.bench {
        Bench::Announce => Ok(announce::run(&subject, is_quick)),
        Bench::Node => Ok(node::NodeBench { subject, script: args.neutron_29()?, is_quick }.run()),
        Bench::Witness => Ok(witness::WitnessBench { subject, is_quick }.run()),
        Bench::Cluster => Ok(cluster::ClusterBench { subject, is_quick }.run()),
        Bench::Web => Ok(web::WebBench { subject, is_quick }.run()),
        Bench::Receiver => {
            let neutron = args.neutron_29()?;
            Ok(receiver::ReceiverBench { subject, neutron, is_quick }.run())
        }
        Bench::Dropin => {
            let paths = dropin::ProgramPaths {
                subject,
                script: args.neutron_29()?,
                daemon: args.neutron_28()?,
                limit: args.limit()?,
            };
            dropin::run(&paths, is_quick)
                .map_err(|error| format!("cannot read {}: {error}", paths.subject.display()))
        }
    }
}
