//! keepalived's configuration, whatever is in it: read without a panic, and what is found can be watched.

#![no_main]

use libfuzzer_sys::fuzz_target;
use vipwatch_core::keepalived::{Definitions, configuration, tree};

fuzz_target!(|text: &str| {
    let mut problems = Vec::new();
    let statements = tree::parse(text, 0, &mut Definitions::new(), &mut problems);
    for instance in configuration(&statements, &mut problems).instances {
        assert!(!instance.addresses.is_empty(), "{instance:?}");
    }
});
