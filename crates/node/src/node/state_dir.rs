// SPDX-License-Identifier: Apache-2.0
//! The lock of the state directory: two nodes must not write the same history.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use vipwatch_linux::file::is_storage_error;
use vipwatch_linux::lock::FileLock;

use super::NodeError;

/// How long the main loop waits for the disk.
const LOCK_LIMIT: Duration = Duration::from_secs(5);

/// Creates and locks the state directory. `None` if the disk is full, read-only, failing or does not answer: the node
/// then runs without a history, which reports the error and tries again.
pub(super) fn lock_if_usable(directory: &Path) -> Result<Option<FileLock>, NodeError> {
    let (answer, locked) = sync_channel(1);
    let path = directory.to_owned();
    // A disk that hangs never ends this thread.
    std::thread::spawn(move || answer.send(lock(&path)));
    match locked.recv_timeout(LOCK_LIMIT) {
        Err(_) => Ok(None),
        Ok(Err(NodeError::StateDir { source, .. })) if is_storage_error(&source) => Ok(None),
        Ok(locked) => locked.map(Some),
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
