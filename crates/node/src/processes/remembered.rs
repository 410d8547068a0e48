// SPDX-License-Identifier: Apache-2.0
//! The configurations that processes used in the last run, in a file of the state directory.
//!
//! Without it, a node that restarts after the end of a keepalived would not know that its addresses exist.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use vipwatch_core::ErrorChain;
use vipwatch_linux::file::replace_file;
use vipwatch_linux::worker::in_time;

use super::{ProcessNetns, ProcessSource};
use crate::config::Config;

/// The name of the file.
const FILE: &str = "keepalived-files.json";

/// Size of the largest file that is read, in bytes.
const MAX_BYTES: u64 = 8 << 20;

/// The longest wait for the disk at the start.
const LOAD_LIMIT: Duration = Duration::from_secs(5);

/// One configuration in the file.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct RememberedSource {
    file: PathBuf,
    /// The name of the network namespace; absent for the node's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    netns: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    config_id: Option<String>,
}

/// The file of remembered configurations. Clones share one writing thread: two would write one new file.
#[derive(Debug, Clone)]
pub(crate) struct RememberedSources {
    state_dir: PathBuf,
    /// The directory of Neutron's routers; their files are found without their processes.
    ha_confs: PathBuf,
    storage: Arc<Storage>,
}

#[derive(Debug, Default)]
struct Storage {
    state: Mutex<StorageState>,
    /// The thread has ended.
    ended: Condvar,
}

#[derive(Debug, Default)]
struct StorageState {
    /// The newest configurations, until the thread stores them.
    unstored: Option<Vec<ProcessSource>>,
    /// Whether a thread writes.
    has_thread: bool,
    /// The configurations of the last run are not known, and stay on the disk for the next run.
    is_unread: bool,
}

impl Storage {
    fn lock(&self) -> MutexGuard<'_, StorageState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The newest configurations; `None` ends the thread.
    fn take(&self) -> Option<Vec<ProcessSource>> {
        let mut state = self.lock();
        let newest = state.unstored.take();
        if newest.is_none() {
            state.has_thread = false;
            self.ended.notify_all();
        }
        newest
    }
}

impl RememberedSources {
    /// The file of a node with these settings.
    pub(crate) fn new(config: &Config) -> Self {
        let ha_confs = config.locations.neutron.join("ha_confs");
        let state_dir = config.state_dir.clone();
        Self { state_dir, ha_confs, storage: Arc::default() }
    }

    /// The configurations that were used in the last run and still exist. A file that is missing or invalid is empty. `None` if
    /// the disk does not answer.
    pub(crate) fn load(&self) -> Option<Vec<ProcessSource>> {
        let state_dir = self.state_dir.clone();
        let loaded = in_time(LOAD_LIMIT, move || load(&state_dir));
        self.storage.lock().is_unread = loaded.is_none();
        loaded
    }

    /// Stores the configurations, except for those of routers and those that only their processes can reach. A thread of its
    /// own waits for the disk.
    pub(crate) fn store(&self, mut sources: Vec<ProcessSource>) {
        sources.retain(|source| !source.file.starts_with(&self.ha_confs));
        // BOUND: one thread, and the newest sources.
        let mut state = self.storage.lock();
        if state.is_unread {
            return;
        }
        state.unstored = Some(sources);
        if std::mem::replace(&mut state.has_thread, true) {
            return;
        }
        let (storage, state_dir) = (Arc::clone(&self.storage), self.state_dir.clone());
        let thread = Builder::new().spawn(move || {
            while let Some(sources) = storage.take() {
                if let Err(error) = replace(&state_dir, sources.iter()) {
                    let error = ErrorChain(&error).to_string();
                    tracing::warn!(error, "cannot store which files keepalived uses");
                }
            }
        });
        // Without a thread, the next change is stored.
        state.has_thread = thread.is_ok();
    }

    /// Waits until the newest configurations are stored, for `limit` at most. False if they are not.
    pub(crate) fn wait_stored(&self, limit: Duration) -> bool {
        let Storage { ended, .. } = &*self.storage;
        let waited = ended.wait_timeout_while(self.storage.lock(), limit, |state| state.has_thread);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        !state.has_thread && state.unstored.is_none()
    }
}

