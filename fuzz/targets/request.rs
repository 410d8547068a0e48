//! What a monitor says, whatever it is: read without a panic, and the same however it was cut into pieces.

#![no_main]

use libfuzzer_sys::fuzz_target;
use vipwatch_receiver::request::{LONGEST, RequestProgress, read};

fuzz_target!(|bytes: &[u8]| {
    let whole = read(bytes);
    if let RequestProgress::Report(report, length) = &whole {
        assert!(*length <= bytes.len(), "more was read than there is");
        assert!(!report.instance.as_str().contains(['/', '\0', '\n']), "{report:?}");
        let id = report.instance.as_str().as_bytes();
        assert!(bytes[..*length].windows(id.len()).any(|window| window == id), "{report:?}");
        assert_eq!(read(&bytes[..*length]), whole, "what comes behind it matters");
    }
    // Piece by piece: nothing is decided before it is, and what is decided stays so.
    for length in 0..bytes.len().min(LONGEST) {
        match read(&bytes[..length]) {
            RequestProgress::Incomplete => {}
            decided => return assert_eq!(decided, whole, "after {length} bytes"),
        }
    }
});
