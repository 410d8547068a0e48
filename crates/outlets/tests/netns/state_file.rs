// SPDX-License-Identifier: Apache-2.0
//! The owner of the state file, which needs a process that may change owners.

use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;
use std::time::Duration;

use vipwatch_core::{Jitter, Moment};
use vipwatch_outlets::state_file::StateFile;

#[test]
fn the_state_file_belongs_to_the_owner_of_its_directory_who_writes_it_too() {
    const AGENT: u32 = 65534;
    let directory = tempfile::tempdir().unwrap();
    chown(directory.path(), Some(AGENT), Some(AGENT)).unwrap();
    let mut file = StateFile::new(directory.path().to_owned(), Jitter::new(1));
    let owner = |path: &Path| {
        let metadata = path.metadata().unwrap();
        (metadata.uid(), metadata.gid(), metadata.mode() & 0o777)
    };
    let state = directory.path().join("state");
    // The third word is in the spare file, which is used again.
    for (second, word) in (1..).zip(["primary", "backup", "primary"]) {
        file.set(word, Moment::new(Duration::from_secs(second)));
        assert_eq!(std::fs::read_to_string(&state).unwrap(), word);
        assert_eq!(owner(&state), (AGENT, AGENT, 0o644), "{word}");
    }
}