fn load(state_dir: &Path) -> Vec<ProcessSource> {
    let Ok(text) = vipwatch_linux::file::read_head(&state_dir.join(FILE), MAX_BYTES) else {
        return Vec::new();
    };
    let remembered: Vec<RememberedSource> = serde_json::from_slice(&text).unwrap_or_default();
    let source = |remembered: RememberedSource| {
        let netns = match remembered.netns {
            Some(name) => ProcessNetns::Named(name.parse().ok()?),
            None => ProcessNetns::Own,
        };
        let file: Arc<Path> = remembered.file.into();
        let is_usable = file.is_absolute() && !file.starts_with("/proc") && file.exists();
        let config_id = remembered.config_id;
        let is_foreign = false;
        is_usable.then_some(ProcessSource {
            file,
            netns,
            config_id,
            version: None,
            process: None,
            is_foreign,
        })
    };
    remembered.into_iter().filter_map(source).collect()
}

fn replace<'a>(
    state_dir: &Path,
    sources: impl Iterator<Item = &'a ProcessSource>,
) -> io::Result<()> {
    let remembered = |source: &ProcessSource| {
        let netns = match &source.netns {
            ProcessNetns::Own => None,
            ProcessNetns::Named(name) => Some(name.to_string()),
            ProcessNetns::Unnamed | ProcessNetns::Unreadable => return None,
        };
        let (file, config_id) = (source.file.to_path_buf(), source.config_id.clone());
        let is_reachable = !source.is_foreign && !file.starts_with("/proc");
        is_reachable.then_some(RememberedSource { file, netns, config_id })
    };
    let remembered: Vec<RememberedSource> = sources.filter_map(remembered).collect();
    let text = serde_json::to_vec(&remembered)?;
    replace_file(&state_dir.join(FILE), 0o600, |new| new.write_all(&text))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::sync::mpsc::sync_channel;

    use super::*;

    #[test]
    fn only_the_user_of_the_node_can_read_which_files_keepalived_uses() {
        let directory = tempfile::tempdir().unwrap();
        let staged = directory.path().join(format!("{FILE}.new"));
        std::fs::File::create(&staged).unwrap();
        std::fs::set_permissions(&staged, PermissionsExt::from_mode(0o644)).unwrap();
        replace(directory.path(), std::iter::empty()).unwrap();
        let mode = directory.path().join(FILE).metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn the_end_of_the_node_waits_until_the_newest_files_are_stored() {
        let directory = tempfile::tempdir().unwrap();
        let config = Config { state_dir: directory.path().to_owned(), ..Config::default() };
        let remembered = RememberedSources::new(&config);
        let file: Arc<Path> = directory.path().join("a").into();
        std::fs::File::create(&file).unwrap();
        let source = |config_id: String| ProcessSource {
            file: Arc::clone(&file),
            netns: ProcessNetns::Own,
            config_id: Some(config_id),
            version: None,
            process: None,
            is_foreign: false,
        };
        for number in 0..100 {
            remembered.clone().store(vec![source(number.to_string())]);
        }
        assert!(remembered.wait_stored(Duration::from_mins(1)));
        assert_eq!(remembered.load(), Some(vec![source("99".to_owned())]));
        // What could not be read may be more than what is known now.
        remembered.storage.lock().is_unread = true;
        remembered.store(Vec::new());
        assert!(remembered.wait_stored(Duration::from_mins(1)));
        assert_eq!(remembered.load(), Some(vec![source("99".to_owned())]));
        // A thread that the disk blocks.
        remembered.storage.lock().has_thread = true;
        assert!(!remembered.wait_stored(Duration::ZERO));
    }

    #[test]
    fn a_disk_that_does_not_answer_holds_the_start_up_for_a_limited_time() {
        let (_disk, hangs) = sync_channel::<()>(1);
        assert_eq!(in_time(Duration::from_millis(1), move || hangs.recv()), None);
        assert_eq!(in_time(Duration::from_mins(1), || 7), Some(7));
    }

    #[test]
    fn stored_files_that_still_exist_are_read_again() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(load(directory.path()), []);
        let file = |name: &str| -> Arc<Path> {
            let path = directory.path().join(name);
            std::fs::File::create(&path).unwrap();
            path.into()
        };
        let source = |file: Arc<Path>, netns| ProcessSource {
            file,
            netns,
            config_id: None,
            version: None,
            process: None,
            is_foreign: false,
        };
        let kept = source(file("a"), ProcessNetns::Named("blue".parse().unwrap()));
        let deleted = source(file("b"), ProcessNetns::Own);
        let in_container = source(Path::new("/proc/7/a").into(), ProcessNetns::Own);
        replace(directory.path(), [&kept, &deleted, &in_container].into_iter()).unwrap();
        std::fs::remove_file(directory.path().join("b")).unwrap();
        assert_eq!(load(directory.path()), [kept]);
        std::fs::File::create(directory.path().join(FILE)).unwrap();
        assert_eq!(load(directory.path()), [], "an invalid file is empty");
    }
}
