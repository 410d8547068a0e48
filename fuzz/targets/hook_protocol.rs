// SPDX-License-Identifier: Apache-2.0
//! Any bytes as a message to the hook runner, or from it: a message that is accepted must be the same after it was sent
//! again, and a message that is cut off must be refused.

#![no_main]

use libfuzzer_sys::fuzz_target;
use vipwatch_fuzz::within_budget;
use vipwatch_node::hook_runner::fuzzing::{resent_answer, resent_request};

fuzz_target!(|bytes: &[u8]| within_budget(bytes.len(), || {
    for resent in [resent_request, resent_answer] {
        // The bytes as they are, and as the text of a message.
        let length = u32::try_from(bytes.len()).expect("a short input");
        for message in [bytes.to_vec(), [&length.to_be_bytes()[..], bytes].concat()] {
            let Some(sent) = resent(&message) else { continue };
            assert_eq!(resent(&sent), Some(sent.clone()));
            assert_eq!(resent(&sent[..sent.len() - 1]), None, "a message that is cut off");
        }
    }
}));
