// SPDX-License-Identifier: Apache-2.0
//! Reads one file for a scan, and decides which content is in use: that of the file, what its process has loaded, or what
//! is known from an earlier scan.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use vipwatch_core::keepalived::Program;
use vipwatch_linux::file::FileStamp;
use vipwatch_linux::netns::{Netns, NetnsError};
use vipwatch_linux::process_table::{self, ProcessId};
use vipwatch_linux::root_directory::RootDirectory;

use super::ConfigScanner;
use crate::discovery::config_file::{ConfigFile, ParsedFile, last_valid};
use crate::discovery::include::{Author, ConfigRequest};
use crate::discovery::instance_config::{InstanceConfig, Origin};
use crate::discovery::loaded_config::{LoadedConfig, MAX_CHANGING, PendingEdit};
use crate::discovery::ordinary_files::is_in_process_root;
use crate::discovery::{ConfigProblem, DiscoveryResult, MISSING_FILE_HOLD, SETTLE};
use crate::processes::ProcessSource;

/// How many times longer than the node keepalived may take for a file, on a busy machine.
const READING_TIMES: u32 = 10;

impl ConfigScanner {
    /// The content of `file`, which is read if it has changed; `None` if there is no file and no content to keep. `source`
    /// is the process that uses the file; without one, the configured id and version count.
    pub(super) fn read(
        &mut self,
        file: &Arc<Path>,
        place: &FilePlace,
        source: Option<&ProcessSource>,
        result: &mut DiscoveryResult,
    ) -> Option<&mut ConfigFile> {
        let stamp = match place.stamp() {
            Ok(stamp) => Some(stamp),
            Err(error) if process_table::is_vanished(&error) => None,
            Err(error) => return Some(self.replace_unreadable(file, &error)),
        };
        let known = self.files.get(file);
        let is_current = |stamp| known.is_some_and(|known| known.is_current(stamp, source));
        if stamp.is_some_and(is_current) {
            return self.keep(file);
        }
        let root = match place.process {
            None => self.own_root.clone().map_or_else(|| place.root(), Ok),
            Some(_) => place.root(),
        };
        let config_id = source.and_then(|source| source.config_id.clone());
        let config_id = config_id.unwrap_or_else(|| self.locations.config_id());
        let version = source.and_then(|source| source.version).unwrap_or(self.locations.version);
        let program = Program { config_id: &config_id, version };
        let process = source.and_then(|source| source.process);
        let FilePlace { path, author, .. } = place;
        let request = |root| ConfigRequest { root, file: path, program, process, author: *author };
        match (root, stamp) {
            (Ok(root), Some(stamp)) => self.read_again(file, stamp, source, request(&root), result),
            (Ok(root), None) => match LoadedConfig::read(source, request(&root)) {
                LoadedConfig::Known(loaded, loaded_at) => {
                    let missing =
                        ConfigFile::missing(file, "with it").with_loaded(file, loaded, loaded_at);
                    Some(self.replace(file, missing))
                }
                // It runs with what it has read.
                LoadedConfig::NoCopy if self.files.contains_key(file) => {
                    let known = self.keep(file)?;
                    (known.stamp, known.pending, known.changing_since) = (None, None, None);
                    known.problems = last_valid(ConfigFile::missing(file, "with it").problems);
                    Some(known)
                }
                _ if self.hold(file, file, result).is_some() => {
                    self.files.get_mut(file).map(|known| &mut **known)
                }
                LoadedConfig::NoProcess => None,
                // It has read that there is no file.
                _ => {
                    self.files.remove(file);
                    let missing = ConfigFile::missing(file, "without any instance");
                    Some(self.replace(file, ConfigFile { has_all_instances: true, ..missing }))
                }
            },
            (Err(_), None) => self.hold(file, file, result),
            (Err(error), Some(_)) => Some(self.replace_unreadable(file, &error)),
        }
    }

