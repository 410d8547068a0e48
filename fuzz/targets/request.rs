// SPDX-License-Identifier: Apache-2.0
//! Any request of a monitor is parsed without a panic, with the same result however it is cut into pieces.

#![no_main]

use libfuzzer_sys::fuzz_target;
use vipwatch_fuzz::within_budget;
use vipwatch_receiver::request::{MAX_HEAD_BYTES, RequestProgress, parse};

fuzz_target!(|bytes: &[u8]| within_budget(bytes.len(), || {
    let whole = parse(bytes);
    if let RequestProgress::Report(report, length) = &whole {
        assert!(*length <= bytes.len(), "longer than the input");
        assert!(!report.instance.as_str().contains(['/', '\0', '\n']), "{report:?}");
        let id = report.instance.as_str().as_bytes();
        assert!(bytes[..*length].windows(id.len()).any(|window| window == id), "{report:?}");
        assert_eq!(parse(&bytes[..*length]), whole, "the bytes after a request change its result");
    }
    // Parsed byte by byte, the first decision is the decision on the whole.
    for length in 0..bytes.len().min(MAX_HEAD_BYTES) {
        match parse(&bytes[..length]) {
            RequestProgress::Incomplete => {}
            decided => return assert_eq!(decided, whole, "after {length} bytes"),
        }
    }
}));
