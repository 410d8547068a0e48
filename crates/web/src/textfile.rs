// SPDX-License-Identifier: Apache-2.0
//! The metrics in a file, which the text-file collector of the node exporter reads.
//!
//! The file is replaced in one step. It is removed when the node stops, and while its main loop hangs: otherwise the node
//! exporter would export old roles.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use vipwatch_core::FindingKind;
use vipwatch_linux::file::replace_file;
use vipwatch_linux::worker::{Heartbeat, beat_every, spawn_worker};
use vipwatch_node::state::StateStore;
use vipwatch_node::view::{self, ApiContext};

use crate::metrics::{MetricsFormat, MetricsText};
use crate::routes::check_main_loop;

/// The mode of the file: the node exporter runs as another user.
const MODE: u32 = 0o644;

/// Why the file could not be written.
#[derive(Debug, thiserror::Error)]
enum TextfileError {
    #[error("cannot write {}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("{} was removed: {reason}", path.display())]
    Stale { path: PathBuf, reason: String },
}

/// The thread that writes the file. Dropping it ends the thread and removes the file.
#[derive(Debug)]
pub(crate) struct MetricsTextfile {
    path: PathBuf,
    stop: Arc<StopFlag>,
    thread: Option<JoinHandle<()>>,
}

impl MetricsTextfile {
    /// Starts the thread; `None` if no file is configured.
    pub(crate) fn start(context: &ApiContext) -> io::Result<Option<Self>> {
        let Some(path) = context.service.metrics.textfile.clone() else { return Ok(None) };
        let stop = Arc::<StopFlag>::default();
        let writer = TextfileWriter {
            path: path.clone(),
            every: context.service.metrics.textfile_every,
            context: context.clone(),
            stop: Arc::clone(&stop),
        };
        let thread = spawn_worker("textfile", move |heartbeat| writer.run(heartbeat))?;
        Ok(Some(Self { path, stop, thread: Some(thread) }))
    }
}

impl Drop for MetricsTextfile {
    fn drop(&mut self) {
        *self.stop.lock() = true;
        self.stop.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Whether the thread must end.
#[derive(Debug, Default)]
struct StopFlag {
    is_set: Mutex<bool>,
    changed: Condvar,
}

impl StopFlag {
    fn lock(&self) -> MutexGuard<'_, bool> {
        self.is_set.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `until`, with heartbeats; true if the thread must end.
    fn wait(&self, until: Instant, heartbeat: &Heartbeat) -> bool {
        let mut is_set = self.lock();
        while !*is_set {
            heartbeat.beat();
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.changed.wait_timeout(is_set, left.min(beat_every()));
            (is_set, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
        true
    }
}

#[derive(Debug)]
struct TextfileWriter {
    path: PathBuf,
    every: Duration,
    context: ApiContext,
    stop: Arc<StopFlag>,
}

impl TextfileWriter {
    fn run(&self, heartbeat: &Heartbeat) {
        let mut next = Instant::now();
        while !self.stop.wait(next, heartbeat) {
            next = Instant::now() + self.every;
            report(&self.context.store, self.write(heartbeat).err());
        }
    }

    fn write(&self, heartbeat: &Heartbeat) -> Result<(), TextfileError> {
        let path = self.path.clone();
        if let Err(problem) = check_main_loop(&self.context) {
            let _disk = heartbeat.disk();
            // If it cannot be removed, or is already removed, there is nothing else to do.
            let _ = std::fs::remove_file(&path);
            return Err(TextfileError::Stale { path, reason: problem.detail });
        }
        let metrics = view::metrics(&self.context).without_process_families();
        let text = MetricsText::new(metrics, MetricsFormat::Classic);
        let _disk = heartbeat.disk();
        // The name of the new file does not end in `.prom`, so that the node exporter does not read it.
        replace_file(&self.path, MODE, |file| write_parts(file, text))
            .map_err(|source| TextfileError::Write { path, source })
    }
}

fn write_parts(file: &mut File, text: MetricsText) -> io::Result<()> {
    let mut writer = BufWriter::new(file);
    for part in text {
        writer.write_all(part.map_err(io::Error::other)?.as_bytes())?;
    }
    writer.flush()
}

/// Logs the beginning and the end of a failure, and makes it a finding.
fn report(store: &StateStore, error: Option<TextfileError>) {
    let problem = error.map(|error| error.to_string());
    let known = store.health_problem(FindingKind::NodeTextfile);
    match (&problem, &known) {
        (Some(problem), _) if known.as_ref() != Some(problem) => {
            tracing::warn!(problem, "cannot write the metrics file");
        }
        (None, Some(_)) => tracing::info!("metrics file is written again"),
        _ => {}
    }
    store.set_health(FindingKind::NodeTextfile, problem);
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use vipwatch_node::{Config, direct};

    use super::*;

    fn context(directory: &Path) -> ApiContext {
        let mut config = Config { state_dir: directory.to_owned(), ..Config::default() };
        config.metrics.textfile = Some(directory.join("out/v.prom"));
        config.metrics.textfile_every = Duration::from_millis(1);
        direct::history_context(&config)
    }

    /// Waits until `is_true`.
    fn wait_until(is_true: impl Fn() -> bool) {
        let end = Instant::now() + Duration::from_secs(30);
        while !is_true() {
            assert!(Instant::now() < end, "not within 30 s");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_directory_that_is_missing_is_a_finding_until_it_exists_and_the_file_is_removed_at_the_end()
    {
        let directory = tempfile::tempdir().unwrap();
        let context = context(directory.path());
        let problem = || context.store.health_problem(FindingKind::NodeTextfile);
        let textfile = MetricsTextfile::start(&context).unwrap().unwrap();
        wait_until(|| problem().is_some());
        assert!(
            problem().unwrap().starts_with("cannot write /"),
            "{problem:?}",
            problem = problem()
        );
        std::fs::create_dir(directory.path().join("out")).unwrap();
        let file = directory.path().join("out/v.prom");
        wait_until(|| file.exists() && problem().is_none());
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.contains("\n# TYPE vipwatch_build_info gauge\n"), "{text}");
        assert!(!text.contains("# EOF"), "{text}");
        assert!(!text.contains("\nprocess_"), "the node exporter has these names: {text}");
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, MODE);
        drop(textfile);
        let left = std::fs::read_dir(directory.path().join("out")).unwrap().count();
        assert_eq!(left, 0, "the file is removed");
    }

    #[test]
    fn a_node_whose_main_loop_hangs_removes_the_file_until_it_runs_again() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("out")).unwrap();
        let context = context(directory.path());
        let file = directory.path().join("out/v.prom");
        let _textfile = MetricsTextfile::start(&context).unwrap().unwrap();
        wait_until(|| file.exists());
        context.store.record_turn_at(Instant::now().checked_sub(Duration::from_mins(1)).unwrap());
        wait_until(|| context.store.health_problem(FindingKind::NodeTextfile).is_some());
        let problem = context.store.health_problem(FindingKind::NodeTextfile).unwrap();
        assert!(problem.contains("the main loop has not run for 60 s"), "{problem}");
        wait_until(|| !file.exists());
        context.store.record_turn_at(Instant::now());
        wait_until(|| file.exists());
    }
}
