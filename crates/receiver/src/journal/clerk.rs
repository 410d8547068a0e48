//! The journal's thread: what somebody waits for is written at once, many with one fsync; the rest a little
//! later, and of each only the last.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rusqlite::{Connection, params};
use vipwatch_core::InstanceId;
use vipwatch_core::claim::Claim;
use vipwatch_linux::inbox::Inbox;

use super::{Kept, Note, Told};

/// How long what nobody waits for may wait for the disk.
const LATER: Duration = Duration::from_millis(50);
/// The file is put in order, which takes some fsyncs, when so many rows were written and then nobody has come for
/// so long. Not after each: the first to come after that waits for one fsync more.
const ENOUGH: usize = 1000;
const QUIET: Duration = Duration::from_millis(100);
/// How often what was acted on is cleared, and how long it is kept until then.
const CLEARING: Duration = Duration::from_mins(1);
const KEPT_MILLIS: i64 = 86_400_000;

/// What need not be on the disk before somebody is answered: of each instance and party, the last.
#[derive(Default)]
struct Later {
    /// The last report that was considered, what holds, and the last that was acted on; `None` to forget.
    settled: BTreeMap<InstanceId, Option<(i64, Claim, i64)>>,
    told: Told,
    since: Option<Instant>,
}

impl Later {
    fn add(&mut self, note: Note) {
        match note {
            Note::Settled { instance, seq, claim, is_acted_on } => {
                let entry = self.settled.entry(instance).or_default();
                let before = entry.map_or(0, |(_, _, acted)| acted);
                *entry = Some((seq, claim, if is_acted_on { seq } else { before }));
            }
            Note::Forget(instance) => {
                self.told.retain(|(_, other), _| *other != instance);
                self.settled.insert(instance, None);
            }
            Note::Told | Note::Report { .. } | Note::End => return,
        }
        self.since.get_or_insert_with(Instant::now);
    }

    /// Takes over what is in the ledger.
    fn take(&mut self, ledger: &Mutex<Told>) {
        let told = ledger.lock().map(|mut told| std::mem::take(&mut *told)).unwrap_or_default();
        if !told.is_empty() {
            self.told.extend(told);
            self.since.get_or_insert_with(Instant::now);
        }
    }

    /// How long it may wait.
    fn patience(&self) -> Option<Duration> {
        self.since.map(|since| LATER.saturating_sub(since.elapsed()))
    }
}

/// The thread's side.
pub(super) struct Clerk {
    connection: Connection,
    /// BOUND: see `Journal::shelf`.
    shelf: Inbox<Kept>,
    /// The last number that was given.
    last: i64,
    later: Later,
    ledger: Arc<Mutex<Told>>,
    /// What may wait cannot be written, and that was said.
    is_failing: bool,
    /// Rows since the file was last put in order.
    written: usize,
}

impl Clerk {
    pub(super) fn new(
        connection: Connection,
        shelf: Inbox<Kept>,
        last: i64,
        ledger: Arc<Mutex<Told>>,
    ) -> Self {
        let (later, is_failing, written) = (Later::default(), false, 0);
        Self { connection, shelf, last, later, ledger, is_failing, written }
    }

    /// Writes until it is told to end.
    pub(super) fn work(mut self, bundles: &Receiver<Vec<Note>>) {
        let mut cleared = Instant::now();
        loop {
            let patience = self.later.patience();
            let first = match patience.or((self.written >= ENOUGH).then_some(QUIET)) {
                None => bundles.recv().ok(),
                Some(limit) => match bundles.recv_timeout(limit) {
                    Err(RecvTimeoutError::Timeout) if patience.is_some() => {
                        self.write_later();
                        continue;
                    }
                    Err(RecvTimeoutError::Timeout) => {
                        self.put_in_order();
                        continue;
                    }
                    bundle => bundle.ok(),
                },
            };
            let first = first.unwrap_or_else(|| vec![Note::End]);
            let mut reports = Vec::new();
            let mut is_over = false;
            for note in std::iter::once(first).chain(bundles.try_iter()).flatten() {
                match note {
                    Note::Report { ticket, instance, claim } => {
                        reports.push((ticket, instance, claim));
                    }
                    Note::End => is_over = true,
                    note => self.later.add(note),
                }
            }
            if !reports.is_empty() {
                self.promise(&reports);
            }
            self.later.take(&self.ledger);
            if is_over || self.later.patience().is_some_and(|left| left.is_zero()) {
                self.write_later();
            }
            if cleared.elapsed() >= CLEARING || is_over {
                cleared = Instant::now();
                self.clear();
            }
            if is_over {
                return;
            }
        }
    }

