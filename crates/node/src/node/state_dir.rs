// SPDX-License-Identifier: Apache-2.0
//! The lock of the state directory: two nodes must not write the same history.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::Duration;

use vipwatch_linux::file::is_storage_error;
use vipwatch_linux::lock::FileLock;
use vipwatch_linux::worker::in_time;

use super::NodeError;

/// How long the main loop waits for the disk.
const LOCK_LIMIT: Duration = Duration::from_secs(5);

/// Creates and locks the state directory. `None` if the disk is full, read-only, failing or does not answer: the node
/// then runs without a history, which reports the error and tries again.
pub(super) fn lock_if_usable(directory: &Path) -> Result<Option<FileLock>, NodeError> {
    let path = directory.to_owned();
    match in_time(LOCK_LIMIT, move || lock(&path)) {
        None => Ok(None),
        Some(Err(NodeError::StateDir { source, .. })) if is_storage_error(&source) => Ok(None),
        Some(locked) => locked.map(Some),
    }
}

/// Creates and locks the state directory.
fn lock(directory: &Path) -> Result<FileLock, NodeError> {
    let failed = |source: io::Error| NodeError::StateDir { path: directory.to_owned(), source };
    std::fs::create_dir_all(directory).map_err(failed)?;
    let opened = File::open(directory).map_err(failed)?;
    let lock = FileLock::try_exclusive(opened.into()).map_err(failed)?;
    lock.ok_or_else(|| NodeError::StateDirInUse(directory.to_owned()))
}
