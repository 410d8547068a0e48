// SPDX-License-Identifier: Apache-2.0
//! Any text as keepalived's configuration: the parser must not panic, and every instance that it returns must
//! have an address to watch.

#![no_main]

use libfuzzer_sys::fuzz_target;
use vipwatch_core::keepalived::{Source, configuration};

fuzz_target!(|text: &str| {
    let mut problems = Vec::new();
    let first = Source::alone(text.to_owned());
    for instance in configuration(first, &mut (), "node", &mut problems).instances {
        assert!(!instance.addresses.is_empty(), "{instance:?}");
    }
});
