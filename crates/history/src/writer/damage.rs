// SPDX-License-Identifier: Apache-2.0
//! Checks a database file on the disk for damage. The check reads the whole file.

use std::ffi::c_int;
use std::path::Path;

use rusqlite::{Connection, OpenFlags};

use crate::HistoryError;

/// Number of SQLite instructions, or of pages (400 KiB), between two reports of progress.
const STEPS_PER_REPORT: c_int = 100;

/// Whether the file is damaged. Calls `on_progress` during the check, which takes minutes for a large file on
/// a slow disk.
///
/// A separate connection reads the file, because the recorder's connection has cached pages, which may be
/// intact.
pub(super) fn is_damaged(path: &Path, on_progress: impl FnMut() + Send + 'static) -> bool {
    match quick_check(path, on_progress) {
        Ok(result) => result != "ok",
        Err(error) => HistoryError::Sql(error).is_damage(),
    }
}

fn quick_check(
    path: &Path,
    mut on_progress: impl FnMut() + Send + 'static,
) -> rusqlite::Result<String> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags)?;
    let report_progress = move || {
        on_progress();
        false
    };
    connection.progress_handler(STEPS_PER_REPORT, Some(report_progress))?;
    connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn progress_is_reported_while_a_large_file_is_checked() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("large");
        // Ten megabytes, in rows of one kilobyte.
        let fill = "CREATE TABLE large (x); INSERT INTO large WITH RECURSIVE n (i) AS \
                    (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 10240) SELECT zeroblob(1024) FROM n";
        Connection::open(&path).unwrap().execute_batch(fill).unwrap();
        let calls = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&calls);
        let count = move || {
            counted.fetch_add(1, Ordering::Relaxed);
        };
        assert!(!is_damaged(&path, count));
        let calls = calls.load(Ordering::Relaxed);
        assert!(calls >= 10, "at least once for each megabyte, not {calls} times");
    }
}