    /// Moves what was written from the log of SQLite to its place, when hardly anybody waits for it.
    fn put_in_order(&mut self) {
        self.written = 0;
        // A disk that is full now may not be next time.
        let _ = self.connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
    }

    /// Writes reports, and leaves word of it.
    fn promise(&mut self, reports: &[(u64, InstanceId, Claim)]) {
        let kept: Vec<Kept> = match self.write(reports) {
            Ok(kept) => kept,
            Err(error) => {
                let why = error.to_string();
                reports.iter().map(|(ticket, ..)| (*ticket, Err(why.clone()))).collect()
            }
        };
        self.shelf.put_all(kept);
    }

    fn write(&mut self, reports: &[(u64, InstanceId, Claim)]) -> rusqlite::Result<Vec<Kept>> {
        let at = now();
        let transaction = self.connection.transaction()?;
        let mut kept = Vec::with_capacity(reports.len());
        let mut seq = self.last;
        {
            let mut insert = transaction
                .prepare("INSERT INTO report (seq, at, instance, word) VALUES (?1, ?2, ?3, ?4)")?;
            for (ticket, instance, claim) in reports {
                seq += 1;
                insert.execute(params![seq, at, instance.as_str(), claim.word()])?;
                kept.push((*ticket, Ok(seq)));
            }
        }
        transaction.commit()?;
        self.written += reports.len();
        self.last = seq;
        Ok(kept)
    }

    /// Writes what could wait. If it cannot be written now, it is tried again.
    fn write_later(&mut self) {
        let later = std::mem::take(&mut self.later);
        self.written += later.settled.len() + later.told.len();
        match self.try_write_later(&later) {
            Ok(()) if std::mem::take(&mut self.is_failing) => {
                tracing::info!("the journal can be written again");
            }
            Ok(()) => {}
            Err(error) => {
                if !std::mem::replace(&mut self.is_failing, true) {
                    let what =
                        "what was told cannot be noted, and may be told again after a restart";
                    tracing::error!(%error, "{what}");
                }
                self.later = Later { since: Some(Instant::now()), ..later };
            }
        }
    }

    fn try_write_later(&mut self, later: &Later) -> rusqlite::Result<()> {
        let at = now();
        let transaction = self.connection.transaction()?;
        {
            let mut settled = transaction.prepare(
                "INSERT INTO settled (instance, seq, at, word, acted) VALUES (?1, ?2, ?3, ?4, ?5) \
                 ON CONFLICT (instance) DO UPDATE SET seq = ?2, at = ?3, word = ?4, \
                 acted = max(acted, ?5)",
            )?;
            for (instance, holds) in &later.settled {
                let id = instance.as_str();
                if let Some((seq, claim, acted)) = holds {
                    settled.execute(params![id, seq, at, claim.word(), acted])?;
                    continue;
                }
                for table in ["report", "settled", "told"] {
                    let delete = format!("DELETE FROM {table} WHERE instance = ?1");
                    transaction.execute(&delete, [id])?;
                }
            }
            let mut told = transaction.prepare(
                "INSERT INTO told (party, instance, seq) VALUES (?1, ?2, ?3) \
                 ON CONFLICT (party, instance) DO UPDATE SET seq = ?3",
            )?;
            for ((party, instance), seq) in &later.told {
                told.execute(params![&**party, instance.as_str(), seq])?;
            }
        }
        transaction.commit()
    }

    /// Clears reports that were acted on long ago.
    fn clear(&self) {
        // A disk that is full now may not be next time.
        let _ = self.connection.execute(
            "DELETE FROM report WHERE at < ?1 AND seq <= \
             (SELECT seq FROM settled WHERE settled.instance = report.instance)",
            [now() - KEPT_MILLIS],
        );
    }
}

/// Milliseconds since the epoch.
fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
