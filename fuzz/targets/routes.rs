// SPDX-License-Identifier: Apache-2.0
//! Any bytes as a route and as a routing rule of the kernel: the decoders must not panic, and the prefixes that they find
//! must be networks.

#![no_main]

use libfuzzer_sys::fuzz_target;
use vipwatch_fuzz::within_budget;
use vipwatch_linux::netns_query::fuzzing::{route, rule};

fuzz_target!(|body: &[u8]| within_budget(body.len(), || {
    if let Some(route) = route(body) {
        assert_eq!(route.destination, route.destination.trunc());
        assert!(route.next_hops.len() <= body.len() / 8 + 1, "a next hop has 8 bytes");
    }
    if let Some(rule) = rule(body) {
        for net in [rule.from, rule.to].into_iter().flatten() {
            assert_eq!(net, net.trunc());
        }
    }
}));
