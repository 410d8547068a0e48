// SPDX-License-Identifier: Apache-2.0
//! The wall clock of one process. The kernel has no namespace for it, so `libfaketime` adds a number of seconds to each
//! time that the process reads. The monotonic clock and the times of files stay as they are.

use std::path::Path;

use super::write_file;
use crate::{FaultsError, LabResult};

/// The directories of the libraries of each architecture.
const LIBRARIES: &str = "/usr/lib";
/// The version for processes with several threads.
const LIBRARY: &str = "faketime/libfaketimeMT.so.1";

/// The beginning of the command line of a process with a clock of its own: `file` has the seconds that are added.
pub fn prefix(file: &Path) -> LabResult<String> {
    if !file.exists() {
        write_file(file, "+0\n")?;
    }
    let directories = std::fs::read_dir(LIBRARIES)?.filter_map(|entry| Some(entry.ok()?.path()));
    let library = directories.map(|path| path.join(LIBRARY)).find(|path| path.exists());
    let hint = "hint: install the package libfaketime";
    let library =
        library.ok_or_else(|| FaultsError(format!("{LIBRARIES} has no {LIBRARY}\n  {hint}")))?;
    // A process reads the file again after one second.
    Ok(format!(
        "env LD_PRELOAD={} FAKETIME_TIMESTAMP_FILE={} FAKETIME_CACHE_DURATION=1 FAKETIME_DONT_FAKE_MONOTONIC=1 \
         NO_FAKE_STAT=1 FAKETIME_DISABLE_SHM=1 ",
        library.display(),
        file.display()
    ))
}
