// SPDX-License-Identifier: Apache-2.0
//! Makes small changes to valid configurations of keepalived, and compares the instances that real keepalived and discovery
//! read. `cargo xtask fuzz keepalived` builds this program and starts it in namespaces of its own.
//!
//! It is a crate of its own, because `xtask` does not depend on the node: `xtask` must build on a machine that has only Rust,
//! and the node needs the protobuf compiler, which `xtask` installs.

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
