// SPDX-License-Identifier: Apache-2.0
//! Tests of the contract between Neutron's agent and its monitor, in real namespaces.
//!
//! The suite runs the program in `VIPWATCH_SUBJECT`, or the one of this package. It can also
//! test another program (`cargo xtask test contract --subject PATH`): Neutron's
//! own script fails many cases, which shows that the cases detect real defects.

#![expect(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod agent;
mod announce;
mod bad_input;
mod conntrackd;
mod defects;
mod keepalived;
mod lock;
mod logs;
mod old_kernels;
mod privileges;
mod process;
mod random;
mod releases;
mod state_file;
mod upstream;
mod watching;

use std::path::PathBuf;

use vipwatch_testkit::{Behaviour, FakeAgent, Lab, Release, Router};

/// The program under test.
fn subject() -> PathBuf {
    std::env::var_os("VIPWATCH_SUBJECT")
        .map_or_else(|| env!("CARGO_BIN_EXE_neutron-keepalived-state-change").into(), PathBuf::from)
}

/// Creates a lab with one router of `release` and an agent that answers normally.
fn fixture(release: Release) -> (Lab, Router, FakeAgent) {
    let lab = Lab::new();
    let router = Router::new(&lab, release);
    let agent = FakeAgent::listen(lab.path(), Behaviour::Threaded);
    (lab, router, agent)
}

/// Kills and reaps a process that a test has started. A program that stays in the foreground would otherwise never end.
fn reap(mut child: std::process::Child) {
    let _ = child.kill();
    let _ = child.wait();
}
