//! Finds out whether a file on the disk is damaged. This reads the whole file.

use std::ffi::c_int;
use std::path::Path;

use rusqlite::{Connection, OpenFlags};

use crate::HistoryError;

/// How often SQLite reports progress: after so many instructions, or so many pages of the file (400 KiB).
const STEPS: c_int = 100;

/// Whether the file is damaged. Calls `on_progress` while it is read, which takes minutes if the file is
/// large and the disk slow.
///
/// A connection of its own reads the file: the pages that the recorder has in memory may be whole.
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
    let go_on = move || {
        on_progress();
        false
    };
    connection.progress_handler(STEPS, Some(go_on))?;
    connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn progress_is_reported_while_a_large_file_is_examined() {
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
