// SPDX-License-Identifier: Apache-2.0
//! Any text as keepalived's configuration: the parser must not panic, and every instance that it returns must
//! have an address to watch, or say that it has none.

#![no_main]

use libfuzzer_sys::fuzz_target;
use vipwatch_core::keepalived::{Problems, Program, Source, configuration};
use vipwatch_fuzz::Budget;

/// A few lines can stand for 16 MiB: repetitions, and definitions that refer to themselves.
const BUDGET: Budget = Budget { memory: 64 << 20, work: 1 << 30 };

fuzz_target!(|text: &str| BUDGET.run(text.len(), || {
    let mut problems = Problems::default();
    let first = Source::alone(text.to_owned());
    for instance in configuration(first, &mut (), Program::default(), &mut problems).instances {
        // A definition or a repetition may contain a part of the word.
        let may_have_none = text.contains(['$', '~']) || text.contains("no_virtual_ipaddress");
        assert!(may_have_none || !instance.addresses.is_empty(), "{instance:?}");
    }
}));
