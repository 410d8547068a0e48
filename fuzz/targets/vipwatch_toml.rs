// SPDX-License-Identifier: Apache-2.0
//! Any text as the node's configuration: the parser must not panic, and every error must have a line of the text.

#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use vipwatch_fuzz::within_budget;
use vipwatch_node::Config;

fuzz_target!(|text: &str| within_budget(text.len(), || {
    if let Err(errors) = Config::parse(Path::new("vipwatch.toml"), text) {
        assert!(!errors.is_empty());
        for error in errors {
            assert!(!error.to_string().is_empty());
        }
    }
}));