    /// Reads a file that has changed, and what `source`, the process that uses it, has loaded: that is the content in use.
    fn read_again(
        &mut self,
        file: &Arc<Path>,
        stamp: FileStamp,
        source: Option<&ProcessSource>,
        request: ConfigRequest<'_>,
        result: &mut DiscoveryResult,
    ) -> Option<&mut ConfigFile> {
        let began = Instant::now();
        let ParsedFile { mut content, written } = ConfigFile::parse(request, stamp);
        let mut since = self.files.get(file).and_then(|known| known.changing_since);
        let loaded = LoadedConfig::read(source, request).without_endless_change(&mut since);
        content.changing_since = since;
        if !matches!(loaded, LoadedConfig::Known(..))
            && let Some(missing) = self.missing_include(file, &content)
            && self.hold(file, &missing, result).is_some()
        {
            return self.files.get_mut(file).map(|known| &mut **known);
        }
        let age = |at: SystemTime| at.elapsed().ok();
        let is_young = |wait| written.and_then(age).is_some_and(|age| age < wait);
        let (is_changing, pending) = match loaded {
            LoadedConfig::Known(loaded, loaded_at) => {
                // The VRRP child reads the copy after it is written, and then changes addresses.
                let settle = SETTLE.max(began.elapsed() * READING_TIMES);
                let is_reload = age(loaded_at).is_some_and(|age| age < settle);
                result.is_unsettled |= is_reload;
                if content.differs_from(&loaded) {
                    content = content.with_loaded(file, loaded, loaded_at);
                } else {
                    // keepalived runs with this content, whatever its problems are.
                    content.is_valid |= !loaded.is_refused();
                    content.has_all_instances |= !loaded.is_refused();
                    if is_young(SETTLE) {
                        content.stamp = None;
                        result.is_unsettled = true;
                    }
                }
                if is_reload {
                    (content.stamp, content.pending) = (None, Some(PendingEdit::Changing));
                }
                return Some(self.replace(file, content));
            }
            LoadedConfig::NoProcess if self.is_loaded_kept(file) => {
                let known = self.keep(file)?;
                (known.stamp, known.pending) = (content.stamp, Some(PendingEdit::Ended));
                (known.files, known.problems) = (content.files, last_valid(content.problems));
                return Some(known);
            }
            LoadedConfig::NoProcess => (is_young(SETTLE), Some(PendingEdit::Changing)),
            LoadedConfig::Changing => (true, Some(PendingEdit::Changing)),
            // A reload usually follows the edit soon. Its time is not known, so that role changes wait for the end.
            LoadedConfig::NoCopy => (is_young(MAX_CHANGING), Some(PendingEdit::Changing)),
        };
        if is_changing {
            // The file may be incomplete. In the first scan there is no earlier content to use instead.
            result.is_unsettled = true;
            // Nor is there one for a container that has just started again.
            let is_new = is_in_process_root(file) && !self.files.contains_key(file);
            if self.scan_number > 1 && !is_new {
                let known = self.keep(file)?;
                (known.pending, known.changing_since) = (pending, since);
                return Some(known);
            }
            content.stamp = None;
        } else if since.is_some() {
            // The copy may become readable.
            content.stamp = None;
        }
        Some(self.replace(file, content))
    }

    /// Whether the known content of `file` is one that its process had loaded, and the file had another one at the end of the
    /// process.
    fn is_loaded_kept(&self, file: &Path) -> bool {
        let pending = self.files.get(file).and_then(|known| known.pending);
        matches!(pending, Some(PendingEdit::NotLoaded { .. } | PendingEdit::Ended))
    }

    /// Uses the known content of `file`, which exists, for this scan.
    fn keep(&mut self, file: &Path) -> Option<&mut ConfigFile> {
        let known = self.files.get_mut(file)?;
        known.scan_number = self.scan_number;
        known.missing_since = None;
        Some(known)
    }

    /// Replaces the known content of `file`, unless the known content is valid and the new one is not.
    fn replace(&mut self, file: &Arc<Path>, content: ConfigFile) -> &mut ConfigFile {
        let known = self.files.entry(Arc::clone(file)).or_default();
        if known.is_valid && !content.is_valid {
            (known.stamp, known.pending) = (content.stamp, content.pending);
            known.changing_since = content.changing_since;
            known.problems = last_valid(content.problems);
        } else {
            let instances = std::mem::take(&mut known.instances);
            **known = content;
            known.instances = instances;
        }
        known.scan_number = self.scan_number;
        known.missing_since = None;
        known
    }

