//! The journal's file: its format, its lock, and what is read from it at the start.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use rusqlite::Connection;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
use vipwatch_core::InstanceId;
use vipwatch_core::claim::Claim;

use super::{Holds, JournalError, Memory, VERSION};

/// Whose lock says that somebody writes.
const LOCK: &str = "claims.lock";

/// As a new journal is made. Numbers are ours to give, so that none is ever used again.
const CREATE: &str = "
CREATE TABLE report (
    seq      INTEGER PRIMARY KEY,
    at       INTEGER NOT NULL,              -- milliseconds since the epoch
    instance TEXT NOT NULL,
    word     TEXT NOT NULL
);
CREATE TABLE settled (
    instance TEXT PRIMARY KEY,
    seq      INTEGER NOT NULL,              -- the last report that was considered
    at       INTEGER NOT NULL,
    word     TEXT NOT NULL,
    acted    INTEGER NOT NULL               -- the last one that was acted on; 0 for none
) WITHOUT ROWID;
";

/// From format 1, which did not know who was told.
const TAKE_OVER: &str = "
ALTER TABLE settled ADD COLUMN acted INTEGER NOT NULL DEFAULT 0;
UPDATE settled SET acted = seq;
DROP INDEX report_by_instance;
";

const CREATE_TOLD: &str = "
CREATE TABLE told (
    party    TEXT NOT NULL,
    instance TEXT NOT NULL,
    seq      INTEGER NOT NULL,
    PRIMARY KEY (party, instance)
) WITHOUT ROWID;
";

/// One receiver for a journal: it gives the numbers.
pub(super) fn lock(directory: &Path) -> Result<OwnedFd, JournalError> {
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let mode = Mode::from_raw_mode(0o600);
    let file = rustix::fs::open(directory.join(LOCK), flags, mode).map_err(io::Error::from)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(Errno::AGAIN) => Err(JournalError::Taken(directory.display().to_string())),
        Err(errno) => Err(JournalError::Io(errno.into())),
    }
}

/// Makes it what this program writes.
pub(super) fn prepare(connection: &Connection, found: i64) -> rusqlite::Result<()> {
    connection.pragma_update(None, "journal_mode", "WAL")?;
    // A promise outlives the machine.
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "journal_size_limit", 16 << 20)?;
    // The clerk does it when nobody waits; this is for those who never leave him a moment: 16 MiB.
    connection.pragma_update(None, "wal_autocheckpoint", 4096)?;
    let steps = match found {
        0 => CREATE,
        1 => TAKE_OVER,
        _ => return Ok(()),
    };
    connection.execute_batch(&format!(
        "BEGIN; {steps} {CREATE_TOLD} PRAGMA user_version = {VERSION}; COMMIT;"
    ))
}

/// What is to be remembered.
pub(super) fn recall(connection: &Connection) -> rusqlite::Result<BTreeMap<InstanceId, Memory>> {
    let mut memories: BTreeMap<InstanceId, Memory> = BTreeMap::new();
    let mut settled = connection.prepare("SELECT instance, seq, word, acted, at FROM settled")?;
    let mut rows = settled.query([])?;
    while let Some(row) = rows.next()? {
        if let Some((instance, seq, claim)) = entry(row)? {
            let at = Duration::from_millis(row.get::<_, i64>(4)?.try_into().unwrap_or(0));
            let holds = Holds { claim, seq, acted: row.get(3)?, at: UNIX_EPOCH + at };
            memories.entry(instance).or_default().settled = Some(holds);
        }
    }
    let mut open = connection.prepare(
        "SELECT instance, seq, word FROM report WHERE seq > \
         coalesce((SELECT seq FROM settled WHERE settled.instance = report.instance), 0) ORDER BY seq",
    )?;
    let mut rows = open.query([])?;
    while let Some(row) = rows.next()? {
        if let Some((instance, seq, claim)) = entry(row)? {
            memories.entry(instance).or_default().open.push((seq, claim));
        }
    }
    let mut told = connection.prepare("SELECT instance, seq, party FROM told")?;
    let mut rows = told.query([])?;
    while let Some(row) = rows.next()? {
        let instance = row.get::<_, String>(0)?.parse::<InstanceId>();
        if let Some(memory) = instance.ok().and_then(|instance| memories.get_mut(&instance)) {
            memory.told.insert(row.get(2)?, row.get(1)?);
        }
    }
    Ok(memories)
}

/// The highest number that was ever given.
pub(super) fn last_number(connection: &Connection) -> rusqlite::Result<i64> {
    let question = "SELECT max(coalesce((SELECT max(seq) FROM report), 0), \
                    coalesce((SELECT max(seq) FROM settled), 0))";
    connection.query_row(question, [], |row| row.get(0))
}

/// What only we have written is as we have written it; anything else is left alone.
fn entry(row: &rusqlite::Row<'_>) -> rusqlite::Result<Option<(InstanceId, i64, Claim)>> {
    let (instance, seq, word): (String, i64, String) = (row.get(0)?, row.get(1)?, row.get(2)?);
    Ok(instance
        .parse()
        .ok()
        .zip(Claim::of_word(&word))
        .map(|(instance, claim)| (instance, seq, claim)))
}
