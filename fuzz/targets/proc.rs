// SPDX-License-Identifier: Apache-2.0
//! Any bytes as files of `/proc`, which have words that any process may choose: names, arguments, cgroups. The parsers must
//! not panic, and must find nothing that is not in the text.

#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use vipwatch_fuzz::within_budget;
use vipwatch_linux::process_table::fuzzing::{
    command_line, freezer_directories, nested_pids, raw_sockets, stat,
};

fuzz_target!(|text: &[u8]| within_budget(text.len(), || {
    // The name of a process is whatever it likes: what it contains must not move the fields behind it.
    let line =
        [b"7 (".as_slice(), text, b") T 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4711 0 0\n"].concat();
    let read = stat(7, &line).expect("the last parenthesis ends the name");
    assert_eq!((read.parent, read.id.started), (1, 4711));
    let _ = stat(7, text);
    let words = command_line(text);
    assert!(words.len() <= text.len(), "a word for each byte at most");
    assert!(nested_pids(7, text).len() <= text.len().max(1));
    assert!(raw_sockets(text, 112).len() <= text.len());
    for directory in freezer_directories(text) {
        assert!(directory.starts_with(Path::new("/sys/fs/cgroup")), "{directory:?}");
    }
}));