    /// The known content, which an edit may be pending for, with the problem that the file cannot be read.
    fn replace_unreadable(&mut self, file: &Arc<Path>, error: &io::Error) -> &mut ConfigFile {
        let pending = self.files.get(file).and_then(|known| known.pending);
        self.replace(file, ConfigFile { pending, ..ConfigFile::unreadable(file, error) })
    }

    /// Keeps the content of `file`, because `missing` is missing: `file` itself or a file that it includes.
    /// `None` if the time for that is over, or if the router was deleted.
    fn hold(
        &mut self,
        file: &Arc<Path>,
        missing: &Path,
        result: &mut DiscoveryResult,
    ) -> Option<&mut ConfigFile> {
        let known = self.files.get_mut(file)?;
        if is_in_process_root(file) {
            // The file was in the root directory of a process that has ended. Its addresses may still be here.
            known.scan_number = self.scan_number;
            return Some(known);
        }
        if !known.instances.iter().any(|instance| may_exist(instance)) {
            return None;
        }
        let since = *known.missing_since.get_or_insert_with(Instant::now);
        let left = MISSING_FILE_HOLD.checked_sub(since.elapsed()).filter(|left| !left.is_zero())?;
        let ends_in = &mut result.hold_ends_in;
        *ends_in = Some(ends_in.map_or(left, |first| first.min(left)));
        let seconds = MISSING_FILE_HOLD.as_secs();
        let text = format!("the file is missing; its instances are kept for {seconds} s");
        known.problems = vec![ConfigProblem::new(missing, None, text).with_last_valid()];
        known.stamp = None;
        known.scan_number = self.scan_number;
        Some(known)
    }

    /// A file that the known content of `file` includes, that `content` does not include, and that does not
    /// exist any more.
    fn missing_include(&self, file: &Path, content: &ConfigFile) -> Option<PathBuf> {
        let known = self.files.get(file)?;
        let is_missing = |old: &&PathBuf| {
            !is_in_process_root(old) && !content.files.contains(old) && !old.exists()
        };
        known.files.iter().find(is_missing).cloned()
    }
}

/// Where a configuration file is, and what writes it.
pub(super) struct FilePlace {
    /// The process that has the root directory above the file; `None` for this program's own.
    process: Option<ProcessId>,
    /// The path below that root directory.
    path: PathBuf,
    author: Author,
}

impl FilePlace {
    /// A file below the root directory of this program.
    pub(super) fn own(file: &Path, author: Author) -> Self {
        Self { process: None, path: file.to_owned(), author }
    }

    /// The file that a process uses.
    pub(super) fn of(file: &Path, source: &ProcessSource) -> Self {
        let author = if source.is_foreign { Author::Container } else { Author::Operator };
        let below = source.process.and_then(|id| {
            let root = process_table::path_in_root(id.pid, Path::new("/"));
            let path = file.strip_prefix(root).ok()?.to_owned();
            Some(Self { process: Some(id), path, author })
        });
        below.unwrap_or_else(|| Self::own(file, author))
    }

    fn root(&self) -> io::Result<Arc<RootDirectory>> {
        self.process.map_or_else(RootDirectory::own, RootDirectory::of_process).map(Arc::new)
    }

    fn stamp(&self) -> io::Result<FileStamp> {
        match self.process {
            Some(_) => self.root()?.stamp(&self.path),
            // There are thousands of files of this program, so that one call each must do.
            None => FileStamp::at(&self.path),
        }
    }
}

/// Whether an instance may still exist although its file is missing. Neutron's agent deletes the namespace of
/// a router together with its directory.
fn may_exist(instance: &InstanceConfig) -> bool {
    match (&instance.netns, instance.origin) {
        (Some(netns), Origin::Neutron) => !matches!(
            Netns::open(netns),
            Err(NetnsError::Missing(_) | NetnsError::NotANamespace(_))
        ),
        _ => true,
    }
}
