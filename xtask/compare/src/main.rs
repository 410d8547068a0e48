// SPDX-License-Identifier: Apache-2.0
//! Makes small changes to valid configurations of keepalived, and compares the instances that real keepalived and discovery
//! read. `cargo xtask fuzz keepalived` builds this program and starts it in namespaces of its own.
//!
//! It is a crate of its own, so that `xtask`, which every command builds first, does not wait for the node.

mod compare;
mod mutation;

use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match compare::run(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("compare: {message}");
            ExitCode::FAILURE
        }
    }
}
